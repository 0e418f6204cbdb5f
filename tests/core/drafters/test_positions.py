"""Models with fewer positions than rows: a drafter stops at its last one, drafts of a target may reach past it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.drafters.network.draft_model import LMDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree
from polydraft.core.errors import UnsupportedMethod, UnsupportedModel
from polydraft.core.target.causal import CausalTarget
from polydraft.core.target.conformance import build_checked_target
from polydraft.core.verifiers.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.core.verifiers.tree import RecursiveRejection

from ...decoding import RecordingDrafter
from ..conftest import VOCAB, Lab, llama, with_sampling
from ..continuous import lab as latents

POSITIONS = 20
SHAPES = [DynamicTree(4), DynamicTree(4, 3, 12), StaticTree(3, 9)]


def gpt2(positions: int = POSITIONS) -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=positions, bos_token_id=1,
                   eos_token_id=2)
    ).eval()  # fmt: skip


def opt(positions: int = POSITIONS) -> PreTrainedModel:
    return OPTForCausalLM(
        OPTConfig(vocab_size=VOCAB, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
                  num_attention_heads=2, max_position_embeddings=positions)
    ).eval()  # fmt: skip


def short_student(made: Lab) -> PreTrainedModel:
    """Return the lab's student with fewer positions."""
    student = llama(max_position_embeddings=POSITIONS)
    student.load_state_dict(made.student.state_dict())
    return student.eval()


def recording_drafter(made: Lab, student: PreTrainedModel, plan: Any) -> RecordingDrafter:
    return RecordingDrafter(LMDrafter(student, made.target(), plan, CandidateRanking()))


@pytest.mark.parametrize("plan", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [gpt2, opt])
def test_lm_drafter_past_positions_changes_no_token(lab, run, kind, plan):
    made = lab()
    torch.manual_seed(1)
    drafter = recording_drafter(made, kind(), plan)
    plain = run(made.method(), made.prompts)
    assert run(made.method(drafter), made.prompts).same(plain)
    assert drafter.drafts[0].valid.any() and not drafter.drafts[-1].size, "rows went past it, and it drafted on"


@pytest.mark.parametrize("plan", SHAPES, ids=str)
def test_lm_drafter_stops_at_its_last_position(lab, run, plan):
    """Up to there it drafts what it would with more positions, and accepted tokens are committed."""
    made = lab()
    prompt = made.prompts[:1]
    plain = run(made.method(), prompt)
    whole, cut = recording_drafter(made, made.student, plan), recording_drafter(made, short_student(made), plan)
    first, second = run(made.method(whole), prompt), run(made.method(cut), prompt)
    assert first.same(plain) and second.same(plain) and 1 < second.tau < first.tau
    assert torch.equal(whole.drafts[0].tokens, cut.drafts[0].tokens) and cut.drafts[0].valid.all()
    drafted = sum(int(draft.valid.sum()) for draft in cut.drafts)
    assert 0 < drafted < sum(int(draft.valid.sum()) for draft in whole.drafts)


@pytest.mark.parametrize(
    ("plan", "verifier"),
    [
        (DynamicTree(4), SpeculativeSampling()),
        (DynamicTree(4), BlockVerification()),
        (StaticTree(3, 9), RecursiveRejection()),
    ],
)
def test_exact_methods_continue_past_drafter_positions(lab, run, plan, verifier):
    made = lab()
    found = run(
        made.method(recording_drafter(made, short_student(made), plan), verifier=verifier), with_sampling(made.prompts)
    )
    assert [len(output) for output in found.outputs] == [
        prompt.max_new_tokens for prompt in made.prompts
    ] and found.tau > 1


def test_latent_drafter_past_positions_changes_no_latent():
    whole, short = latents.lab(), latents.lab(positions=16)
    rows = latents.prompts(3)
    short.model = whole.model

    def generate(made: latents.Lab, verifier: Any, drafts: bool = True) -> list[torch.Tensor]:
        from ...decoding import run

        drafter = made.chained()["lm"] if drafts else None
        return run(made.method(drafter, False, verifier), rows)[0]

    plain = generate(whole, SharedNoiseVerifier(), drafts=False)
    assert all(torch.equal(a, b) for a, b in zip(generate(short, SharedNoiseVerifier()), plain, strict=True))
    assert all(latent.isfinite().all() for latent in generate(short, CoupledVerifier()))


@pytest.mark.parametrize("kind", [gpt2, opt])
def test_target_fills_its_last_position(lab, run, kind):
    """Nodes past the context are scored, never committed; prompts are padded past it."""
    torch.manual_seed(1)
    made = replace(lab(), model=kind())
    prompts = [replace(prompt, max_new_tokens=POSITIONS - len(prompt.branch_token_ids[0])) for prompt in made.prompts]
    plain = run(made.method(), prompts)
    assert [len(output) for output in plain.outputs] == [prompt.max_new_tokens for prompt in prompts]
    drafter = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=5, width=2)
    found = run(made.method(drafter), prompts)
    assert found.same(plain) and found.tau > 1.5


SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 2}, "falcon": {}, "rwkv": {"attention_hidden_size": 32},
    "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
    "bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "decoder_attention_heads": 2,
             "decoder_ffn_dim": 48, "max_position_embeddings": 64},
    "llama4_text": {"num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 2, "intermediate_size": 48,
                    "intermediate_size_mlp": 48, "max_position_embeddings": 128},
    "stablelm": {"intermediate_size": 48},  # with more heads of keys than of queries
}  # fmt: skip


def untrained_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SMALL | UNSUPPORTED[name])
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_architectures_are_refused(name):
    with pytest.raises(UnsupportedModel, match=r"use a(nother)? model|use another"):
        build_checked_target(untrained_model(name))


@pytest.mark.parametrize("kind", [llama, gpt2, opt])
def test_supported_models_pass_conformance(kind):
    model = kind() if kind is llama else kind(64)
    assert isinstance(build_checked_target(model.eval()), CausalTarget)


def test_eagle_head_with_unknown_ids_is_refused(lab):
    made = lab()
    made.eagle.restrict_vocab([3, VOCAB])
    with pytest.raises(UnsupportedMethod, match=f"guesses the id {VOCAB} and its target draws 0 to {VOCAB - 1}"):
        EagleDrafter(made.eagle, made.target(), DynamicTree(3), CandidateRanking())


def test_latent_drafter_with_smaller_vocabulary_is_refused():
    made = latents.lab()
    made.student = LlamaModel(LlamaConfig(**made.student.config.to_dict() | {"vocab_size": latents.WORDS - 5}))
    with pytest.raises(UnsupportedMethod, match=f"reads prompts of {latents.WORDS - 5} ids"):
        made.chained()["lm"](made.target())
