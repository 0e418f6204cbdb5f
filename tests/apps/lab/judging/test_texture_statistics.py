"""Washed-out, repeated and collapsed textures are far from rendered ones; other rendered textures are near."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from polydraft.apps.lab.judging.texture_statistics import TextureStatistics, frechet_distance, octave_power
from polydraft.apps.lab.recipes.image.data import images_to_tensor
from polydraft.modalities.world.scene import Scene, place_objects
from polydraft.modalities.world.worlds import TEXTURED

N = 84


@pytest.fixture(scope="module")
def rendered() -> tuple[list[str], Tensor, Tensor]:
    """Return backgrounds, and two sets of images of the same compositions."""
    rng = np.random.default_rng(0)
    asked = [TEXTURED.random_composition(rng) for _ in range(N)]
    one, other = (images_to_tensor([place_objects(wanted, rng).render() for wanted in asked]) for _ in range(2))
    return [wanted.background for wanted in asked], one, other


def washed(pictures: Tensor) -> Tensor:
    return avg_pool2d(pictures, 3, 1, 1, count_include_pad=False)


def repeated(pictures: Tensor) -> Tensor:
    """Repeat one quarter of each image four times."""
    return pictures[..., :32, :32].repeat(1, 1, 4, 4)


def test_distance_other_scenes_near_damaged_far(rendered: tuple[list[str], Tensor, Tensor]) -> None:
    grounds, one, other = rendered
    known = TextureStatistics.fit(one, grounds)
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


def test_octave_power_blur_lowers_upper_octaves(rendered: tuple[list[str], Tensor, Tensor]) -> None:
    _, one, other = rendered
    same = octave_power(other).mean(0) / octave_power(one).mean(0)
    lost = octave_power(washed(one)).mean(0) / octave_power(one).mean(0)
    assert ((same > 0.6) & (same < 1.6)).all()
    assert lost[0] > 0.9 and lost[4] < 0.7 and lost[5] < 0.3 and (lost.diff() < 0.02).all()


def test_octave_power_of_wave_is_in_its_octave() -> None:
    wave = torch.sin(torch.arange(128) / 128 * 2 * torch.pi * 11).expand(1, 3, 128, 128)
    assert octave_power(wave)[0].argmax() == 3  # 8 to 16 cycles
    assert octave_power(torch.from_numpy(Scene("blue", ()).render()).permute(2, 0, 1)[None] / 127.5 - 1).max() < 1e-9


def test_frechet_distance_of_normal_samples_is_closed_form() -> None:
    generator = torch.Generator().manual_seed(1)
    cloud = torch.randn(20_000, 3, generator=generator)
    assert frechet_distance(cloud, cloud) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(cloud, 2 * cloud + 1) == pytest.approx(3 * (1 + 1), rel=0.05)  # |mean|^2 + sum (2 - 1)^2
