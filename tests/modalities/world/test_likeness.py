"""Washed-out, repeated and collapsed textures are far from rendered ones; other rendered ones are near."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from polydraft.apps.train.image.data import to_pixels
from polydraft.modalities.world.judging.likeness import Likeness, frechet, octaves
from polydraft.modalities.world.scene import Scene, place
from polydraft.modalities.world.worlds import TEXTURED

N = 84


@pytest.fixture(scope="module")
def rendered() -> tuple[list[str], Tensor, Tensor]:
    """What scenes stand on, and two sets of pictures of the same compositions."""
    rng = np.random.default_rng(0)
    asked = [TEXTURED.composition(rng) for _ in range(N)]
    one, other = (to_pixels([place(wanted, rng).render() for wanted in asked]) for _ in range(2))
    return [wanted.background for wanted in asked], one, other


def washed(pictures: Tensor) -> Tensor:
    return avg_pool2d(pictures, 3, 1, 1, count_include_pad=False)


def repeated(pictures: Tensor) -> Tensor:
    """One quarter of each, four times."""
    return pictures[..., :32, :32].repeat(1, 1, 4, 4)


def test_other_scenes_are_near_and_damaged_ones_far(rendered: tuple[list[str], Tensor, Tensor]) -> None:
    grounds, one, other = rendered
    known = Likeness.of(one, grounds)
    assert abs(known.distance(one, grounds)) < 1e-3
    scale = known.distance(other, grounds)
    noisy = (other + 0.1 * torch.randn(other.shape, generator=torch.Generator().manual_seed(0))).clamp(-1, 1)
    collapsed = other.clone()
    for name in set(grounds):  # one picture for all of a setting
        here = [index for index, ground in enumerate(grounds) if ground == name]
        collapsed[here] = other[here[0]]
    for damaged in (washed(other), repeated(other), noisy, collapsed):
        assert known.distance(damaged, grounds) > 3 * scale
    half = torch.where(torch.arange(N)[:, None, None, None] % 2 == 0, washed(other), other)
    assert known.distance(half, grounds) > 1.5 * scale


def test_octaves_tell_what_blur_takes(rendered: tuple[list[str], Tensor, Tensor]) -> None:
    _, one, other = rendered
    same = octaves(other).mean(0) / octaves(one).mean(0)
    lost = octaves(washed(one)).mean(0) / octaves(one).mean(0)
    assert ((same > 0.6) & (same < 1.6)).all()
    assert lost[0] > 0.9 and lost[4] < 0.7 and lost[5] < 0.3 and (lost.diff() < 0.02).all()


def test_power_is_in_the_octave_of_a_wave() -> None:
    wave = torch.sin(torch.arange(128) / 128 * 2 * torch.pi * 11).expand(1, 3, 128, 128)
    assert octaves(wave)[0].argmax() == 3  # 8 to 16 cycles
    assert octaves(torch.from_numpy(Scene("blue", ()).render()).permute(2, 0, 1)[None] / 127.5 - 1).max() < 1e-9


def test_the_distance_of_normal_clouds_is_the_closed_form() -> None:
    generator = torch.Generator().manual_seed(1)
    cloud = torch.randn(20_000, 3, generator=generator)
    assert frechet(cloud, cloud) == pytest.approx(0, abs=1e-6)
    assert frechet(cloud, 2 * cloud + 1) == pytest.approx(3 * (1 + 1), rel=0.05)  # |mean|^2 + sum (2 - 1)^2
