"""MAR drafted and verified: the exact rule keeps the law of plain drawing, planted bugs break it, and CSpD is lossy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.modalities.image.families.mar import rules
from polydraft.modalities.image.families.mar import speculate as module
from polydraft.modalities.image.families.mar.chain import Chain
from polydraft.modalities.image.families.mar.generate import Plan, Settings, Trail, generate, run
from polydraft.modalities.image.families.mar.noise import Dice
from polydraft.modalities.image.families.mar.residual import Gaussian, residual
from polydraft.modalities.image.families.mar.rules import Rule, cspd, exact
from polydraft.modalities.image.families.mar.speculate import Progress, speculate

from .conftest import tiny_mar
from .toy_mar import toy_mar

MANY, SOME = 100_000, 10_000
SETTINGS = Settings(iterations=3, steps=4, scale=1.8, noisy_end=True)
FAR = 0.15  # of a drafter that often errs
NEAR = 0.003  # of one that hardly does
SURE = 1e-5  # p-values of hundreds of comparisons stay above


# --- Gaussians of unequal variance


def one(mean: float, deviation: float, count: int) -> Gaussian:
    return Gaussian(torch.full((count, 1), mean), torch.full((count, 1), 2 * math.log(deviation)))


@pytest.mark.parametrize("apart", [(0.0, 1.0, 0.7, 1.0), (0.0, 1.0, 0.2, 0.6), (0.5, 0.5, 0.0, 1.5)])
def test_residual_draws_what_p_has_over_q(apart: tuple[float, float, float, float]) -> None:
    p, q = one(*apart[:2], 20_000), one(*apart[2:], 20_000)
    dice = Dice(torch.arange(20_000), torch.zeros(20_000, dtype=torch.long))
    drawn, took = residual(p, q, torch.zeros(20_000, dtype=torch.float64), dice, first=1)
    grid = np.linspace(-12, 12, 200_001)
    over = np.maximum(stats.norm.pdf(grid, *apart[:2]) - stats.norm.pdf(grid, *apart[2:]), 0)
    mass = over.sum() * (grid[1] - grid[0])
    law = np.cumsum(over) / over.sum()
    assert stats.kstest(drawn[:, 0].double().numpy(), lambda x: np.interp(x, grid, law)).pvalue > 1e-4
    assert abs(took.double().mean() * mass - 1) < 5 / math.sqrt(20_000)  # one extra draw a step on average
    kept = dice.uniforms(0).log() < p.log_density(y := q.draw(dice.normals(-1, 1))) - q.log_density(y)
    assert abs(float(kept.double().mean()) - (1 - mass)) < 5 / math.sqrt(20_000)


def test_residual_gives_up_only_where_told() -> None:
    p, dice = one(0.0, 1.0, 500), Dice(torch.arange(500), torch.zeros(500, dtype=torch.long))
    near = one(1e-4, 1.0, 500)
    level = torch.zeros(500, dtype=torch.float64)
    assert residual(p, near, level, dice, 1, most=7)[1].max() == 7
    assert residual(p, p, level - 1, dice, 1, most=100)[1].equal(torch.full((500,), 100))
    assert (
        residual(one(math.nan, 1.0, 2), near.of(torch.arange(2)), level[:2], dice.of(torch.arange(2)), 1)[0]
        .isnan()
        .all()
    )


# --- the law


@cache
def plain(settings: Settings, count: int) -> Tensor:
    """Pictures of as many seeds."""
    model = toy_mar()
    return list(generate(model, [seed % 2 for seed in range(count)], list(range(count)), settings))[-1].tokens


def drafted(settings: Settings, count: int, rule: Rule = exact, off: float = FAR, ahead: int = 3) -> list[Progress]:
    """The same of other seeds; orders are the seeds' own, so all 24 of them are met."""
    seeds = list(range(count, 2 * count))
    return list(
        speculate(toy_mar(), toy_mar(off), [seed % 2 for seed in seeds], seeds, settings, rule=rule, ahead=ahead)
    )


def groups(settings: Settings, first: int, count: int) -> Tensor:
    """Which order and class each of the seeds has, `[count]`."""
    seeds = list(range(first, first + count))
    plan = Plan.of(toy_mar(), [seed % 2 for seed in seeds], seeds, settings)
    return (plan.turns * torch.tensor([27, 9, 3, 1])).sum(1) * 2 + plan.labels


def least(one: Tensor, other: Tensor, settings: Settings) -> tuple[float, float]:
    """The least p-value, and the largest distance, of Kolmogorov and Smirnov's test.

    Every coordinate, and products of neighbours, over all and within every order of sets and class.
    """

    def read(tokens: Tensor) -> Tensor:
        flat = tokens.flatten(1).double()
        return torch.cat([flat, flat * flat.roll(2, 1), flat[:, ::2] * flat[:, 1::2]], 1)

    count = len(one)
    mine, theirs, values = groups(settings, 0, count), groups(settings, count, count), []
    one, other = read(one), read(other)
    for group in mine.unique():
        for column in range(one.shape[1]):
            parts = one[mine == group, column].numpy(), other[theirs == group, column].numpy()
            values.append(stats.ks_2samp(*parts, method="asymp").pvalue)
    whole = [stats.ks_2samp(one[:, column].numpy(), other[:, column].numpy()) for column in range(one.shape[1])]
    return min([*values, *(test.pvalue for test in whole)]), max(test.statistic for test in whole)


