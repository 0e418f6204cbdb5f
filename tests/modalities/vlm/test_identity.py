"""Same seed, same answer: every drafter against plain decoding, and plain decoding against transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import pad
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.core.decode import Method, add_requests, decode, decode_step, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter, WindowInitializer
from polydraft.core.drafters.lookup import PromptLookupDrafter
from polydraft.core.drafters.network.draft_model import LMDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleModel
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.target import PER_TOKEN_INPUTS, build_vision_target

from ...covering import every_pair
from .conftest import MAKERS, SHAPES, TEXT, generate_greedy, method, oracle, picture, run, sample_prompts

SETTINGS = {"greedy": SamplingParams(temperature=0), "sampled": SamplingParams(top_k=50, repetition_penalty=1.2)}


def drafters(pipe: VLMPipeline, recorded: list[list[int]]) -> dict[str, Any]:
    """Return all kinds of drafters: untrained networks, and oracles that replay `recorded` with planted errors."""
    config, vocab = pipe.target_model.config.get_text_config(), pipe.token_mask.shape[1]
    torch.manual_seed(7)
    student = LlamaForCausalLM(LlamaConfig(vocab_size=vocab, **TEXT)).to(pipe.dtype)
    eagle, heads = (kind(config).to(pipe.dtype) for kind in (EagleModel, MedusaHeads))
    return {
        "oracle chain": oracle(recorded, vocab, 1),
        "oracle tree": oracle(recorded, vocab, 3),
        "pld": PromptLookupDrafter(allowed=pipe.allowed_token_mask),
        "jacobi": JacobiDrafter(6, WindowInitializer("left-law", pipe.allowed_token_mask, 1)),
        "draft": lambda target: LMDrafter(
            student, target, DynamicTree(2, 2, 4), CandidateRanking(), pipe.image_placeholder_mask
        ),
        "eagle": lambda target: EagleDrafter(eagle, target, StaticTree(2, 5), CandidateRanking()),
        "eagle2": lambda target: EagleDrafter(eagle, target, DynamicTree(3, 2, 6), CandidateRanking()),
        "medusa": lambda target: MultiTokenDrafter(heads, target, StaticTree(3, 6), CandidateRanking()),
    }


@pytest.mark.parametrize(
    ("family", "dtype", "setting"), every_pair(MAKERS, ("float32", "bfloat16"), ("sampled", "greedy"))
)
def test_every_drafter_equals_plain_decoding(pipe_of, family, dtype, setting):
    pipe = pipe_of(family, dtype)
    prompts = sample_prompts(pipe, sampling=SETTINGS[setting])
    plain, reasons, tau = run(method(pipe), prompts)
    assert tau == 1 and len({tuple(row[:8]) for row in plain}) == 3
    assert run(method(pipe), prompts[1:2])[0] == plain[1:2], "a row depends on its neighbours"
    for name, drafter in drafters(pipe, plain).items():
        if (dtype, setting) == ("bfloat16", "greedy") and not name.startswith("oracle"):
            continue  # the other three settings cover it
        drafted, why, tau = run(method(pipe, drafter), prompts)
        assert (drafted, why) == (plain, reasons), name
        assert tau > 1.5 or not name.startswith("oracle"), "too little was accepted for equality to mean anything"


@pytest.mark.parametrize("family", MAKERS)
def test_greedy_equals_generate(pipe_of, family):
    """In fp64 there are no near-ties, so equality is strict."""
    pipe = pipe_of(family, "float64")
    prompts = sample_prompts(pipe, sampling=SETTINGS["greedy"])
    plain, _, _ = run(method(pipe), prompts)
    assert plain == [generate_greedy(pipe, prompt) for prompt in prompts]
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.token_mask.shape[1], 3)), prompts)
    assert drafted == plain and tau > 1.5


@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen2_5_vl"])
def test_eos_inside_accepted_draft_ends_answer(pipe_of, family):
    pipe = pipe_of(family)
    prompts = sample_prompts(pipe)
    free, _, _ = run(method(pipe), prompts)
    eos = frozenset({free[0][9], free[2][4]})
    plain, reasons, _ = run(method(pipe, eos=eos), prompts)
    assert reasons.count("eos") >= 2 and len(plain[0]) <= 10 and plain[0][-1] in eos
    recorded = dict(enumerate(map(torch.tensor, free)))
    always = OracleDrafter(recorded, pipe.token_mask.shape[1], reach=6, acceptance=1.0)
    assert run(method(pipe, always, eos=eos), prompts)[:2] == (plain, reasons)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_late_rows_do_not_change_tokens(pipe_of, family):
    """Their rope offsets are kept."""
    pipe = pipe_of(family)
    prompts = sample_prompts(pipe)
    plain, _, _ = run(method(pipe), prompts)
    how = method(pipe, oracle(plain, pipe.token_mask.shape[1], 3))
    batch = start_batch(how, prompts[:1], ids=[0])
    for _ in range(2):
        decode_step(how, batch)
    add_requests(how, batch, prompts[1:], ids=[1, 2])
    for _ in decode(how, batch):
        pass
    assert [output.tolist() for output in batch.outputs()] == plain


@pytest.mark.parametrize("name", ["sjd", "sjd-maximal"])
def test_published_jacobi_equals_plain_decoding(pipe_of, name):
    """Another sampler of the same distribution: other tokens, and never an image token."""
    pipe = pipe_of("llava")
    choice = pipe.check_method(name)
    outputs, _, _ = run(pipe.method(choice), sample_prompts(pipe))
    assert choice.guarantee == "exact"
    assert not {token for row in outputs for token in row} & set(pipe.placeholder_ids)


def test_text_only_drafter_drops_image_tokens(pipe_of):
    """Its rows have the text tokens only, in order."""
    pipe = pipe_of("pixtral")
    prompts = sample_prompts(pipe)
    student = LlamaForCausalLM(LlamaConfig(vocab_size=pipe.token_mask.shape[1], **TEXT))
    drafter = LMDrafter(student, pipe.target(), DynamicTree(2), CandidateRanking(), pipe.image_placeholder_mask)
    with torch.inference_mode():
        read, entries = drafter.network.prompt_inputs(drafter.target.prefill(drafter.target.empty_state(), prompts))
    for row, prompt in enumerate(prompts):
        text = [token for token in prompt.branch_token_ids[0] if token not in pipe.placeholder_ids]
        assert len(text) < len(prompt.branch_token_ids[0])
        assert read[row, : len(text)].equal(student.get_input_embeddings()(torch.tensor(text)))
        assert entries[row].item() == len(text) - 1


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen3_vl"])
def test_guidance_branches_are_prefilled_separately(pipe_of, family, shown):
    """Greedy tokens equal those of two full forward passes, with and without an image in the unconditional branch."""
    pipe, sampling = pipe_of(family, "float64"), SamplingParams(temperature=0, guidance_scale=3.0)
    asked = [(SHAPES[0], "What is this?", "Hm."), (SHAPES[1], "Why?", "And what is that?")]
    target = build_vision_target(pipe.target_model, guided=True, context=pipe.context_len)
    prompts, apart = [], []
    for seed, (shape, question, other) in enumerate(asked):
        about = picture(*shape, seed)
        texts = [(about, question), (about if shown else None, other)]
        apart.append([pipe.build_prompts(build_conversations(*text, None), [0], 8, sampling)[0] for text in texts])
        branches = tuple(prompt.branch_token_ids[0] for prompt in apart[-1])
        prompts.append(replace(apart[-1][0], branch_token_ids=branches))
    verifier, sampler = SharedNoiseVerifier(), Sampler(pipe.token_mask)
    plain, _, _ = run(Method("tested", target, NoDrafter(), verifier, sampler), prompts)
    assert plain == [two_forwards(pipe, *branches) for branches in apart]
    replayed = Method("tested", target, oracle(plain, target.vocab_size, 3), verifier, sampler)
    drafted, _, tau = run(replayed, prompts)
    assert drafted == plain and tau > 1.5


def two_forwards(pipe: VLMPipeline, conditional: PromptInputs, unconditional: PromptInputs) -> list[int]:
    """Decode greedily with guidance by two full forward passes of the model for every token."""
    tokens: list[int] = []
    while len(tokens) < conditional.max_new_tokens:
        logits = []
        for prompt in (conditional, unconditional):
            inputs = {
                name: value.to(pipe.dtype) if value.is_floating_point() else value
                for name, value in prompt.model_kwargs.items()
            }
            for name in inputs.keys() & set(PER_TOKEN_INPUTS):
                inputs[name] = pad(inputs[name], (0, len(tokens)))
            ids = torch.tensor([[*prompt.branch_token_ids[0], *tokens]])
            with torch.inference_mode():
                logits.append(pipe.target_model(input_ids=ids, **inputs, use_cache=False).logits[0, -1].float())
        mixed = logits[1] + conditional.sampling_params.guidance_scale * (logits[0] - logits[1])
        tokens.append(int(mixed.masked_fill(~pipe.token_mask[0], -torch.inf).argmax()))
    return tokens
