"""Bugs of latents that look plausible and must be caught: each is planted, and what the other files look at rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.latent import coupled as coupled_module
from polydraft.core.latent.coupled import CoupledVerifier, beside
from polydraft.core.latent.gaussian import Gaussian, coupled
from polydraft.core.latent.law import LatentLaw, LatentSampler, Walk
from polydraft.core.law.noise import Noise
from polydraft.core.verdict import Verdict, follow
from polydraft.core.verify import tape as tape_module
from polydraft.core.verify.tape import TapeVerifier

from ...decoding import run, same
from .fits import BAD, GOOD, joint, normal
from .lab import lab, prompts
from .maps import Line, MapTarget, Still, drawn, reader, residuals
from .test_coupled import stepped
from .test_tape import law, tape

RUNS = 5000
TARGET = MapTarget(Line())
NEAR = Line(shift=0.1)


def fit(drafter: Any = None, verifier: Any = None, target: MapTarget = TARGET) -> float:
    """How well whole runs fit the target's own law."""
    made = drawn(target, drafter or reader(target, NEAR), verifier or CoupledVerifier(), RUNS)
    return joint(residuals(made.latents, target.chain))


def plain_fit() -> float:
    return fit(NoDrafter(), TapeVerifier())


def chain_fit() -> float:
    """How well the end of one chain fits, at many places of the tape."""
    chain, rows, columns = Line(), 100, 500
    one = law(chain, rows, columns)
    heat = torch.ones(rows, columns).double()
    mean, deviation = chain.end(one.given[:, :, 0].double(), heat)
    found = one.drawn(tape(rows).at(torch.arange(columns).expand(rows, -1)))
    return joint(((found - mean) / deviation[..., None]).flatten(0, 1)[:, None])


def identical(name: str, plant: Callable[[], None] = lambda: None) -> bool:
    """Plain decoding first, then the bug, then the drafter on the same prompts."""
    made, rows = lab(spread=0.3), prompts(5)
    plain, _ = run(made.method(), rows)
    plant()
    return same(run(made.method(made.drafters(dict(enumerate(plain)))[name]), rows)[0], plain)


def test_nothing_is_rejected_where_nothing_is_planted():
    assert fit() > GOOD and plain_fit() > GOOD
    assert identical("oracle") and identical("jacobi")


# the tape


@pytest.mark.parametrize("name", ["oracle", "jacobi", "lm"])
def test_noise_tied_to_the_window_slot(monkeypatch, name):
    """Drafted latents differ from plain ones, whose own noise repeats."""
    honest = Noise.latent

    def plant() -> None:
        monkeypatch.setattr(Noise, "latent", lambda self, t, *sizes: honest(self, t - t[:, :1], *sizes))

    assert not identical(name, plant)
    assert plain_fit() < BAD


def tampered(monkeypatch, change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]) -> None:
    honest = Noise.latent
    monkeypatch.setattr(Noise, "latent", lambda self, *sizes: change(*honest(self, *sizes)))


@pytest.mark.parametrize(
    "change",
    [
        lambda begin, widths, offsets: (begin, widths[:1].expand_as(widths), offsets),
        lambda begin, widths, offsets: (begin, widths, offsets[:1].expand_as(offsets)),
        lambda begin, widths, offsets: (begin, widths[..., :1].expand_as(widths), offsets),
        lambda begin, widths, offsets: (begin, torch.full_like(widths, 3**0.5), offsets),
    ],
    ids=["half-widths of all steps", "offsets of all steps", "half-widths of all coordinates", "boxes of one width"],
)
def test_noise_that_is_used_twice_or_not_drawn(monkeypatch, change):
    """Drafted and plain decoding agree with each other even so; the law does not survive."""
    assert chain_fit() > GOOD
    tampered(monkeypatch, change)
    assert identical("jacobi") and chain_fit() < BAD


