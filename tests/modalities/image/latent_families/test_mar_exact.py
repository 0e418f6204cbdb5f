"""Exact drafting of MAR keeps the distribution of plain decoding, and planted bugs break it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.continuous import coupled as coupled_module
from polydraft.core.continuous import gaussian
from polydraft.core.continuous.coupled import CoupledVerifier, coupled_trajectories
from polydraft.core.continuous.gaussian import Gaussian
from polydraft.core.continuous.published import ContinuousSpeculative
from polydraft.core.draft import Draft
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.noise import Noise, RejectionDraws
from polydraft.core.verification import VerificationResult, accept_to_node
from polydraft.modalities.image.families.mar.masking import MaskingSchedule, generation_order

from ....covering import first
from .conftest import tiny_mar
from .mar_generation import GeneratedSets, GenerationSettings, draw
from .toy_mar import toy_mar

MANY, SOME = 20_000, 10_000
SETTINGS = GenerationSettings()
FAR = 0.15  # of a drafter that often errs
NEAR = 0.003  # of one that hardly does
SURE = 1e-5  # p-values of hundreds of comparisons stay above


@cache
def plain(form: GenerationSettings, count: int) -> Tensor:
    """Return images of as many seeds."""
    seeds = list(range(count))
    return draw(form.method(toy_mar()), form.prompts([seed % 2 for seed in seeds], seeds)).tokens


def drafted(
    form: GenerationSettings, count: int, off: float = FAR, depth: int = 2, verifier: Any = None
) -> GeneratedSets:
    """Return drafted sets of other seeds; orders follow the seeds, so all 24 occur."""
    seeds = list(range(count, 2 * count))
    method = form.method(toy_mar(), toy_mar(off), depth, verifier)
    return draw(method, form.prompts([seed % 2 for seed in seeds], seeds))


def groups(form: GenerationSettings, first: int, count: int) -> Tensor:
    """Return the order and class of every seed, `[count]`."""
    sets = MaskingSchedule.for_length(4, form.iterations)
    turns = torch.arange(len(sets)).repeat_interleave(torch.tensor(sets.sizes))
    places = torch.stack([generation_order(seed, 4) for seed in range(first, first + count)])
    turn = torch.empty_like(places).scatter(1, places, turns.expand_as(places))
    return (turn * torch.tensor([27, 9, 3, 1])).sum(1) * 2 + torch.arange(first, first + count) % 2


def least(one: Tensor, other: Tensor, form: GenerationSettings) -> tuple[float, float]:
    """The least p-value, and the largest distance, of Kolmogorov and Smirnov's test.

    Every coordinate, and products of neighbours, over all and within every order of sets and class.
    """

    def read(tokens: Tensor) -> Tensor:
        flat = tokens.flatten(1).double()
        return torch.cat([flat, flat * flat.roll(2, 1), flat[:, ::2] * flat[:, 1::2]], 1)

    count = len(one)
    mine, theirs, values = groups(form, 0, count), groups(form, count, count), []
    one, other = read(one), read(other)
    for group in mine.unique():
        for column in range(one.shape[1]):
            parts = one[mine == group, column].numpy(), other[theirs == group, column].numpy()
            values.append(stats.ks_2samp(*parts, method="asymp").pvalue)
    whole = [stats.ks_2samp(one[:, column].numpy(), other[:, column].numpy()) for column in range(one.shape[1])]
    return min([*values, *(test.pvalue for test in whole)]), max(test.statistic for test in whole)


@pytest.mark.parametrize(("scale", "count"), [pytest.param(1.0, MANY, marks=pytest.mark.thorough), (1.8, SOME)])
def test_exact_drafts_keep_the_distribution(scale: float, count: int) -> None:
    form = replace(SETTINGS, scale=scale)
    made = drafted(form, count)
    assert len(groups(form, 0, count).unique()) == 2 * 12  # of 24 orders, two differ within the last set alone
    shares = torch.tensor(made.steps[0].num_committed).bincount(minlength=4)[1:] / count
    assert shares.min() > 0.1 and len(made.steps) == 3
    value, apart = least(plain(form, count), made.tokens, form)
    assert value > SURE and apart < 2 / (count / 2) ** 0.5


def test_exact_drafts_keep_published_sampler_distribution() -> None:
    """The last step adds no noise: every set is the target's, one per pass."""
    form = replace(SETTINGS, noisy_end=False)
    made = drafted(form, SOME)
    assert [set(step.num_committed) for step in made.steps] == [{1}] * 3
    assert least(plain(form, SOME), made.tokens, form)[0] > SURE


# --- planted bugs


def never_over(p: Gaussian, q: Gaussian, due: Tensor, tries: RejectionDraws) -> Tensor:
    """Draw corrections from p, not from the excess of p over q."""
    keys = RejectionDraws(tries.keys.flatten())
    return p.from_normals(keys.draw(0, 1, p.mean.shape[-1])[0].view_as(p.mean))


