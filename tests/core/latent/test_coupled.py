"""Coupled verification is exact: one step against its closed forms, and whole runs against the target's own law."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.decode import Method
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.gaussian import Gaussian, coupled
from polydraft.core.verify.tape import TapeVerifier

from ...decoding import run
from ..tables import noise
from .fits import GOOD, alike, joint, least, normal, unrelated
from .lab import lab, prompts
from .maps import LENGTH, RUNS, Bent, Line, MapTarget, drawn, reader, residuals

DRAWS, SIGMA = 100_000, 0.7
NEAR, FEWER = Line(shift=0.1), 10_000


def stepped(distance: float, size: int, step: Any = coupled) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The drafted and the returned draw, as standard normals around their own means, and where they are the same;
    means are `distance` deviations apart in a direction that no axis has, the last of what is returned."""
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
def test_a_step_is_the_targets_own_and_agrees_as_often_as_any_could(size, distance):
    z, x, kept, direction = stepped(distance, size)
    flat = x.flatten(0, 1)
    found = [normal(flat[:, c]) for c in range(size)] + [normal(flat @ direction)]
    found += [unrelated(flat[:, c], flat[:, d]) for c in range(size) for d in range(c)]
    assert least(found) > GOOD
    wanted = math.erfc(distance / 8**0.5)
    assert abs(float(kept.double().mean()) - wanted) < 4.5 * (wanted * (1 - wanted) / DRAWS) ** 0.5 + 1e-9
    across = z.flatten(0, 1) - (z.flatten(0, 1) @ direction)[:, None] * direction
    same = flat - (flat @ direction)[:, None] * direction
    torch.testing.assert_close(across, same, msg="only what is along the difference of the means is touched")


@pytest.mark.parametrize(
    ("chain", "least_tau", "most_tau", "runs"),
    [(Line(), LENGTH, LENGTH, FEWER), (NEAR, 1.6, 2.4, RUNS), (Line(shift=3.0), 1.0, 1.0, FEWER)],
    ids=["identical", "near", "far"],
)
def test_whole_runs_have_the_law_of_the_target(chain, least_tau, most_tau, runs):
    """Every latent given the one before, and every two in a row; the draft's quality changes τ alone."""
    target = MapTarget(Line())
    made = drawn(target, reader(target, chain), CoupledVerifier(), runs)
    assert joint(residuals(made.latents, target.chain)) > GOOD
    assert least_tau <= made.tau <= most_tau


def test_whole_runs_of_a_chain_that_is_not_straight():
    """Against plain decoding: every coordinate of every latent and their products."""
    target = MapTarget(Bent(2))
    plain = drawn(target, NoDrafter(), TapeVerifier(), FEWER)
    made = drawn(target, reader(target, Bent(2, shift=0.2)), CoupledVerifier(), FEWER)
    assert alike(plain.latents.flatten(1), made.latents.flatten(1)) > GOOD and 1.2 < made.tau < LENGTH - 1


def test_a_guided_target_of_layers_keeps_its_law():
    """As above, with a cache, guidance and a small model that drafts."""
    made, runs = lab(spread=1.0), 1500

    def latents(method: Method, first: int) -> tuple[Tensor, float]:
        found, taus = [], []
        for seed in range(first, first + runs, 500):
            outputs, tau = run(method, [replace(prompt, seed=one) for one in range(seed, seed + 500)])
            found += outputs
            taus.append(tau)
        return torch.stack(found).flatten(1), sum(taus) / len(taus)

    prompt = replace(prompts(1, True)[0], budget=2)
    plain, _ = latents(made.method(None, True), 0)
    drafted, tau = latents(made.method(made.chained()["lm"], True, CoupledVerifier()), runs)
    assert alike(plain, drafted) > GOOD and tau > 1.5
