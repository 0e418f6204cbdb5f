"""Steps of different standard deviations: residuals, and a coupling that keeps a step as often as any."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.continuous import gaussian
from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.continuous.denoising import LatentSampler
from polydraft.core.continuous.gaussian import Gaussian, draw_proposals, sample_maximal_coupling, sample_residual
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.sampling.noise import Noise
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..tables import noise
from .fits import BAD, GOOD, bonferroni, joint_pvalue, normal_pvalue, same_distribution_pvalue
from .maps import LinearChain, MapTarget, chain_drafter, generate_latents, standardised_residuals

ROWS = 20_000
MEANS_AND_STDS = [(0.0, 1.0, 0.7, 1.0), (0.0, 1.0, 0.2, 0.6), (0.5, 0.5, 0.0, 1.5)]


def learnt_gaussian(mean: float, deviation: float, rows: int = ROWS) -> Gaussian:
    """Return a learnt Gaussian of one coordinate."""
    return Gaussian(torch.full((rows, 1, 1), mean).double(), torch.full((rows, 1, 1), deviation).double())


def residual_cdf(parameters: tuple[float, float, float, float]) -> tuple[Any, Any, float]:
    """Return a grid, the distribution function of (p - q)+ on it, and its mass."""
    grid = np.linspace(-12, 12, 200_001)
    residual = np.maximum(stats.norm.pdf(grid, *parameters[:2]) - stats.norm.pdf(grid, *parameters[2:]), 0)
    return grid, np.cumsum(residual) / residual.sum(), float(residual.sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize("parameters", MEANS_AND_STDS)
def test_sample_residual_follows_the_residual(parameters):
    p, q, active = (
        learnt_gaussian(*parameters[:2]),
        learnt_gaussian(*parameters[2:]),
        torch.ones(ROWS, 1, dtype=torch.bool),
    )
    grid, cdf, mass = residual_cdf(parameters)
    draws = noise(ROWS, 1).rejection_draws(1)
    found = sample_residual(p, q, active, draws)
    assert stats.kstest(found.flatten().numpy(), lambda x: np.interp(x, grid, cdf)).pvalue > GOOD
    _, passed = draw_proposals(p, q, 0.0, draws.select((torch.arange(ROWS), torch.zeros(ROWS).long())), 0, 1)
    assert abs(float(passed.double().mean()) - mass) < 5 / math.sqrt(ROWS)  # one extra draw a step on average


def test_sample_residual_is_independent_of_other_rows():
    p, q, tries = learnt_gaussian(0.0, 1.0, 200), learnt_gaussian(0.1, 0.9, 200), noise(200, 1).rejection_draws(1)
    whole = sample_residual(p, q, torch.ones(200, 1, dtype=torch.bool), tries)
    due = torch.arange(200)[:, None] % 7 == 3
    assert torch.equal(sample_residual(p, q, due, tries)[due], whole[due])


def test_sample_residual_of_nan_terminates():
    p, q = learnt_gaussian(math.nan, 1.0, 3), learnt_gaussian(0.0, 1.0, 3)
    assert sample_residual(p, q, torch.ones(3, 1, dtype=torch.bool), noise(3, 1).rejection_draws(1)).isnan().all()


def coupled_draws() -> tuple[Gaussian, Tensor, Tensor]:
    """Return p of three coordinates, one without noise, and the coupling of draws with a q of other deviations."""
    rows, columns = 1000, 50
    shape = rows, columns, 3
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(shape, generator=generator).double()
    spread = torch.tensor([0.6, 1.3, 0.0]).double().expand(shape)
    p = Gaussian(mean, spread)
    q = Gaussian(mean + torch.tensor([0.2, -0.3, 0.0]), spread * torch.tensor([1.2, 0.8, 1.0]))
    y = q.from_normals(torch.randn(shape, generator=generator).double())
    x, kept = sample_maximal_coupling(y, q, p, torch.ones(rows, columns, dtype=torch.bool), noise(rows, 1))
    assert torch.equal(x[kept], y[kept]) and not (x == y).all(-1)[~kept].any()
    return p, x, kept


def step_pvalue() -> float:
    p, x, kept = coupled_draws()
    z = p.to_normals(x)
    assert not z[..., 2].any()  # the mean, where there is no noise
    return bonferroni(
        [normal_pvalue(z[..., 0]), normal_pvalue(z[..., 1]), normal_pvalue((z[..., 0] + z[..., 1]) / 2**0.5)]
    )


def test_coupling_with_other_stds_follows_the_target():
    assert step_pvalue() > GOOD
    kept = coupled_draws()[2]
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(200_000, 2, generator=generator).double() * torch.tensor([0.6, 1.3])
    normals = [torch.distributions.Normal(torch.tensor(m), torch.tensor(s)) for m, s in
            (([0.0, 0.0], [0.6, 1.3]), ([0.2, -0.3], [0.72, 1.04]))]  # fmt: skip
    ratio = normals[1].log_prob(z).sum(-1) - normals[0].log_prob(z).sum(-1)
    most = float(ratio.exp().clamp(max=1).mean())  # 1 - TV
    assert abs(float(kept.double().mean()) - most) < 0.01


@pytest.mark.parametrize("bug", ["a fresh draw", "one variance", "a cap"])
def test_wrong_residuals_are_caught(monkeypatch, bug):
    honest = gaussian.draw_proposals

    def first_of_all(*arguments: Any) -> tuple[Tensor, Tensor]:
        x, passed = honest(*arguments)
        return x, torch.ones_like(passed)

    def first_of_two(p: Gaussian, q: Gaussian, lift: float, tries: Any, first: int, width: int) -> Any:
        x, passed = honest(p, q, lift, tries, first, width)
        return x, passed | (first > 0)

    if bug == "one variance":
        monkeypatch.setattr(Gaussian, "log_density", lambda self, x: -self.to_normals(x).square().sum(-1) / 2)
    else:
        monkeypatch.setattr(gaussian, "draw_proposals", first_of_all if bug == "a fresh draw" else first_of_two)
    assert step_pvalue() < BAD


# whole runs


@dataclass(frozen=True)
class LearntChain(LinearChain):
    """Chain whose standard deviations depend on x and its conditioning, per coordinate."""

    loud: float = 0.5

    def mean_and_std(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, Any]:
        mean, level = super().mean_and_std(x, step, condition, scale)
        return mean, level * (self.loud * (x + condition[:, 0].flip(-1)).sin()).exp()


def test_runs_with_learnt_stds_follow_the_target():
    """Against plain decoding with shared noise, which dithers with any standard deviation."""
    target, runs = MapTarget(LearntChain()), 8000
    plain = generate_latents(target, NoDrafter(), SharedNoiseVerifier(), runs)
    made = generate_latents(target, chain_drafter(target, LearntChain(shift=0.1, loud=0.4)), CoupledVerifier(), runs)
    assert same_distribution_pvalue(plain.latents.flatten(1), made.latents.flatten(1)) > GOOD and 1.2 < made.tau < 3
    other = generate_latents(MapTarget(LearntChain(loud=0.3)), NoDrafter(), SharedNoiseVerifier(), runs)
    assert same_distribution_pvalue(plain.latents.flatten(1), other.latents.flatten(1)) < GOOD, (
        "other deviations would be caught"
    )


def test_drafter_with_other_fixed_stds_is_exact():
    target = MapTarget(LinearChain())
    drafter = chain_drafter(target, LinearChain(shift=0.1))
    drafter.sampler = LatentSampler(LinearChain(shift=0.1, levels=(3.0, 1.6, 0.9, 0.5, 0.2)))
    made = generate_latents(target, drafter, CoupledVerifier(), 5000)
    assert joint_pvalue(standardised_residuals(made.latents, target.chain)) > GOOD and made.tau > 1.1


def test_drafter_equal_to_target_is_always_accepted():
    target = MapTarget(LearntChain())
    assert generate_latents(target, chain_drafter(target, replace(LearntChain())), CoupledVerifier(), 500).tau == 4


def test_rejection_noise_reused_across_passes_is_caught(monkeypatch):
    """All steps and passes then use the same proposals."""
    target, runs = MapTarget(LearntChain()), 8000
    plain = generate_latents(target, NoDrafter(), SharedNoiseVerifier(), runs)
    monkeypatch.setattr(Noise, "next_key", lambda self: (self.segments * 31 + self.pass_index) * 1_000_003)
    made = generate_latents(target, chain_drafter(target, LearntChain(shift=0.3)), CoupledVerifier(), runs)
    assert same_distribution_pvalue(plain.latents.flatten(1), made.latents.flatten(1)) < BAD
