"""CSpD as published: acceptance follows its formula, and it is lossy by its factor Σ alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.continuous import published
from polydraft.core.continuous.denoising import LatentDistribution
from polydraft.core.continuous.published import ContinuousSpeculative
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..tables import noise
from .fits import GOOD, joint_pvalue, same_distribution_pvalue
from .maps import LinearChain, MapTarget, chain_drafter, generate_latents, standardised_residuals
from .test_gaussian import LearntChain

ROWS = 40_000


@dataclass(frozen=True)
class VerifiedLatents:
    """One drafted latent per row and its verification, with the terms of the formula, all float64."""

    draft: Tensor
    latents: Tensor
    kept: Tensor
    sigma: Tensor  # Σ of every latent
    p: tuple[Tensor, Tensor]  # mean and standard deviation of the target's last step
    q: tuple[Tensor, Tensor]  # and of the draft's

    @property
    def ratios(self) -> Tensor:
        """p(x) / q(x) of the drafted latents."""
        p, q = (torch.distributions.Normal(*part).log_prob(self.draft).sum(-1) for part in (self.p, self.q))
        return (p - q).exp()

    @property
    def toward(self) -> Tensor:
        """Noise of the last step towards the draft's mean, standardised: Gaussian if the method is exact."""
        way = self.q[0] - self.p[0]
        return ((self.latents - self.p[0]) / self.p[1] * way).sum(-1) / way.norm(dim=-1)


def verify_latents(chain: Any, cheap: Any) -> VerifiedLatents:
    given = torch.randn(ROWS, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    ones, rows = torch.ones(ROWS), noise(ROWS, 1)
    mine, theirs = (LatentDistribution(one, given, ones, ones) for one in (chain, cheap))
    trajectory = theirs.sample_trajectory(theirs.draw_normals(rows))
    distribution = LatentDistribution(chain, given.expand(-1, 2, -1, -1), ones, ones)
    draft = Draft.from_chain(trajectory.latents, q=trajectory)
    result = ContinuousSpeculative(0).verify(draft, distribution, rows, torch.zeros(ROWS).long())
    x, sigma = trajectory.states[:, :, 0], torch.ones(ROWS, 1, dtype=torch.float64)
    for step, draft_step in enumerate(
        trajectory.step_distributions
    ):  # the target's chain with the noise that the draft's states show
        p = mine.step_distribution(x, step)
        if step < mine.num_steps - 1:
            x = p.mean + p.std * (trajectory.states[:, :, step + 1] - draft_step.mean) / draft_step.std
            sigma = sigma * (draft_step.std / p.std).expand_as(x).prod(-1)
    last = [
        (distribution.mean[:, 0], distribution.std.expand_as(distribution.mean)[:, 0])
        for distribution in (p, trajectory.step_distributions[-1])
    ]
    made = result.tokens[:, 0].double()
    return VerifiedLatents(
        trajectory.latents[:, 0].double(), made, result.num_accepted > 0, sigma[:, 0], last[0], last[1]
    )


@pytest.mark.parametrize(
    ("chain", "cheap"),
    [(LearntChain(), LearntChain(shift=0.2, loud=0.4)), (LinearChain(), LinearChain(shift=0.2))],
    ids=["learnt", "fixed"],
)
def test_acceptance_rate_matches_the_formula(chain, cheap):
    found = verify_latents(chain, cheap)
    chance = (found.sigma * found.ratios).clamp(max=1)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.999), (0.999, 1.1)):
        some = (chance >= low) & (chance < high)
        wanted, kept, count = float(chance[some].mean()), float(found.kept[some].double().mean()), int(some.sum())
        assert count > 200 and abs(wanted - kept) < 5 * math.sqrt(max(wanted * (1 - wanted), 1 / count) / count)
    assert found.latents[found.kept].equal(found.draft[found.kept])
    assert not (found.latents == found.draft).all(-1)[~found.kept].any()


def test_one_step_is_lossy_by_sigma_only(monkeypatch):
    """The last step's noise is no longer Gaussian. With Σ = 1 it would be: a coupling of chains with the same noise."""

    def value() -> float:
        found = verify_latents(LearntChain(), LearntChain(shift=0.2, loud=0.3))
        values = [
            stats.kstest(found.toward[some].numpy(), "norm").pvalue for some in (found.sigma > 1, found.sigma < 1)
        ]
        return min(values)

    assert value() < 1e-9
    monkeypatch.setattr(published, "log_sigma_ratio", lambda q, p: torch.zeros(ROWS, 1, dtype=torch.float64))
    assert value() > 1e-4


def test_runs_are_exact_for_fixed_noise_only():
    """With Σ = 1 the target's x1 is a draw of its own, and the rest is a coupling of two last steps."""
    target = MapTarget(LinearChain())
    made = generate_latents(target, chain_drafter(target, LinearChain(shift=0.3)), ContinuousSpeculative(0), 5000)
    assert joint_pvalue(standardised_residuals(made.latents, target.chain)) > GOOD and made.tau > 1.05
    target, runs = MapTarget(LearntChain()), 8000
    plain = generate_latents(target, NoDrafter(), SharedNoiseVerifier(), runs)
    made = generate_latents(
        target, chain_drafter(target, LearntChain(shift=0.2, loud=0.1)), ContinuousSpeculative(0), runs
    )
    assert same_distribution_pvalue(plain.latents.flatten(1), made.latents.flatten(1)) < 1e-6 and made.tau > 1.05


def test_prefill_latents_are_not_drafted():
    target = MapTarget(LinearChain())
    assert generate_latents(
        target, chain_drafter(target, LinearChain()), ContinuousSpeculative(2), 200
    ).tau == pytest.approx(4 / 3)
    assert generate_latents(target, chain_drafter(target, LinearChain()), ContinuousSpeculative(0), 200).tau == 4
