"""Shared noise of latents: draws follow the distribution of the chain, and bits depend on the position alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polydraft.core.continuous.denoising import LatentDistribution, quantise_with_dither
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.sampling.noise import Noise
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..tables import noise
from .fits import (
    GOOD,
    bonferroni,
    counts_pvalue,
    independence_pvalue,
    joint_pvalue,
    normal_pvalue,
    same_distribution_pvalue,
)
from .maps import LinearChain, MapTarget, NonlinearChain, generate_latents, standardised_residuals
from .toys import RandomHead

DRAWS = 100_000
T = torch.arange(1000)


def shared_noise_rows(rows: int, segment: int = 0) -> Noise:
    made = noise(rows, 1, uses_shared_noise=True)
    made.segments = torch.full((rows,), segment)
    return made


def same_input_distribution(chain, rows: int, columns: int, heat: float = 1.0, width: int = 2) -> LatentDistribution:
    """Return the distribution given the same hidden state everywhere."""
    given = torch.linspace(-2, 2, width).expand(rows, columns, 1, width)
    return LatentDistribution(chain, given, torch.ones(rows), torch.full((rows,), heat))


@pytest.mark.parametrize("mean", [0.0, -0.37, 12.5, 3e4])
@pytest.mark.parametrize("sigma", [1.0, 0.02, 7.0])
def test_dithered_step_is_normal(mean, sigma):
    _, widths, offsets = shared_noise_rows(100).latent_noise(T.expand(100, -1), 1, 1)
    x = quantise_with_dither(torch.full_like(offsets[0], mean), sigma * widths[0], offsets[0])
    assert x.numel() == DRAWS and normal_pvalue((x - mean) / sigma) > GOOD


def test_dithered_step_is_normal_around_any_mean():
    """Means differ from draw to draw, as those of a chain do."""
    generator = torch.Generator().manual_seed(3)
    mean = 5 * torch.randn(DRAWS, dtype=torch.double, generator=generator)
    _, widths, offsets = shared_noise_rows(100).latent_noise(T.expand(100, -1), 1, 1)
    rest = quantise_with_dither(mean, widths.flatten(), offsets.flatten()) - mean
    assert bonferroni([normal_pvalue(rest), independence_pvalue(rest, mean / 5)]) > GOOD


def test_nearby_means_often_give_the_same_number():
    """For means Δ apart, erfc(Δ / 2√2) is the most; dithering keeps 1 - Δ / 2a of it (E[Δ / 2a] = Δ / √(2π))."""
    _, widths, offsets = shared_noise_rows(100).latent_noise(T.expand(100, -1), 1, 1)
    for apart, wanted in ((0.2, 0.919), (1.0, 0.616)):
        these, those = (
            quantise_with_dither(torch.full_like(offsets, mean), widths, offsets) for mean in (0.3, 0.3 + apart)
        )
        same = (these == those).double().mean()
        assert abs(float(same) - wanted) < 0.008
        assert float(same) < torch.tensor(apart / 8**0.5).erfc() + 0.008


def test_chain_end_matches_numerical_integration():
    """Check one latent by χ² over bins; a density on a fine grid goes through every step."""
    chain = NonlinearChain(1)
    whole = same_input_distribution(chain, 100, len(T), heat=1.2, width=1)
    x = torch.linspace(-45, 45, 6001, dtype=torch.double)
    pitch = x[1] - x[0]
    density = torch.exp(-((x / chain.init_std) ** 2) / 2)
    for step in range(whole.num_steps):
        distribution = LatentDistribution(
            chain, whole.processed_outputs[:1, :1].expand(-1, len(x), -1, -1), whole.scale[:1], whole.temperature[:1]
        )
        after_step = distribution.step_distribution(x[None, :, None], step)
        mean, sigma = after_step.mean[0, :, 0], float(after_step.std)
        after, heavy = torch.zeros_like(x), density > density.max() * 1e-14
        for part_mean, part in zip(mean[heavy].split(500), density[heavy].split(500), strict=True):
            after += (torch.exp(-(((x[:, None] - part_mean) / sigma) ** 2) / 2) * part).sum(1)
        density = after / (after.sum() * pitch)
    mass = (density.cumsum(0) * pitch).clamp(0, 1)
    edges = torch.stack([x[(mass >= (cut + 1) / 40).nonzero()[0, 0]] for cut in range(39)]) + pitch / 2
    probs = torch.stack([mass[(x <= edge).sum() - 1] for edge in edges]).diff(
        prepend=torch.zeros(1).double(), append=torch.ones(1).double()
    )
    latents = whole.sample(shared_noise_rows(100).at_positions(T.expand(100, -1))).double().flatten()
    counts = torch.bincount(torch.bucketize(latents, edges), minlength=40)
    assert counts_pvalue(counts, probs) > GOOD
    straight = same_input_distribution(LinearChain(1), 100, len(T), heat=1.2, width=1).sample(
        shared_noise_rows(100).at_positions(T.expand(100, -1))
    )
    away = torch.bucketize(straight.double().flatten(), edges)
    assert counts_pvalue(torch.bincount(away, minlength=40), probs) < 1e-100, "the bins tell distributions apart"


@pytest.mark.parametrize(("rows", "columns"), [(100, 1000), (DRAWS // 2, 2)])
def test_shared_noise_and_gaussian_chains_are_equally_distributed(rows, columns):
    torch.manual_seed(0)
    head = RandomHead(3, hidden=2, spread=2.0).requires_grad_(False)
    torch.nn.init.normal_(head.deeper.weight, std=2.0)
    made = same_input_distribution(head, rows, columns)
    on_tape = made.sample(shared_noise_rows(rows).at_positions(torch.arange(columns).expand(rows, -1)))
    generator = torch.Generator().manual_seed(1)
    free = torch.randn(1 + made.num_steps, rows, columns, 3, dtype=torch.double, generator=generator)
    second = made.sample_trajectory(made.draw_normals(noise(rows, 1))).latents
    for other in (made.sample_trajectory(free).latents, second):
        assert same_distribution_pvalue(on_tape.flatten(0, 1), other.flatten(0, 1)) > GOOD
    other = torch.cat([other[..., :2], other[..., 2:].roll(1, 0)], 2).flatten(0, 1)
    assert same_distribution_pvalue(on_tape.flatten(0, 1), other) < 1e-12, (
        "products tell related coordinates from unrelated ones"
    )


def test_plain_decoding_follows_the_model_distribution():
    """Whole runs: residuals of every latent are standard normal and independent."""
    made, chain = generate_latents(MapTarget(LinearChain()), NoDrafter(), SharedNoiseVerifier()), LinearChain()
    assert joint_pvalue(standardised_residuals(made.latents, chain)) > GOOD and made.tau == 1


def test_shared_noise_depends_on_seed_segment_position():
    """Not on the batch, the other columns or the steps that follow; each of the three changes all of it."""
    rows, t = shared_noise_rows(5, segment=3), torch.tensor([[0, 1, 7, 600]]).expand(5, -1)
    begin, widths, offsets = rows.latent_noise(t, 4, 3)
    one = noise(5, 1, uses_shared_noise=True)
    one.seeds, one.segments, one.pass_index = torch.tensor([4]), torch.tensor([3]), torch.tensor([9])
    for steps in (1, 4, 9):
        for column in range(4):
            alone = one.latent_noise(t[4:, column : column + 1], steps, 3)
            shared = min(steps, 4)
            assert torch.equal(alone[0][0, 0], begin[4, column])
            assert torch.equal(alone[1][:shared, 0, 0], widths[:shared, 4, column])
            assert torch.equal(alone[2][:shared, 0, 0], offsets[:shared, 4, column])
    here = torch.cat([begin[None], widths, offsets])
    elsewhere = torch.cat([part.view(-1, 5, 4, 3) for part in shared_noise_rows(5, segment=4).latent_noise(t, 4, 3)])
    for other in (elsewhere, here.roll(1, 1), here.roll(1, 2), here.roll(1, 3), here.roll(1, 0)):
        assert not (here == other).any()


def test_shared_noise_of_different_positions_is_independent():
    """Over positions, steps, coordinates, seeds and segments, within each part of the noise and across them."""
    first, second = (
        rows.latent_noise(T.expand(100, -1), 3, 2)
        for rows in (shared_noise_rows(100), shared_noise_rows(100, segment=1))
    )

    def standard(parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return all parts as standard normals, `[7, B, K, C]`; χ₃ through its distribution function."""
        begin, widths, offsets = parts
        below = torch.special.erf(widths / 2**0.5) - widths * (2 / torch.pi) ** 0.5 * (-(widths**2) / 2).exp()
        eps = 1e-12
        return torch.cat([begin[None], torch.special.ndtri(below.clamp(eps, 1 - eps)), torch.special.ndtri(offsets)])

    here, there = standard(first), standard(second)
    found = [normal_pvalue(here[part, ..., c]) for part in range(7) for c in range(2)]
    found += [independence_pvalue(here[:, :-1], here[:, 1:]), independence_pvalue(here[:, :, :-1], here[:, :, 1:])]
    found += [independence_pvalue(here[..., 0], here[..., 1]), independence_pvalue(here, there)]
    found += [independence_pvalue(here[one], here[two]) for two in range(7) for one in range(two)]
    assert bonferroni(found) > GOOD


def test_fresh_noise_is_normal_and_independent():
    """Over rows, columns, coordinates, draws of a pass, and passes."""
    rows = noise(1000, 1)
    first, second = rows.fresh_normals(20, 3), rows.fresh_normals(20, 3)
    rows.next_pass()
    third = rows.fresh_normals(20, 3)
    found = [
        normal_pvalue(first),
        independence_pvalue(first, second),
        independence_pvalue(first, third),
        independence_pvalue(second, third),
    ]
    found += [independence_pvalue(first[:-1], first[1:]), independence_pvalue(first[:, :-1], first[:, 1:])]
    found += [independence_pvalue(first[..., :-1], first[..., 1:])]
    assert bonferroni(found) > GOOD
