"""Coupled verification is exact: one step against its closed forms, whole runs against the target distribution."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.continuous.gaussian import Gaussian, sample_maximal_coupling
from polydraft.core.decode import Method
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ...decoding import run
from ..tables import noise
from .fits import GOOD, bonferroni, independence_pvalue, joint_pvalue, normal_pvalue, same_distribution_pvalue
from .lab import lab, prompts
from .maps import (
    LENGTH,
    RUNS,
    LinearChain,
    MapTarget,
    NonlinearChain,
    chain_drafter,
    generate_latents,
    standardised_residuals,
)

DRAWS, SIGMA = 100_000, 0.7
NEAR, FEWER = LinearChain(shift=0.1), 10_000


def coupled_step(
    distance: float, size: int, step: Any = sample_maximal_coupling
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return drafted and returned draws as standard normals around their own means, and where they are the same.

    Means are `distance` standard deviations apart in a direction that no axis has, which is returned last.
    """
    rows, columns = 1000, DRAWS // 1000
    direction = torch.linspace(1, 2, size).double() * (-1) ** torch.arange(size)
    mean = torch.linspace(-3, 3, columns)[:, None].double().expand(rows, columns, size)
    drafted = mean + SIGMA * distance * direction / direction.norm()
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(rows, columns, size, dtype=torch.double, generator=generator)
    y = drafted + SIGMA * z
    sigma = torch.full((rows, 1, 1), SIGMA).double()
    q, p = (Gaussian(middle, sigma, SIGMA) for middle in (drafted, mean))
    x, kept = step(y, q, p, torch.ones(rows, columns, dtype=torch.bool), noise(rows, 1))
    assert torch.equal(x[kept], y[kept])
    return z, (x - mean) / SIGMA, kept, direction / direction.norm()


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("distance", [0.0, 1e-9, 0.3, 1.0, 2.5, 9.0])
def test_coupled_step_is_exact_and_maximal(size, distance):
    z, x, kept, direction = coupled_step(distance, size)
    flat = x.flatten(0, 1)
    found = [normal_pvalue(flat[:, c]) for c in range(size)] + [normal_pvalue(flat @ direction)]
    found += [independence_pvalue(flat[:, c], flat[:, d]) for c in range(size) for d in range(c)]
    assert bonferroni(found) > GOOD
    wanted = math.erfc(distance / 8**0.5)
    assert abs(float(kept.double().mean()) - wanted) < 4.5 * (wanted * (1 - wanted) / DRAWS) ** 0.5 + 1e-9
    across = z.flatten(0, 1) - (z.flatten(0, 1) @ direction)[:, None] * direction
    same = flat - (flat @ direction)[:, None] * direction
    torch.testing.assert_close(across, same, msg="only what is along the difference of the means is touched")


@pytest.mark.parametrize(
    ("chain", "least_tau", "most_tau", "runs"),
    [(LinearChain(), LENGTH, LENGTH, FEWER), (NEAR, 1.6, 2.4, RUNS), (LinearChain(shift=3.0), 1.0, 1.0, FEWER)],
    ids=["identical", "near", "far"],
)
def test_runs_follow_the_target_distribution(chain, least_tau, most_tau, runs):
    """Every latent given the one before, and every two in a row; the draft's quality changes τ alone."""
    target = MapTarget(LinearChain())
    made = generate_latents(target, chain_drafter(target, chain), CoupledVerifier(), runs)
    assert joint_pvalue(standardised_residuals(made.latents, target.chain)) > GOOD
    assert least_tau <= made.tau <= most_tau


def test_runs_of_nonlinear_chain_match_plain_decoding():
    """Against plain decoding: every coordinate of every latent and their products."""
    target = MapTarget(NonlinearChain(2))
    plain = generate_latents(target, NoDrafter(), SharedNoiseVerifier(), FEWER)
    made = generate_latents(target, chain_drafter(target, NonlinearChain(2, shift=0.2)), CoupledVerifier(), FEWER)
    assert (
        same_distribution_pvalue(plain.latents.flatten(1), made.latents.flatten(1)) > GOOD
        and 1.2 < made.tau < LENGTH - 1
    )


def test_guided_model_follows_the_target_distribution():
    """With a KV cache, guidance and a small draft model."""
    made, runs = lab(spread=1.0), 1500

    def latents(method: Method, first: int) -> tuple[Tensor, float]:
        found, taus = [], []
        for seed in range(first, first + runs, 500):
            outputs, tau = run(method, [replace(prompt, seed=one) for one in range(seed, seed + 500)])
            found += outputs
            taus.append(tau)
        return torch.stack(found).flatten(1), sum(taus) / len(taus)

    prompt = replace(prompts(1, True)[0], max_new_tokens=2)
    plain, _ = latents(made.method(None, True), 0)
    drafted, tau = latents(made.method(made.chained()["lm"], True, CoupledVerifier()), runs)
    assert same_distribution_pvalue(plain, drafted) > GOOD and tau > 1.5
