"""Targets with an encoder: every row attends to its own sound, alone, in a batch, joined late, and drafted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from polydraft.core.batched_state import RowRemoval
from polydraft.core.decode import Method, add_requests, decode_step, start_batch
from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.native import library as native
from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.sampling.timestamps import TimestampRules
from polydraft.core.target import causal
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.conformance import check_logits_match_model, effective_guarantee
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderDecoderTarget, EncoderInput
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..conftest import KINDS, RunResult, finish

VOCAB, END, NO_TIMESTAMPS = 90, 60, 65
RULES = TimestampRules(NO_TIMESTAMPS + 1, END, NO_TIMESTAMPS, max_initial_index=12)
SHAPES: dict[str, dict[str, Any]] = {
    "small": {},
    "odd sizes": {"d_model": 72, "decoder_attention_heads": 3, "decoder_ffn_dim": 45, "max_source_positions": 27},
    "tanh": {"activation_function": "gelu_new", "decoder_layers": 1},
    "swish": {"activation_function": "swish"},
}
WARM, GREEDY = SamplingParams(temperature=0.6, log_probs=True), SamplingParams(temperature=0, log_probs=True)
every_kind = pytest.mark.parametrize("kind", KINDS, indirect=True)


def build_model(dtype: torch.dtype, **changes: Any) -> WhisperForConditionalGeneration:
    """Return a tiny random model whose norms and biases do something; the same weights in every dtype."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB, "d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 96, "num_mel_bins": 6,
        "max_source_positions": 40, "max_target_positions": 80, "pad_token_id": END, "bos_token_id": END,
        "eos_token_id": END, "decoder_start_token_id": 61, "init_std": 0.25,
    }  # fmt: skip
    model = WhisperForConditionalGeneration(WhisperConfig(**settings | changes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float(parameter.mean() > 0.5), std=0.2)
    return model.bfloat16().to(dtype)


def build_target(dtype: torch.dtype, **changes: Any) -> EncoderDecoderTarget:
    return EncoderDecoderTarget(build_model(dtype, **changes))


def build_method(target: EncoderDecoderTarget, drafter: Drafter | None = None) -> Method:
    stops = torch.arange(VOCAB) == END
    sampler = Sampler(None, stops, Constraints(timestamps=RULES))
    return Method("test", target, drafter or NoDrafter(), SharedNoiseVerifier(), sampler)


def build_sound(seed: int, target: EncoderDecoderTarget) -> EncoderInput:
    frames = 2 * target.model.config.max_source_positions
    return EncoderInput(torch.randn(6, frames, generator=torch.Generator().manual_seed(seed)))


def build_prompts(target: EncoderDecoderTarget, params: SamplingParams) -> list[PromptInputs]:
    """Return prompts of several lengths and sounds, with timestamps and without; equal ids with different sounds."""
    ids = [(61, 62), (61, 62, NO_TIMESTAMPS), (64, 3, 9, 4, 61, 62), (61, 62)]
    return [
        PromptInputs((prompt,), budget, 5, index, {ENCODER_INPUT: build_sound(index, target)}, params)
        for index, (prompt, budget) in enumerate(zip(ids, (24, 17, 30, 21), strict=True))
    ]


def decode_all(target: EncoderDecoderTarget, prompts: list[PromptInputs], drafter: Drafter | None = None) -> RunResult:
    method = build_method(target, drafter)
    return finish(method, start_batch(method, prompts))


@pytest.mark.parametrize("shape", SHAPES)
@every_kind
def test_logits_equal_the_models_forward(kind, shape):
    target = build_target(kind, **SHAPES[shape])
    is_native = native.library() is not None and kind in (torch.float32, torch.bfloat16)
    assert target.network.is_native == is_native
    check_logits_match_model(target, [build_prompts(target, WARM)[2]])
    assert effective_guarantee("identical", target) == "identical"


def test_float64_is_computed_by_torch():
    target = build_target(torch.float64)
    assert not target.network.is_native
    check_logits_match_model(target, build_prompts(target, WARM))


@pytest.mark.parametrize("params", [WARM, GREEDY], ids=["sampled", "greedy"])
@every_kind
def test_drafted_rows_equal_plain_rows_alone(kind, params):
    """Trees of a drafter that is right most of the time; every row also alone, and rows with other sounds differ."""
    target = build_target(kind)
    prompts = build_prompts(target, params)
    plain = decode_all(target, prompts)
    assert plain.tau == 1
    assert not torch.equal(plain.outputs[0][:17], plain.outputs[3][:17]), "the sound has no influence"
    for index, prompt in enumerate(prompts):
        assert torch.equal(decode_all(target, [prompt]).outputs[0], plain.outputs[index])
    truth = dict(enumerate(plain.outputs))
    for width in (1, 3):
        drafted = decode_all(target, prompts, OracleDrafter(truth, VOCAB, reach=4, width=width, acceptance=0.8))
        assert drafted.same(plain) and drafted.tau > 1.5
        for request, other in zip(drafted.batch.requests_in_order(), plain.batch.requests_in_order(), strict=True):
            assert request.log_probs == pytest.approx(other.log_probs, abs=1e-5)


@every_kind
def test_rows_that_join_and_leave_keep_their_sounds(kind):
    target = build_target(kind)
    prompts = build_prompts(target, WARM)
    alone = [decode_all(target, [prompt]).outputs[0] for prompt in prompts]
    method = build_method(target)
    batch = start_batch(method, prompts[:2])
    for index in range(2, 4):
        for _ in range(5):
            decode_step(method, batch)
        add_requests(method, batch, prompts[index : index + 1], [index])
    outputs = finish(method, batch).outputs  # rows end at different times, so that others move
    assert all(torch.equal(joined, single) for joined, single in zip(outputs, alone, strict=True))


def test_rows_move_with_their_sounds():
    target = build_target(torch.float32)
    state, prompts = target.empty_state(), build_prompts(target, WARM)
    target.prefill(state, prompts)
    cross = state.cache.cross
    assert cross is not None and cross.num_live_rows == 4 and cross.requested_slots == 40
    last = [layer.keys[3].clone() for layer in cross.layers]
    state.remove_rows(RowRemoval.from_rows([1], 4))
    assert cross.num_live_rows == 3
    assert all(torch.equal(layer.keys[1], keys) for layer, keys in zip(cross.layers, last, strict=True))


def test_encoder_runs_once_for_prompts_with_same_input():
    target, calls = build_target(torch.float32), []
    target.model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    prompts = build_prompts(target, WARM)
    shared = [PromptInputs((ids,), 4, model_kwargs=prompts[0].model_kwargs) for ids in ((61,), (61, 62))]
    state = target.empty_state()
    target.prefill(state, shared)
    target.prefill(state, shared)
    assert calls == [1]
    given = prompts[0].model_kwargs[ENCODER_INPUT]
    assert given.prompt_states.shape == (2, 64)  # of the last prompt that was prefilled


def test_log_probs_are_those_of_processed_distribution():
    """Plain log-softmax of the model's own logits, with the rules for timestamps, at temperature 1."""
    target = build_target(torch.float32)
    prompt = build_prompts(target, WARM)[1]  # without timestamps, so that no rule applies
    request = decode_all(target, [prompt]).batch.requests[0]
    path = request.ids[:-1]
    with torch.inference_mode():
        logits = target.reference_logits(prompt, path).log_softmax(-1)
    expected = [float(logits[index, token]) for index, token in enumerate(request.ids)]
    assert request.log_probs == pytest.approx(expected, abs=1e-4)


def test_fixed_keys_count_as_memory(monkeypatch):
    target = build_target(torch.float32)
    row = 2 * 2 * 64 * 4 * 40  # keys and values, layers, width, bytes, positions
    assert target.network.kv_bytes_per_row == row
    monkeypatch.setattr(causal, "free_memory_bytes", lambda device: 3 * row)
    with pytest.raises(InvalidArgument, match="are free; ask for fewer rows"):
        target.prefill(target.empty_state(), build_prompts(target, WARM))
