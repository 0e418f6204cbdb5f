"""CSpD as published: it keeps as often as its formula says, and is lossy by its factor alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.latent import published
from polydraft.core.latent.law import LatentLaw
from polydraft.core.latent.published import ContinuousSpeculative
from polydraft.core.verify.tape import TapeVerifier

from ..tables import noise
from .fits import GOOD, alike, joint
from .maps import Line, MapTarget, drawn, reader, residuals
from .test_gaussian import Learnt

ROWS = 40_000


@dataclass(frozen=True)
class Judged:
    """One drafted latent a row and what became of it, with what the formula needs, all float64.

    lift: Σ of every latent. p, q: mean and deviation of the two last steps.
    """

    draft: Tensor
    latents: Tensor
    kept: Tensor
    lift: Tensor
    p: tuple[Tensor, Tensor]
    q: tuple[Tensor, Tensor]

    @property
    def ratios(self) -> Tensor:
        """p(x) / q(x) of the drafted latents."""
        p, q = (torch.distributions.Normal(*part).log_prob(self.draft).sum(-1) for part in (self.p, self.q))
        return (p - q).exp()

    @property
    def toward(self) -> Tensor:
        """The last step's noise in its deviations, towards the draft's mean: Gaussian if the law is the target's."""
        way = self.q[0] - self.p[0]
        return ((self.latents - self.p[0]) / self.p[1] * way).sum(-1) / way.norm(dim=-1)


def judged(chain: Any, cheap: Any) -> Judged:
    given = torch.randn(ROWS, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    ones, rows = torch.ones(ROWS), noise(ROWS, 1)
    mine, theirs = (LatentLaw(one, given, ones, ones) for one in (chain, cheap))
    walk = theirs.walked(theirs.normals(rows))
    law = LatentLaw(chain, given.expand(-1, 2, -1, -1), ones, ones)
    draft = Draft.of_chain(walk.latents, q=walk)
    verdict = ContinuousSpeculative(0).verify(draft, law, rows, torch.zeros(ROWS).long())
    x, lift = walk.states[:, :, 0], torch.ones(ROWS, 1, dtype=torch.float64)
    for step, own in enumerate(walk.steps):  # the target's chain with the noise that the draft's states show
        p = mine.step(x, step)
        if step < mine.steps - 1:
            x = p.mean + p.deviation * (walk.states[:, :, step + 1] - own.mean) / own.deviation
            lift = lift * (own.deviation / p.deviation).expand_as(x).prod(-1)
    last = [(law.mean[:, 0], law.deviation.expand_as(law.mean)[:, 0]) for law in (p, walk.steps[-1])]
    made = verdict.tokens[:, 0].double()
    return Judged(walk.latents[:, 0].double(), made, verdict.accepted > 0, lift[:, 0], last[0], last[1])


@pytest.mark.parametrize(
    ("chain", "cheap"), [(Learnt(), Learnt(shift=0.2, loud=0.4)), (Line(), Line(shift=0.2))], ids=["learnt", "fixed"]
)
def test_it_keeps_as_often_as_its_formula_says(chain, cheap):
    found = judged(chain, cheap)
    chance = (found.lift * found.ratios).clamp(max=1)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.999), (0.999, 1.1)):
        some = (chance >= low) & (chance < high)
        wanted, kept, count = float(chance[some].mean()), float(found.kept[some].double().mean()), int(some.sum())
        assert count > 200 and abs(wanted - kept) < 5 * math.sqrt(max(wanted * (1 - wanted), 1 / count) / count)
    assert found.latents[found.kept].equal(found.draft[found.kept])
    assert not (found.latents == found.draft).all(-1)[~found.kept].any()


def test_one_step_is_lossy_by_its_factor_alone(monkeypatch):
    """The last step's noise is no longer Gaussian. Were Σ 1, it would be: a coupling, of chains with the same noise."""

    def value() -> float:
        found = judged(Learnt(), Learnt(shift=0.2, loud=0.3))
        values = [stats.kstest(found.toward[some].numpy(), "norm").pvalue for some in (found.lift > 1, found.lift < 1)]
        return min(values)

    assert value() < 1e-9
    monkeypatch.setattr(published, "lifted", lambda q, p: torch.zeros(ROWS, 1, dtype=torch.float64))
    assert value() > 1e-4


def test_whole_runs_of_fixed_noise_keep_the_law_and_those_of_learnt_noise_do_not():
    """Where Σ is 1 the target's x1 is a draw of its own, and the rest is a coupling of two last steps."""
    target = MapTarget(Line())
    made = drawn(target, reader(target, Line(shift=0.3)), ContinuousSpeculative(0), 5000)
    assert joint(residuals(made.latents, target.chain)) > GOOD and made.tau > 1.05
    target, runs = MapTarget(Learnt()), 8000
    plain = drawn(target, NoDrafter(), TapeVerifier(), runs)
    made = drawn(target, reader(target, Learnt(shift=0.2, loud=0.1)), ContinuousSpeculative(0), runs)
    assert alike(plain.latents.flatten(1), made.latents.flatten(1)) < 1e-6 and made.tau > 1.05


def test_the_first_latents_are_the_targets_alone():
    target = MapTarget(Line())
    assert drawn(target, reader(target, Line()), ContinuousSpeculative(2), 200).tau == pytest.approx(4 / 3)
    assert drawn(target, reader(target, Line()), ContinuousSpeculative(0), 200).tau == 4