@pytest.mark.parametrize(("scale", "count"), [(1.0, MANY), (1.8, SOME)])
def test_exact_drafts_keep_the_law(scale: float, count: int) -> None:
    settings = replace(SETTINGS, scale=scale)
    steps = drafted(settings, count)
    assert len(groups(settings, 0, count).unique()) == 2 * 12  # of 24 orders, two differ within the last set alone
    drawn = [float((steps[0].sets == sets).double().mean()) for sets in (1, 2, 3)]
    assert min(drawn) > 0.1 and len(steps) == 3
    value, apart = least(plain(settings, count), steps[-1].tokens, settings)
    assert value > SURE and apart < 2 / math.sqrt(count / 2)


def test_exact_drafts_keep_the_law_of_the_published_sampler() -> None:
    """Whose last step is silent: every set is the target's, and one a pass is drawn."""
    settings = replace(SETTINGS, noisy_end=False)
    steps = drafted(settings, SOME)
    assert [step.sets.unique().tolist() for step in steps] == [[1], [2], [3]]
    assert least(plain(settings, SOME), steps[-1].tokens, settings)[0] > SURE


def never_over(
    p: Gaussian, q: Gaussian, lift: Tensor, dice: Dice, first: int, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Corrections are draws of p, not of what p has over q."""
    return p.draw(dice.normals(first, p.mean.shape[-1])), torch.ones(len(lift))


def all_stand(rows: Tensor, depths: Tensor, pairs: Tensor, agreed: Tensor) -> Tensor:
    """Later sets stand whatever happened before them."""
    return torch.ones(len(rows), dtype=torch.bool)


def of_one_variance(self: Gaussian, x: Tensor) -> Tensor:
    """Densities as if all variances were alike."""
    return -0.5 * ((x - self.mean).double().square() * (-self.log_variance.double()).exp()).sum(-1)


def always(*arguments: object) -> tuple[Tensor, Tensor]:
    """Every draft is kept."""
    draft = arguments[3]
    assert isinstance(draft, Trail)
    return draft.tokens, torch.ones(len(draft.tokens), dtype=torch.bool)


@pytest.mark.parametrize("bug", ["residual", "standing", "variance", "always"])
def test_planted_bugs_are_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "residual":
        monkeypatch.setattr(rules, "residual", never_over)
    if bug == "standing":
        monkeypatch.setattr(module, "standing", all_stand)
    if bug == "variance":
        monkeypatch.setattr(Gaussian, "log_density", of_one_variance)
    made = drafted(SETTINGS, SOME, always if bug == "always" else exact, off=4 * FAR)[-1].tokens
    assert least(plain(SETTINGS, SOME), made, SETTINGS)[0] < 1e-9


# --- the loop


def test_a_drafter_that_is_the_target_saves_passes() -> None:
    model = toy_mar()
    settings = replace(SETTINGS, iterations=4)
    for ahead, passes in ((1, 4), (2, 2), (3, 2), (4, 1), (9, 1)):
        steps = list(speculate(model, model, [0, 1], [3, 4], settings, ahead=ahead))
        assert steps[-1].passes == passes and steps[-1].sets.tolist() == [4, 4]


@pytest.mark.parametrize("rule", [exact, cspd])
def test_sets_once_drawn_stay(rule: Rule) -> None:
    target, drafter = tiny_mar(), tiny_mar(seed=1)
    settings = Settings(iterations=5, steps=4, scale=1.2, noisy_end=True)
    steps = list(speculate(target, drafter, [1, 2, 3], [5, 6, 7], settings, ahead=3, rule=rule))
    for before, after in pairwise(steps):
        assert bool((after.sets >= before.sets).all()) and after.passes == before.passes + 1
        known = before.known[..., None]
        assert (after.tokens * known).nan_to_num().equal((before.tokens * known).nan_to_num())
    assert steps[-1].sets.tolist() == [5, 5, 5] and bool(steps[-1].known.all())


def test_rows_do_not_touch_and_seeds_reproduce() -> None:
    def tokens(seeds: list[int]) -> Tensor:
        return list(speculate(toy_mar(), toy_mar(FAR), [0] * len(seeds), seeds, SETTINGS, ahead=2))[-1].tokens

    together = tokens([11, 12, 13])
    assert together.equal(tokens([11, 12, 13]))
    torch.testing.assert_close(together, torch.cat([tokens([seed]) for seed in (11, 12, 13)]), atol=1e-3, rtol=1e-3)


def test_standing_ends_at_the_first_set_that_disagrees() -> None:
    rows = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    depths = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    pairs = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6])
    agreed = torch.tensor([True, True, False, True, False, True, True, True])
    assert module.standing(rows, depths, pairs, agreed).tolist() == [True, True, True, True, False, True, False]


def test_models_of_other_tokens_are_refused() -> None:
    with pytest.raises(UnsupportedMethod, match="another kind"):
        next(speculate(toy_mar(), tiny_mar(), [0], [0], SETTINGS))
    with pytest.raises(InvalidArgument, match="drafts nothing"):
        next(speculate(toy_mar(), toy_mar(), [0], [0], SETTINGS, ahead=0))


# --- the published rule


@dataclass(frozen=True)
class Judged:
    """Drafted tokens and what a rule made of them, with what the formula needs, all float64.

    lift: S of every token. p, q: mean and deviation of the two last steps.
    """

    draft: Tensor
    tokens: Tensor
    agreed: Tensor
    lift: Tensor
    p: tuple[Tensor, Tensor]
    q: tuple[Tensor, Tensor]

    @property
    def ratios(self) -> Tensor:
        """p(x) / q(x) of the drafted tokens."""
        p, q = (torch.distributions.Normal(*part).log_prob(self.draft).sum(-1) for part in (self.p, self.q))
        return (p - q).exp()

    @property
    def toward(self) -> Tensor:
        """The last step's noise in its deviations, towards the draft's mean: Gaussian if the law is the target's."""
        way = self.q[0] - self.p[0]
        return ((self.tokens - self.p[0]) / self.p[1] * way).sum(-1) / way.norm(dim=-1)


class LoudEnd(Chain):
    """A chain whose last step has 30 times the deviation, so that last steps of different chains overlap."""

    def moments(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = super().moments(x, step, condition, scale)
        return mean, log_variance + (2 * math.log(30) if step == self.steps - 1 else 0)


def judged(rule: Rule, kind: type[Chain] = LoudEnd, off: float = FAR / 2, count: int = 40_000) -> Judged:
    chain, cheap = (kind(toy_mar(far).net, 4, noisy_end=True) for far in (0.0, off))
    z, scales = torch.randn(count, 2, 8, generator=torch.Generator().manual_seed(0)), torch.full((count,), 1.3)
    dice = Dice(torch.arange(count), torch.zeros(count, dtype=torch.long))
    draft, condition = run(cheap, cheap.condition(z), scales, dice), chain.condition(z)
    tokens, agreed = rule(chain, condition, scales, draft, dice, replace(dice, stream=1))
    x, lift = draft.states[0].double(), torch.ones(count, dtype=torch.float64)
    for step in range(4):  # the target's chain with the noise that the draft's states show
        mean, log_variance = (part.double() for part in chain.moments(x.float(), step, condition, scales))
        deviation, own = ((0.5 * part.double()).exp() for part in (log_variance, draft.log_variances[step]))
        if step < 3:
            x = mean + deviation * (draft.states[step + 1] - draft.means[step]) / own
            lift = lift * own.prod(-1) / deviation.prod(-1)
    last = mean, deviation
    return Judged(draft.tokens.double(), tokens.double(), agreed, lift, last, (draft.means[3].double(), own))


def test_cspd_keeps_as_often_as_its_formula_says() -> None:
    found = judged(cspd)
    chance = (found.lift * found.ratios).clamp(max=1)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.999), (0.999, 1.1)):
        some = (chance >= low) & (chance < high)
        wanted, kept, count = float(chance[some].mean()), float(found.agreed[some].double().mean()), int(some.sum())
        assert count > 200 and abs(wanted - kept) < 5 * math.sqrt(max(wanted * (1 - wanted), 1 / count) / count)
    assert found.tokens[found.agreed].equal(found.draft[found.agreed])
    assert not (found.tokens == found.draft).all(-1)[~found.agreed].any()


