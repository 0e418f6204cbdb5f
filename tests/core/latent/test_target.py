"""What a target of latents reads, what it refuses, and who may draft for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.decode import start
from polydraft.core.draft import Draft
from polydraft.core.drafters.network.eagle import EagleReader
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.latent.drafters import LatentChainDrafter
from polydraft.core.latent.law import LatentSampler
from polydraft.core.law.sampling import RepetitionAware, Sampling

from ...decoding import run, same
from .lab import COUPLED, DEPTH, SIZE, lab, prompts
from .toys import BEGIN, LEVELS, RandomHead


def test_the_root_reads_as_the_id_that_begins_latents():
    """Column 0 says what the model's own forward says behind the whole prompt."""
    made = lab()
    method, rows = made.method(), prompts(3)
    batch = start(method, rows)
    assert batch.state.tokens.isnan().all()
    with torch.inference_mode():
        found = method.target.score(batch.state, Draft.empty(batch.state.tokens)).features[:, 0, 0]
        for row, prompt in enumerate(rows):
            assert prompt.branches[0][-1] == BEGIN
            own = made.model(torch.tensor([prompt.branches[0]])).last_hidden_state[0, -1]
            torch.testing.assert_close(found[row], own)


@torch.inference_mode()
def test_what_is_no_latent_reads_as_the_beginning():
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
def test_what_chooses_among_ids_is_refused(field, value):
    asked = replace(prompts(1)[0], sampling=Sampling(**{field: value}))
    with pytest.raises(InvalidArgument, match=f"^{field} chooses among ids and this model draws latents; leave it out"):
        start(lab().method(), [asked])


def test_temperature_0_is_refused_and_nothing_is_left_behind():
    method = lab().method()
    batch = start(method, prompts(2))
    with pytest.raises(InvalidArgument, match="^temperature=0 is not possible: a latent has no likeliest value"):
        start(method, [prompts(1)[0], replace(prompts(1)[0], sampling=Sampling(temperature=0))])
    assert len(batch) == 2


def test_behind_a_last_step_without_noise_drafts_are_of_no_use_and_do_no_harm():
    made = lab()
    made.head = RandomHead(SIZE, levels=(*LEVELS, 0.0))
    asked = prompts(2)
    plain, _ = run(made.method(), asked)
    drafted, _ = run(made.method(made.chained()["eagle"]), asked)
    assert same(drafted, plain)
    coupled, committed = run(made.method(made.chained()["eagle"], verifier=COUPLED), asked)
    assert committed == 1 and all(tokens.isfinite().all() for tokens in coupled)


@pytest.mark.parametrize(
    ("size", "levels"),
    [(SIZE + 1, LEVELS), (SIZE, (2.5, *LEVELS[1:])), (SIZE, (*LEVELS[:-1], 0.2)), (SIZE, LEVELS[:-1])],
)
def test_a_drafter_whose_chain_has_other_noise_is_refused(size, levels):
    """Its draws are not those of the target's deviations, which the coupling takes them for."""
    made, head = lab(), RandomHead(size, levels=levels)
    target = made.target()
    with pytest.raises(UnsupportedMethod, match="other noise than its target's"):
        LatentChainDrafter(EagleReader(made.network, target), LatentSampler(head), DEPTH)


@pytest.mark.parametrize("verifier", [None, COUPLED], ids=["tape", "coupled"])
def test_a_draft_that_overflows_is_not_kept_and_ends_nobody(verifier):
    """One row of three drafts numbers that are finite and too large; all rows end as they would."""
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
    assert verifier is not None or same(found, plain)