def test_a_temperature_that_no_step_hears(monkeypatch):
    honest = LatentLaw.step
    monkeypatch.setattr(LatentLaw, "step", lambda self, *at: honest(replace(self, temperature=torch.ones(1)), *at))
    assert plain_fit() < BAD


def test_latents_that_are_nearly_equal_taken_for_equal(monkeypatch):
    """What is committed is then the draft's, not the target's own."""
    honest = tape_module.same

    def plant() -> None:
        def close(these: Tensor, those: Tensor) -> Tensor:
            return honest(these, those) | ((these - those).abs().amax(-1) < 1e-5)

        monkeypatch.setattr(tape_module, "same", close)

    assert not identical("oracle", plant)


def test_drafts_kept_behind_a_rejected_one_on_the_tape(monkeypatch):
    def plant() -> None:
        def walk(draft: Draft, choices: Tensor, agrees: Tensor) -> Verdict:
            return follow(agrees.sum(1), draft, choices)

        monkeypatch.setattr(tape_module, "walk", walk)

    assert not identical("early exit", plant)


# the coupling, one step


def ratio(z: Tensor, apart: Tensor) -> Tensor:
    """log p/q of the draft."""
    return -(z * apart).sum(-1) - apart.square().sum(-1) / 2


def reflected(z: Tensor, apart: Tensor, noise: Noise) -> Tensor:
    return z - 2 * (z * apart).sum(-1, keepdim=True) / apart.square().sum(-1, keepdim=True) * apart