def of_one_variance(self: Gaussian, x: Tensor) -> Tensor:
    """Return densities as if all variances were equal."""
    return -self.to_normals(x).square().sum(-1) / 2


class AllStand(CoupledVerifier):
    """Verifier with a bug: later sets are accepted whatever happened before them."""

    def verify(self, draft: Draft, distribution: Any, noise: Noise, t: Tensor) -> VerificationResult:
        *_, (sets, agrees) = coupled_trajectories(distribution, noise, draft)
        replaced = replace(draft, tokens=sets[:, :-1].float())
        return accept_to_node(torch.full_like(t, draft.size), replaced, sets.float()) if draft.size else super().verify(
            draft, distribution, noise, t
        )  # fmt: skip


def always(y: Tensor, q: Gaussian, p: Gaussian, due: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Accept every draft."""
    return y, torch.ones_like(due)


@pytest.mark.parametrize("bug", first(2, ["excess", "standing", "variance", "always"]))
def test_planted_bugs_are_detected(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "excess":
        monkeypatch.setattr(gaussian, "sample_residual", never_over)
    if bug == "variance":
        monkeypatch.setattr(Gaussian, "log_density", of_one_variance)
    if bug == "always":
        monkeypatch.setattr(coupled_module, "sample_maximal_coupling", always)
    verifier = AllStand() if bug == "standing" else CoupledVerifier()
    made = drafted(SETTINGS, SOME, 4 * FAR, verifier=verifier).tokens
    assert least(plain(SETTINGS, SOME), made, SETTINGS)[0] < 1e-7


# --- the loop


def test_target_as_drafter_saves_passes() -> None:
    model, form = toy_mar(), replace(SETTINGS, iterations=4)
    for depth, passes in ((1, 2), (2, 2), (3, 1), (8, 1)):
        assert len(draw(form.method(model, model, depth), form.prompts([0, 1], [3, 4])).steps) == passes


@pytest.mark.parametrize("verifier", [CoupledVerifier(), ContinuousSpeculative(1)], ids=["coupled", "cspd"])
def test_every_token_is_generated_once(verifier: Any) -> None:
    form = GenerationSettings(iterations=5, scale=1.2)
    made = draw(form.method(tiny_mar(), tiny_mar(seed=1), 2, verifier), form.prompts([1, 2, 3], [5, 6, 7]))
    assert made.tokens.isfinite().all() and bool((made.tokens != 0).all())
    outputs = torch.stack(made.batch.outputs())
    sizes = torch.tensor(MaskingSchedule.for_length(9, 5).sizes)
    assert (outputs != 0).sum(2).equal((4 * sizes).expand(3, -1))  # what a set lacks is 0


def test_exact_keeps_drafts_that_cspd_cannot() -> None:
    """The chain's last deviation is a hundredth of a token's, and cspd compares only last steps."""
    shares = []
    for verifier in (CoupledVerifier(), ContinuousSpeculative(0)):
        first = drafted(replace(SETTINGS, scale=1.3), 2000, NEAR, 1, verifier).steps[0]
        shares.append(sum(first.num_accepted) / len(first.num_accepted))
    assert shares[0] > 0.9 and shares[1] < 0.7


def test_rows_are_independent_and_seeds_reproduce() -> None:
    method = SETTINGS.method(toy_mar(), toy_mar(FAR))

    def tokens(seeds: list[int]) -> Tensor:
        return draw(method, SETTINGS.prompts([0] * len(seeds), seeds)).tokens

    together = tokens([11, 12, 13])
    assert together.equal(tokens([11, 12, 13]))
    torch.testing.assert_close(together, torch.cat([tokens([seed]) for seed in (11, 12, 13)]), atol=1e-3, rtol=1e-3)


def test_models_of_other_tokens_are_refused() -> None:
    with pytest.raises(UnsupportedMethod, match="another kind"):
        SETTINGS.method(toy_mar(), tiny_mar())


def test_overflowing_draft_is_rejected_without_ending_rows() -> None:
    """The encoder of later positions must not see it either."""
    method, prompts = SETTINGS.method(tiny_mar(), tiny_mar(seed=1)), SETTINGS.prompts([1, 2], [5, 6])
    honest = method.drafter.draft

    def draft(*given: Any) -> Draft:
        drafted = honest(*given)
        if drafted.size:
            drafted.tokens[0] = drafted.q.states[0, :, -1] = 3e38
        return drafted

    method.drafter.draft = draft  # type: ignore[method-assign]
    made = draw(method, prompts)
    assert made.tokens.isfinite().all() and made.tokens[0].abs().max() < 1e30
    assert made.batch.requests[0].stats.target_passes == 3
