"""Inputs that a target of latents embeds, refuses, and drafters that it accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.continuous.denoising import LatentSampler
from polydraft.core.continuous.drafters import LatentChainDrafter
from polydraft.core.decode import start_batch
from polydraft.core.draft import Draft
from polydraft.core.drafters.network.eagle import EagleDrafterNetwork
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.sampling.params import RepetitionAware, SamplingParams

from ...decoding import all_equal, run
from .lab import COUPLED, DEPTH, SIZE, lab, prompts
from .toys import BEGIN, LEVELS, RandomHead


def test_root_is_embedded_as_the_begin_id():
    """Column 0 has the hidden state of the model's own forward over the whole prompt."""
    made = lab()
    method, rows = made.method(), prompts(3)
    batch = start_batch(method, rows)
    assert batch.state.tokens.isnan().all()
    with torch.inference_mode():
        found = method.target.score(batch.state, Draft.empty(batch.state.tokens)).hidden_states[:, 0, 0]
        for row, prompt in enumerate(rows):
            assert prompt.branch_token_ids[0][-1] == BEGIN
            expected = made.model(torch.tensor([prompt.branch_token_ids[0]])).last_hidden_state[0, -1]
            torch.testing.assert_close(found[row], expected)


@torch.inference_mode()
def test_invalid_latents_are_embedded_as_begin_id():
    made = lab()
    target = made.target()
    for value in (torch.nan, torch.inf, -torch.inf, 3e38, -2e12):
        tokens = torch.zeros(2, 3, SIZE)
        tokens[1, 2, 1] = value
        read = target.embed(tokens)
        assert torch.equal(read[1, 2], target.embed(torch.tensor(BEGIN))) and read.isfinite().all()
        assert not torch.equal(read[1, 1], read[1, 2])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 5), ("top_p", 0.9), ("min_p", 0.1), ("repetition_penalty", 1.2), ("min_tokens", 3),
        ("repetition_aware", RepetitionAware()),
    ],
)  # fmt: skip
def test_sampling_params_for_ids_are_refused(field, value):
    asked = replace(prompts(1)[0], sampling_params=SamplingParams(**{field: value}))
    with pytest.raises(
        InvalidArgument, match=f"^{field} chooses among ids and this model generates latents; leave it out"
    ):
        start_batch(lab().method(), [asked])


def test_temperature_zero_is_refused():
    method = lab().method()
    batch = start_batch(method, prompts(2))
    with pytest.raises(InvalidArgument, match="^temperature=0 is not possible: a latent has no likeliest value"):
        start_batch(method, [prompts(1)[0], replace(prompts(1)[0], sampling_params=SamplingParams(temperature=0))])
    assert len(batch) == 2


def test_drafts_after_noiseless_last_step_are_harmless():
    made = lab()
    made.head = RandomHead(SIZE, levels=(*LEVELS, 0.0))
    asked = prompts(2)
    plain, _ = run(made.method(), asked)
    drafted, _ = run(made.method(made.chained()["eagle"]), asked)
    assert all_equal(drafted, plain)
    coupled, committed = run(made.method(made.chained()["eagle"], verifier=COUPLED), asked)
    assert committed == 1 and all(tokens.isfinite().all() for tokens in coupled)


@pytest.mark.parametrize(
    ("size", "levels"),
    [(SIZE + 1, LEVELS), (SIZE, (2.5, *LEVELS[1:])), (SIZE, (*LEVELS[:-1], 0.2)), (SIZE, LEVELS[:-1])],
)
def test_drafter_with_other_noise_is_refused(size, levels):
    """Its draws do not have the target's standard deviations, which the coupling assumes."""
    made, head = lab(), RandomHead(size, levels=levels)
    target = made.target()
    with pytest.raises(UnsupportedMethod, match="other noise than its target's"):
        LatentChainDrafter(EagleDrafterNetwork(made.network, target), LatentSampler(head), DEPTH)


@pytest.mark.parametrize("verifier", [None, COUPLED], ids=["tape", "coupled"])
def test_overflowing_drafts_are_rejected(verifier):
    """One row of three drafts numbers that are finite but too large; all rows end as they would."""
    made, asked = lab(), prompts(3)
    method = made.method(made.chained()["eagle"], verifier=verifier)
    plain, _ = run(made.method(), asked)
    honest = method.drafter.draft

    def draft(*given: Any) -> Draft:
        drafted = honest(*given)
        drafted.tokens[0] = 3e38
        if drafted.q is not None:
            drafted.q.states[0, :, -1] = 3e38
        return drafted

    method.drafter.draft = draft  # type: ignore[method-assign]
    found, tau = run(method, asked)
    assert all(tokens.isfinite().all() and tokens.abs().max() < 1e3 for tokens in found) and tau >= 1
    assert verifier is not None or all_equal(found, plain)