def step_of(log_ratio: Callable[..., Tensor] = ratio, parted: Callable[..., Tensor] = reflected) -> Callable[..., Any]:
    """A step of the coupling with another rule: when a draft is kept, and what noise is drawn where it is not."""

    def step(y: Tensor, q: Gaussian, p: Gaussian, due: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        z, apart = q.normals(y), (q.mean - p.mean) / p.deviation
        kept = noise.uniform(y.shape[1]).log() < log_ratio(z, apart)
        return torch.where(kept[..., None], y, p.drawn(parted(z, apart, noise))), kept

    return step


def about_an_axis(z: Tensor, apart: Tensor, noise: Noise) -> Tensor:
    return torch.cat([-z[..., :1], z[..., 1:]], -1)


WRONG_STEPS = {
    "a normal of another length": step_of(parted=lambda z, apart, noise: z - 2 * (z * apart).sum(-1, True) * apart / 2),
    "the plane of an axis": step_of(parted=about_an_axis),
    "the draft's noise as it is": step_of(parted=lambda z, apart, noise: z),
    "a fresh draw": step_of(parted=lambda z, apart, noise: noise.normal(*z.shape[1:])),
    "a ratio turned round": step_of(lambda z, apart: ratio(-z, apart)),
    "means half as far apart": step_of(lambda z, apart: ratio(z, apart / 2)),
}


def step_fit(step: Callable[..., Any]) -> float:
    _, x, _, direction = stepped(1.0, 3, step)
    return min(normal(x.flatten(0, 1) @ direction), *(normal(x[..., c]) for c in range(3)))


@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_a_wrong_step(wrong):
    assert step_fit(step_of()) > GOOD
    assert step_fit(WRONG_STEPS[wrong]) < BAD


@pytest.mark.parametrize("wrong", ["a normal of another length", "a fresh draw", "a ratio turned round"])
def test_a_wrong_step_shows_in_whole_runs(monkeypatch, wrong):
    monkeypatch.setattr(coupled_module, "coupled", WRONG_STEPS[wrong])
    assert fit() < BAD


# the coupling, whole runs


class Keeping(CoupledVerifier):
    """Counts what agrees, wherever it stands."""

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        *_, (latents, agrees) = beside(law, noise, draft)
        return follow(agrees.sum(1), draft, latents.float())


class Nearly(CoupledVerifier):
    """Emits the target's own latent, and keeps the drafts behind it if the draft's was near: they have seen another."""

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        *_, (latents, agrees) = beside(law, noise, draft)
        own, latents = latents[:, :-1].float(), latents.float()
        near = agrees | ((own - draft.tokens).abs().amax(-1) < 0.5)
        said = replace(draft, tokens=torch.where(near[..., None], own, 0))
        return follow(near.cumprod(1).sum(1), said, latents)


@pytest.mark.parametrize("verifier", [Keeping(), Nearly()], ids=["behind a rejected one", "behind a near one"])
def test_drafts_kept_that_have_seen_other_latents(verifier):
    assert fit(verifier=verifier) < BAD


def test_a_draft_kept_through_a_last_step_without_noise(monkeypatch):
    """The chains agreed before it, and their ends are not the same: the draft's end is not the target's."""
    target = MapTarget(Still())
    drafter = reader(target, Still(shift=0.1))

    assert fit(drafter, target=target) > GOOD

    def blind(y: Tensor, q: Gaussian, p: Gaussian, due: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        drawn, kept = coupled(y, q, p, due, noise)
        return (drawn, kept) if p.noisy else (y, torch.ones_like(kept))

    monkeypatch.setattr(coupled_module, "coupled", blind)
    assert fit(drafter, target=target) < BAD


def test_other_deviations_taken_for_the_targets(monkeypatch):
    """Reflection asks for equal ones; without it such a drafter keeps the law (`test_coupled`)."""
    drafter = reader(TARGET, NEAR)
    drafter.sampler = LatentSampler(Line(shift=0.1, levels=(3.0, 1.6, 0.9, 0.5, 0.2)))
    monkeypatch.setattr(coupled_module, "coupled", step_of())
    assert fit(drafter) < BAD


def test_a_draft_that_was_chosen_among_several(monkeypatch):
    """Of two walks the one that ends nearer to its mean: no longer a draw of the law that it is said to be of."""
    honest = LatentLaw.walked

    def better(self: LatentLaw, normals: Tensor) -> Walk:
        first, second = honest(self, normals), honest(self, normals.roll(1, 1))
        near = [(walk.states[:, :, -1] - walk.steps[-1].mean).square().sum(-1) for walk in (first, second)]
        pick = (near[0] < near[1])[..., None]
        steps = [
            replace(one, mean=torch.where(pick, one.mean, other.mean))
            for one, other in zip(first.steps, second.steps, strict=True)
        ]
        return Walk(torch.where(pick[..., None], first.states, second.states), steps)

    drafter = reader(TARGET, NEAR)
    assert fit(drafter) > GOOD
    honest_draft = drafter.draft

    def draft(*args: Any) -> Draft:
        with monkeypatch.context() as planted:
            planted.setattr(LatentLaw, "walked", better)
            return honest_draft(*args)

    drafter.draft = draft  # type: ignore[method-assign]
    assert fit(drafter) < BAD


def test_a_pass_that_makes_one_draw_over_and_over(monkeypatch):
    """Drafted latents of all levels, the uniforms and the supplied latent then share their noise."""

    def fresh(self: Noise) -> Tensor:
        return (self.segments * 31 + self.passes) * 1_000_003

    monkeypatch.setattr(Noise, "fresh", fresh)
    assert fit() < BAD


def test_a_supplied_latent_that_draws_the_noise_of_the_last_draft(monkeypatch):
    honest = LatentLaw.normals
    drawn_last: list[Tensor] = []

    def normals(self: LatentLaw, noise: Noise) -> Tensor:
        made = honest(self, noise)
        if made.shape[2] > 1:  # the target's: columns of the draft and the one behind them
            made[:, :, -1] = drawn_last[-1][:, :, 0]
        drawn_last.append(made)
        return made

    monkeypatch.setattr(LatentLaw, "normals", normals)
    assert fit(reader(TARGET, Line(shift=0.01))) < BAD


def test_passes_that_are_not_counted(monkeypatch):
    """What rejected a draft in one pass judges and draws in the next."""
    monkeypatch.setattr(Noise, "turn", lambda self: setattr(self, "draws", 0))
    assert fit() < BAD
