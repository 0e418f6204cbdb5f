"""Planted bugs of latents that look plausible: each is caught by what the other files check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.continuous import coupled as coupled_module
from polydraft.core.continuous.coupled import CoupledVerifier, coupled_trajectories
from polydraft.core.continuous.denoising import LatentDistribution, LatentSampler, SampledTrajectory
from polydraft.core.continuous.gaussian import Gaussian, sample_maximal_coupling
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.sampling.noise import Noise
from polydraft.core.verification import VerificationResult, accept_to_node
from polydraft.core.verifiers import shared_noise
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ...decoding import all_equal, run
from .fits import BAD, GOOD, joint_pvalue, normal_pvalue
from .lab import lab, prompts
from .maps import LinearChain, MapTarget, NoiselessEnd, chain_drafter, generate_latents, standardised_residuals
from .test_coupled import coupled_step
from .test_shared_noise import same_input_distribution, shared_noise_rows

RUNS = 5000
TARGET = MapTarget(LinearChain())
NEAR = LinearChain(shift=0.1)


def run_pvalue(drafter: Any = None, verifier: Any = None, target: MapTarget = TARGET) -> float:
    """Return the p-value of whole runs under the target distribution."""
    made = generate_latents(target, drafter or chain_drafter(target, NEAR), verifier or CoupledVerifier(), RUNS)
    return joint_pvalue(standardised_residuals(made.latents, target.chain))


def plain_pvalue() -> float:
    return run_pvalue(NoDrafter(), SharedNoiseVerifier())


def chain_pvalue() -> float:
    """Return the p-value of the end of one chain, at many positions of the shared noise."""
    chain, rows, columns = LinearChain(), 100, 500
    one = same_input_distribution(chain, rows, columns)
    heat = torch.ones(rows, columns).double()
    mean, deviation = chain.end(one.processed_outputs[:, :, 0].double(), heat)
    found = one.sample(shared_noise_rows(rows).at_positions(torch.arange(columns).expand(rows, -1)))
    return joint_pvalue(((found - mean) / deviation[..., None]).flatten(0, 1)[:, None])


def identical(name: str, plant: Callable[[], None] = lambda: None) -> bool:
    """Return whether drafting after `plant` gives what plain decoding gave before it."""
    made, rows = lab(spread=0.3), prompts(5)
    plain, _ = run(made.method(), rows)
    plant()
    return all_equal(run(made.method(made.drafters(dict(enumerate(plain)))[name]), rows)[0], plain)


def test_no_bug_is_reported_without_one():
    assert run_pvalue() > GOOD and plain_pvalue() > GOOD
    assert identical("oracle") and identical("jacobi")


# shared noise


@pytest.mark.parametrize("name", ["oracle", "jacobi", "lm"])
def test_noise_keyed_by_window_slot_is_caught(monkeypatch, name):
    """Drafted latents differ from plain ones, whose own noise repeats."""
    honest = Noise.latent_noise

    def plant() -> None:
        monkeypatch.setattr(Noise, "latent_noise", lambda self, t, *sizes: honest(self, t - t[:, :1], *sizes))

    assert not identical(name, plant)
    assert plain_pvalue() < BAD


def tampered(monkeypatch, change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]) -> None:
    honest = Noise.latent_noise
    monkeypatch.setattr(Noise, "latent_noise", lambda self, *sizes: change(*honest(self, *sizes)))


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
def test_noise_used_twice_or_not_drawn_is_caught(monkeypatch, change):
    """Drafted and plain decoding still agree with each other; the distribution does not survive."""
    assert chain_pvalue() > GOOD
    tampered(monkeypatch, change)
    assert identical("jacobi") and chain_pvalue() < BAD


def test_ignored_temperature_is_caught(monkeypatch):
    honest = LatentDistribution.step_distribution
    monkeypatch.setattr(
        LatentDistribution,
        "step_distribution",
        lambda self, *at: honest(replace(self, temperature=torch.ones(1)), *at),
    )
    assert plain_pvalue() < BAD


def test_approximate_equality_is_caught(monkeypatch):
    """The draft's latents are then committed, not the target's."""
    honest = shared_noise.tokens_equal

    def plant() -> None:
        def close(these: Tensor, those: Tensor) -> Tensor:
            return honest(these, those) | ((these - those).abs().amax(-1) < 1e-5)

        monkeypatch.setattr(shared_noise, "tokens_equal", close)

    assert not identical("oracle", plant)


def test_drafts_kept_after_a_rejected_one_are_caught(monkeypatch):
    def plant() -> None:
        def walk(draft: Draft, choices: Tensor, agrees: Tensor) -> VerificationResult:
            return accept_to_node(agrees.sum(1), draft, choices)

        monkeypatch.setattr(shared_noise, "accept_matching_path", walk)

    assert not identical("early exit", plant)


# the coupling, one step


def ratio(z: Tensor, apart: Tensor) -> Tensor:
    """Return log p/q of the draft."""
    return -(z * apart).sum(-1) - apart.square().sum(-1) / 2


def reflect(z: Tensor, apart: Tensor, noise: Noise) -> Tensor:
    return z - 2 * (z * apart).sum(-1, keepdim=True) / apart.square().sum(-1, keepdim=True) * apart


def step_of(log_ratio: Callable[..., Tensor] = ratio, parted: Callable[..., Tensor] = reflect) -> Callable[..., Any]:
    """Return a coupling step with another acceptance ratio, and other noise for rejected drafts."""

    def step(y: Tensor, q: Gaussian, p: Gaussian, due: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        z, apart = q.to_normals(y), (q.mean - p.mean) / p.std
        kept = noise.fresh_uniforms(y.shape[1]).log() < log_ratio(z, apart)
        return torch.where(kept[..., None], y, p.from_normals(parted(z, apart, noise))), kept

    return step


def about_an_axis(z: Tensor, apart: Tensor, noise: Noise) -> Tensor:
    return torch.cat([-z[..., :1], z[..., 1:]], -1)


WRONG_STEPS = {
    "a normal of another length": step_of(parted=lambda z, apart, noise: z - 2 * (z * apart).sum(-1, True) * apart / 2),
    "the plane of an axis": step_of(parted=about_an_axis),
    "the draft's noise as it is": step_of(parted=lambda z, apart, noise: z),
    "a fresh draw": step_of(parted=lambda z, apart, noise: noise.fresh_normals(*z.shape[1:])),
    "a ratio turned round": step_of(lambda z, apart: ratio(-z, apart)),
    "means half as far apart": step_of(lambda z, apart: ratio(z, apart / 2)),
}


def step_pvalue(step: Callable[..., Any]) -> float:
    _, x, _, direction = coupled_step(1.0, 3, step)
    return min(normal_pvalue(x.flatten(0, 1) @ direction), *(normal_pvalue(x[..., c]) for c in range(3)))


@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_wrong_coupling_step_is_caught(wrong):
    assert step_pvalue(step_of()) > GOOD
    assert step_pvalue(WRONG_STEPS[wrong]) < BAD


@pytest.mark.parametrize("wrong", ["a normal of another length", "a fresh draw", "a ratio turned round"])
def test_wrong_coupling_step_shows_in_runs(monkeypatch, wrong):
    monkeypatch.setattr(coupled_module, "sample_maximal_coupling", WRONG_STEPS[wrong])
    assert run_pvalue() < BAD


# the coupling, whole runs


class KeepAllAgreeing(CoupledVerifier):
    """Verifier that counts all columns that agree, wherever they are."""

    def verify(
        self, draft: Draft, distribution: LatentDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        *_, (latents, agrees) = coupled_trajectories(distribution, noise, draft)
        return accept_to_node(agrees.sum(1), draft, latents.float())


class KeepNearby(CoupledVerifier):
    """Verifier that commits the target's latent, and keeps the drafts after it if the draft's was near."""

    def verify(
        self, draft: Draft, distribution: LatentDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        *_, (latents, agrees) = coupled_trajectories(distribution, noise, draft)
        target_latents, latents = latents[:, :-1].float(), latents.float()
        near = agrees | ((target_latents - draft.tokens).abs().amax(-1) < 0.5)
        replaced = replace(draft, tokens=torch.where(near[..., None], target_latents, 0))
        return accept_to_node(near.cumprod(1).sum(1), replaced, latents)


@pytest.mark.parametrize(
    "verifier", [KeepAllAgreeing(), KeepNearby()], ids=["behind a rejected one", "behind a near one"]
)
def test_drafts_after_replaced_latents_are_caught(verifier):
    assert run_pvalue(verifier=verifier) < BAD


def test_draft_kept_through_noiseless_step_is_caught(monkeypatch):
    """The chains agreed before it, but their ends differ: the draft's end is not the target's."""
    target = MapTarget(NoiselessEnd())
    drafter = chain_drafter(target, NoiselessEnd(shift=0.1))

    assert run_pvalue(drafter, target=target) > GOOD

    def blind(y: Tensor, q: Gaussian, p: Gaussian, due: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        drawn, kept = sample_maximal_coupling(y, q, p, due, noise)
        return (drawn, kept) if p.is_noisy else (y, torch.ones_like(kept))

    monkeypatch.setattr(coupled_module, "sample_maximal_coupling", blind)
    assert run_pvalue(drafter, target=target) < BAD


def test_reflection_with_other_stds_is_caught(monkeypatch):
    """Reflection needs equal standard deviations; without it such a drafter is exact (`test_coupled`)."""
    drafter = chain_drafter(TARGET, NEAR)
    drafter.sampler = LatentSampler(LinearChain(shift=0.1, levels=(3.0, 1.6, 0.9, 0.5, 0.2)))
    monkeypatch.setattr(coupled_module, "sample_maximal_coupling", step_of())
    assert run_pvalue(drafter) < BAD


def test_selected_draft_is_caught(monkeypatch):
    """A draft that is the better of two trajectories is no draw of its distribution."""
    honest = LatentDistribution.sample_trajectory

    def better(self: LatentDistribution, normals: Tensor) -> SampledTrajectory:
        first, second = honest(self, normals), honest(self, normals.roll(1, 1))
        near = [(walk.states[:, :, -1] - walk.step_distributions[-1].mean).square().sum(-1) for walk in (first, second)]
        pick = (near[0] < near[1])[..., None]
        steps = [
            replace(one, mean=torch.where(pick, one.mean, other.mean))
            for one, other in zip(first.step_distributions, second.step_distributions, strict=True)
        ]
        return SampledTrajectory(torch.where(pick[..., None], first.states, second.states), steps)

    drafter = chain_drafter(TARGET, NEAR)
    assert run_pvalue(drafter) > GOOD
    honest_draft = drafter.draft

    def draft(*args: Any) -> Draft:
        with monkeypatch.context() as planted:
            planted.setattr(LatentDistribution, "sample_trajectory", better)
            return honest_draft(*args)

    drafter.draft = draft  # type: ignore[method-assign]
    assert run_pvalue(drafter) < BAD


def test_noise_reused_within_a_pass_is_caught(monkeypatch):
    """Drafted latents of all levels, the uniforms and the bonus latent then share their noise."""

    def fresh(self: Noise) -> Tensor:
        return (self.segments * 31 + self.pass_index) * 1_000_003

    monkeypatch.setattr(Noise, "next_key", fresh)
    assert run_pvalue() < BAD


def test_bonus_latent_reusing_draft_noise_is_caught(monkeypatch):
    honest = LatentDistribution.draw_normals
    drawn_last: list[Tensor] = []

    def normals(self: LatentDistribution, noise: Noise) -> Tensor:
        made = honest(self, noise)
        if made.shape[2] > 1:  # the target's: columns of the draft and the one after them
            made[:, :, -1] = drawn_last[-1][:, :, 0]
        drawn_last.append(made)
        return made

    monkeypatch.setattr(LatentDistribution, "draw_normals", normals)
    assert run_pvalue(chain_drafter(TARGET, LinearChain(shift=0.01))) < BAD


def test_noise_reused_across_passes_is_caught(monkeypatch):
    """The noise that rejected a draft in one pass is used again in the next."""
    monkeypatch.setattr(Noise, "next_pass", lambda self: setattr(self, "num_draws", 0))
    assert run_pvalue() < BAD
