"""The tape of latents: what it draws has the law of the chain itself, and bits that depend on the place alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polydraft.core.drafters.base import NoDrafter
from polydraft.core.latent.law import LatentLaw, dithered
from polydraft.core.law.noise import Noise
from polydraft.core.verify.tape import TapeVerifier

from ..tables import noise
from .fits import GOOD, alike, counted, joint, least, normal, unrelated
from .maps import Bent, Line, MapTarget, drawn, residuals
from .toys import RandomHead

DRAWS = 100_000
T = torch.arange(1000)


def tape(rows: int, segment: int = 0) -> Noise:
    made = noise(rows, 1, on_tape=True)
    made.segments = torch.full((rows,), segment)
    return made


def law(chain, rows: int, columns: int, heat: float = 1.0, width: int = 2) -> LatentLaw:
    """The same hidden state everywhere."""
    given = torch.linspace(-2, 2, width).expand(rows, columns, 1, width)
    return LatentLaw(chain, given, torch.ones(rows), torch.full((rows,), heat))


@pytest.mark.parametrize("mean", [0.0, -0.37, 12.5, 3e4])
@pytest.mark.parametrize("sigma", [1.0, 0.02, 7.0])
def test_a_step_is_normal(mean, sigma):
    _, widths, offsets = tape(100).latent(T.expand(100, -1), 1, 1)
    x = dithered(torch.full_like(offsets[0], mean), sigma * widths[0], offsets[0])
    assert x.numel() == DRAWS and normal((x - mean) / sigma) > GOOD


def test_a_step_is_normal_around_any_mean():
    """Means that differ from draw to draw, as those of a chain do."""
    generator = torch.Generator().manual_seed(3)
    mean = 5 * torch.randn(DRAWS, dtype=torch.double, generator=generator)
    _, widths, offsets = tape(100).latent(T.expand(100, -1), 1, 1)
    rest = dithered(mean, widths.flatten(), offsets.flatten()) - mean
    assert least([normal(rest), unrelated(rest, mean / 5)]) > GOOD


def test_nearby_means_give_the_same_number_as_often_as_any_draws_can():
    """erfc(Δ / 2√2) is the most, for means Δ apart; a layer keeps 1 - Δ / 2a of it (E[Δ / 2a] = Δ / √(2π))."""
    _, widths, offsets = tape(100).latent(T.expand(100, -1), 1, 1)
    for apart, wanted in ((0.2, 0.919), (1.0, 0.616)):
        these, those = (dithered(torch.full_like(offsets, mean), widths, offsets) for mean in (0.3, 0.3 + apart))
        same = (these == those).double().mean()
        assert abs(float(same) - wanted) < 0.008
        assert float(same) < torch.tensor(apart / 8**0.5).erfc() + 0.008


def test_the_end_of_a_chain_has_the_chances_that_integration_gives():
    """χ² over bins of one latent; a density on a fine grid goes through every step."""
    chain = Bent(1)
    made = law(chain, 100, len(T), heat=1.2, width=1)
    x = torch.linspace(-45, 45, 6001, dtype=torch.double)
    pitch = x[1] - x[0]
    density = torch.exp(-((x / chain.start) ** 2) / 2)
    for step in range(made.steps):
        one = LatentLaw(chain, made.given[:1, :1].expand(-1, len(x), -1, -1), made.scale[:1], made.temperature[:1])
        after_step = one.step(x[None, :, None], step)
        mean, sigma = after_step.mean[0, :, 0], float(after_step.deviation)
        after, heavy = torch.zeros_like(x), density > density.max() * 1e-14
        for part_mean, part in zip(mean[heavy].split(500), density[heavy].split(500), strict=True):
            after += (torch.exp(-(((x[:, None] - part_mean) / sigma) ** 2) / 2) * part).sum(1)
        density = after / (after.sum() * pitch)
    mass = (density.cumsum(0) * pitch).clamp(0, 1)
    edges = torch.stack([x[(mass >= (cut + 1) / 40).nonzero()[0, 0]] for cut in range(39)]) + pitch / 2
    chances = torch.stack([mass[(x <= edge).sum() - 1] for edge in edges]).diff(
        prepend=torch.zeros(1).double(), append=torch.ones(1).double()
    )
    found = made.drawn(tape(100).at(T.expand(100, -1))).double().flatten()
    counts = torch.bincount(torch.bucketize(found, edges), minlength=40)
    assert counted(counts, chances) > GOOD
    straight = law(Line(1), 100, len(T), heat=1.2, width=1).drawn(tape(100).at(T.expand(100, -1)))
    away = torch.bucketize(straight.double().flatten(), edges)
    assert counted(torch.bincount(away, minlength=40), chances) < 1e-100, "the bins tell laws apart"


@pytest.mark.parametrize(("rows", "columns"), [(100, 1000), (DRAWS // 2, 2)])
def test_a_chain_drawn_on_the_tape_has_the_law_of_one_that_draws_gaussian_noise(rows, columns):
    torch.manual_seed(0)
    head = RandomHead(3, hidden=2, spread=2.0).requires_grad_(False)
    torch.nn.init.normal_(head.deeper.weight, std=2.0)
    made = law(head, rows, columns)
    on_tape = made.drawn(tape(rows).at(torch.arange(columns).expand(rows, -1)))
    generator = torch.Generator().manual_seed(1)
    free = torch.randn(1 + made.steps, rows, columns, 3, dtype=torch.double, generator=generator)
    second = made.walked(made.normals(noise(rows, 1))).latents
    for other in (made.walked(free).latents, second):
        assert alike(on_tape.flatten(0, 1), other.flatten(0, 1)) > GOOD
    other = torch.cat([other[..., :2], other[..., 2:].roll(1, 0)], 2).flatten(0, 1)
    assert alike(on_tape.flatten(0, 1), other) < 1e-12, "products tell related coordinates from unrelated ones"


def test_plain_decoding_follows_the_law_of_its_model():
    """Whole runs: what is left of every latent, its law taken out, is standard normal and unrelated to the rest."""
    made, chain = drawn(MapTarget(Line()), NoDrafter(), TapeVerifier()), Line()
    assert joint(residuals(made.latents, chain)) > GOOD and made.tau == 1


def test_what_a_place_draws_depends_on_seed_segment_and_position_alone():
    """Not on the batch, the other columns or the steps that follow; each of the three changes all of it."""
    rows, t = tape(5, segment=3), torch.tensor([[0, 1, 7, 600]]).expand(5, -1)
    begin, widths, offsets = rows.latent(t, 4, 3)
    one = noise(5, 1, on_tape=True)
    one.seeds, one.segments, one.passes = torch.tensor([4]), torch.tensor([3]), torch.tensor([9])
    for steps in (1, 4, 9):
        for column in range(4):
            alone = one.latent(t[4:, column : column + 1], steps, 3)
            shared = min(steps, 4)
            assert torch.equal(alone[0][0, 0], begin[4, column])
            assert torch.equal(alone[1][:shared, 0, 0], widths[:shared, 4, column])
            assert torch.equal(alone[2][:shared, 0, 0], offsets[:shared, 4, column])
    here = torch.cat([begin[None], widths, offsets])
    elsewhere = torch.cat([part.view(-1, 5, 4, 3) for part in tape(5, segment=4).latent(t, 4, 3)])
    for other in (elsewhere, here.roll(1, 1), here.roll(1, 2), here.roll(1, 3), here.roll(1, 0)):
        assert not (here == other).any()


def test_draws_of_different_places_are_unrelated():
    """Over positions, steps, coordinates, seeds and segments, within each part of the noise and across them."""
    first, second = (rows.latent(T.expand(100, -1), 3, 2) for rows in (tape(100), tape(100, segment=1)))

    def standard(parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """All as standard normals, `[7, B, K, C]`; χ₃ through its distribution function."""
        begin, widths, offsets = parts
        below = torch.special.erf(widths / 2**0.5) - widths * (2 / torch.pi) ** 0.5 * (-(widths**2) / 2).exp()
        eps = 1e-12
        return torch.cat([begin[None], torch.special.ndtri(below.clamp(eps, 1 - eps)), torch.special.ndtri(offsets)])

    here, there = standard(first), standard(second)
    found = [normal(here[part, ..., c]) for part in range(7) for c in range(2)]
    found += [unrelated(here[:, :-1], here[:, 1:]), unrelated(here[:, :, :-1], here[:, :, 1:])]
    found += [unrelated(here[..., 0], here[..., 1]), unrelated(here, there)]
    found += [unrelated(here[one], here[two]) for two in range(7) for one in range(two)]
    assert least(found) > GOOD


def test_the_second_stream_is_normal_and_fresh():
    """Over rows, columns, coordinates, draws of a pass, and passes."""
    rows = noise(1000, 1)
    first, second = rows.normal(20, 3), rows.normal(20, 3)
    rows.turn()
    third = rows.normal(20, 3)
    found = [normal(first), unrelated(first, second), unrelated(first, third), unrelated(second, third)]
    found += [unrelated(first[:-1], first[1:]), unrelated(first[:, :-1], first[:, 1:])]
    found += [unrelated(first[..., :-1], first[..., 1:])]
    assert least(found) > GOOD
