"""Steps whose deviations differ: what one law has over another, and a coupling that keeps a step as often as any."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.drafters.base import NoDrafter
from polydraft.core.latent import gaussian
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.gaussian import Gaussian, coupled, excess, proposed
from polydraft.core.latent.law import LatentSampler
from polydraft.core.law.noise import Noise
from polydraft.core.verify.tape import TapeVerifier

from ..tables import noise
from .fits import BAD, GOOD, alike, joint, least, normal
from .maps import Line, MapTarget, drawn, reader, residuals

ROWS = 20_000
LAWS = [(0.0, 1.0, 0.7, 1.0), (0.0, 1.0, 0.2, 0.6), (0.5, 0.5, 0.0, 1.5)]


def one(mean: float, deviation: float, rows: int = ROWS) -> Gaussian:
    """Learnt, of one coordinate."""
    return Gaussian(torch.full((rows, 1, 1), mean).double(), torch.full((rows, 1, 1), deviation).double())


def over(apart: tuple[float, float, float, float]) -> tuple[Any, Any, float]:
    """A grid, the distribution function of (p - q)+ on it, and its mass."""
    grid = np.linspace(-12, 12, 200_001)
    more = np.maximum(stats.norm.pdf(grid, *apart[:2]) - stats.norm.pdf(grid, *apart[2:]), 0)
    return grid, np.cumsum(more) / more.sum(), float(more.sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize("apart", LAWS)
def test_what_p_has_over_q(apart):
    p, q, due = one(*apart[:2]), one(*apart[2:]), torch.ones(ROWS, 1, dtype=torch.bool)
    grid, law, mass = over(apart)
    tries = noise(ROWS, 1).tries(1)
    found = excess(p, q, due, tries)
    assert stats.kstest(found.flatten().numpy(), lambda x: np.interp(x, grid, law)).pvalue > GOOD
    _, passed = proposed(p, q, 0.0, tries.at((torch.arange(ROWS), torch.zeros(ROWS).long())), 0, 1)
    assert abs(float(passed.double().mean()) - mass) < 5 / math.sqrt(ROWS)  # one extra draw a step on average


def test_what_is_drawn_does_not_depend_on_who_else_is_drawn_for():
    p, q, tries = one(0.0, 1.0, 200), one(0.1, 0.9, 200), noise(200, 1).tries(1)
    whole = excess(p, q, torch.ones(200, 1, dtype=torch.bool), tries)
    due = torch.arange(200)[:, None] % 7 == 3
    assert torch.equal(excess(p, q, due, tries)[due], whole[due])


def test_what_is_not_a_number_ends():
    p, q = one(math.nan, 1.0, 3), one(0.0, 1.0, 3)
    assert excess(p, q, torch.ones(3, 1, dtype=torch.bool), noise(3, 1).tries(1)).isnan().all()


def stepped() -> tuple[Gaussian, Tensor, Tensor]:
    """p of three coordinates, one without noise, and what a coupling with a q of other deviations made of draws."""
    rows, columns = 1000, 50
    shape = rows, columns, 3
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(shape, generator=generator).double()
    spread = torch.tensor([0.6, 1.3, 0.0]).double().expand(shape)
    p = Gaussian(mean, spread)
    q = Gaussian(mean + torch.tensor([0.2, -0.3, 0.0]), spread * torch.tensor([1.2, 0.8, 1.0]))
    y = q.drawn(torch.randn(shape, generator=generator).double())
    x, kept = coupled(y, q, p, torch.ones(rows, columns, dtype=torch.bool), noise(rows, 1))
    assert torch.equal(x[kept], y[kept]) and not (x == y).all(-1)[~kept].any()
    return p, x, kept


def step_fit() -> float:
    p, x, kept = stepped()
    z = p.normals(x)
    assert not z[..., 2].any()  # the mean, where there is no noise
    return least([normal(z[..., 0]), normal(z[..., 1]), normal((z[..., 0] + z[..., 1]) / 2**0.5)])


def test_a_step_of_other_deviations_is_the_targets_own():
    assert step_fit() > GOOD
    kept = stepped()[2]
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(200_000, 2, generator=generator).double() * torch.tensor([0.6, 1.3])
    laws = [torch.distributions.Normal(torch.tensor(m), torch.tensor(s)) for m, s in
            (([0.0, 0.0], [0.6, 1.3]), ([0.2, -0.3], [0.72, 1.04]))]  # fmt: skip
    ratio = laws[1].log_prob(z).sum(-1) - laws[0].log_prob(z).sum(-1)
    most = float(ratio.exp().clamp(max=1).mean())  # 1 - TV
    assert abs(float(kept.double().mean()) - most) < 0.01


@pytest.mark.parametrize("bug", ["a fresh draw", "one variance", "a cap"])
def test_wrong_steps_are_seen(monkeypatch, bug):
    honest = gaussian.proposed

    def first_of_all(*arguments: Any) -> tuple[Tensor, Tensor]:
        x, passed = honest(*arguments)
        return x, torch.ones_like(passed)

    def first_of_two(p: Gaussian, q: Gaussian, lift: float, tries: Any, first: int, width: int) -> Any:
        x, passed = honest(p, q, lift, tries, first, width)
        return x, passed | (first > 0)

    if bug == "one variance":
        monkeypatch.setattr(Gaussian, "log_density", lambda self, x: -self.normals(x).square().sum(-1) / 2)
    else:
        monkeypatch.setattr(gaussian, "proposed", first_of_all if bug == "a fresh draw" else first_of_two)
    assert step_fit() < BAD


# whole runs


@dataclass(frozen=True)
class Learnt(Line):
    """Deviations that depend on where the chain is and what it is told, a coordinate each."""

    loud: float = 0.5

    def moments(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, Any]:
        mean, level = super().moments(x, step, condition, scale)
        return mean, level * (self.loud * (x + condition[:, 0].flip(-1)).sin()).exp()


def test_whole_runs_of_learnt_deviations_keep_the_law():
    """Against plain drawing on the tape, which dithers whatever deviation there is."""
    target, runs = MapTarget(Learnt()), 8000
    plain = drawn(target, NoDrafter(), TapeVerifier(), runs)
    made = drawn(target, reader(target, Learnt(shift=0.1, loud=0.4)), CoupledVerifier(), runs)
    assert alike(plain.latents.flatten(1), made.latents.flatten(1)) > GOOD and 1.2 < made.tau < 3
    other = drawn(MapTarget(Learnt(loud=0.3)), NoDrafter(), TapeVerifier(), runs)
    assert alike(plain.latents.flatten(1), other.latents.flatten(1)) < GOOD, "other deviations would be seen"


def test_a_drafter_of_other_fixed_deviations_keeps_the_law():
    target = MapTarget(Line())
    drafter = reader(target, Line(shift=0.1))
    drafter.sampler = LatentSampler(Line(shift=0.1, levels=(3.0, 1.6, 0.9, 0.5, 0.2)))
    made = drawn(target, drafter, CoupledVerifier(), 5000)
    assert joint(residuals(made.latents, target.chain)) > GOOD and made.tau > 1.1


def test_a_drafter_that_is_the_target_is_always_kept():
    target = MapTarget(Learnt())
    assert drawn(target, reader(target, replace(Learnt())), CoupledVerifier(), 500).tau == 4


def test_passes_that_try_with_the_same_noise(monkeypatch):
    """Proposals of one draw for every step and pass."""
    target, runs = MapTarget(Learnt()), 8000
    plain = drawn(target, NoDrafter(), TapeVerifier(), runs)
    monkeypatch.setattr(Noise, "fresh", lambda self: (self.segments * 31 + self.passes) * 1_000_003)
    made = drawn(target, reader(target, Learnt(shift=0.3)), CoupledVerifier(), runs)
    assert alike(plain.latents.flatten(1), made.latents.flatten(1)) < BAD