def test_cspd_is_lossy_by_its_factor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step's noise is no longer Gaussian. Were S 1, it would be: a coupling, of chains with the same noise."""

    def value(found: Judged) -> float:
        values = [stats.kstest(found.toward[some].numpy(), "norm").pvalue for some in (found.lift > 1, found.lift < 1)]
        return min(values)

    assert value(judged(cspd)) < 1e-9
    monkeypatch.setattr(rules, "spread", lambda q, p: torch.zeros(len(q), dtype=torch.float64))
    assert value(judged(cspd)) > 1e-4


def test_exact_keeps_drafts_that_cspd_cannot() -> None:
    """The published chain's last deviation is a hundredth of a token's, and cspd compares nothing but last steps."""
    exactly, published = (judged(rule, Chain, NEAR).agreed.double().mean() for rule in (exact, cspd))
    assert exactly > 0.95 and published < 0.7


def test_cspd_wants_a_density_and_may_be_prefilled() -> None:
    with pytest.raises(InvalidArgument, match="noisy_end"):
        next(speculate(toy_mar(), toy_mar(), [0], [0], replace(SETTINGS, noisy_end=False), rule=cspd))
    model, settings = toy_mar(), replace(SETTINGS, iterations=4)
    steps = list(speculate(model, model, [0, 1], [3, 4], settings, ahead=3, rule=cspd, prefill=2))
    assert [step.sets.tolist() for step in steps] == [[1, 1], [2, 2], [4, 4]]
