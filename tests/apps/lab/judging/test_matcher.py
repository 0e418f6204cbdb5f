"""The matcher reads rendered scenes exactly, blurred and noisy ones too, and turns down wrong pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from polydraft.apps.lab.judging.matcher import (
    MAX_RESIDUE,
    MAX_STRAY,
    FidelityResult,
    compare_scene,
    judge_flat_image,
    match_scene,
    residual_errors,
)
from polydraft.modalities.world.glyphs import KINDS, load_sheet
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    RELATIONS,
    Composition,
    ObjectGroup,
    PlacedObject,
    Scene,
    boxes_overlap,
    is_in_relation,
    place_objects,
    random_composition,
)

Picture = NDArray[np.uint8]


def samples(number: int, seed: int) -> list[tuple[Composition, Scene]]:
    rng = np.random.default_rng(seed)
    compositions = [random_composition(rng, held_out=index % 2 == 0) for index in range(number)]
    return [(composition, place_objects(composition, rng)) for composition in compositions]


def degrade(picture: Picture, rng: np.random.Generator, decibels: float) -> Picture:
    """Blur, then add noise until the PSNR is about `decibels`, which is worse than the tokenizer."""
    pixels = picture / 255.0
    blurred = gaussian_filter(pixels, (0.7, 0.7, 0))
    spare = max(10 ** (-decibels / 10) - float(np.square(blurred - pixels).mean()), 0.0)
    return to_picture(blurred + rng.normal(0, np.sqrt(spare), pixels.shape))


def to_picture(pixels: NDArray[np.floating]) -> Picture:
    return (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8)


def same(a: Scene, b: Scene) -> bool:
    return a.background == b.background and set(a.objects) == set(b.objects)


def without(scene: Scene, item: PlacedObject) -> Scene:
    return replace(scene, objects=tuple(other for other in scene.objects if other != item))


def swap(scene: Scene, old: PlacedObject, new: PlacedObject) -> Scene:
    return replace(scene, objects=tuple(new if other == old else other for other in scene.objects))


def other_kind(scene: Scene, rng: np.random.Generator) -> str:
    return str(rng.choice(sorted(set(KINDS) - {item.kind for item in scene.objects})))


def free_place(scene: Scene, rng: np.random.Generator) -> PlacedObject | None:
    """Return a small object of a new kind where there is room, or None."""
    kind = other_kind(scene, rng)
    spots = [
        PlacedObject(kind, "small", x, y) for x in range(0, CANVAS - 31, GRID) for y in range(0, CANVAS - 31, GRID)
    ]
    spots = [spot for spot in spots if not any(boxes_overlap(spot, item) for item in scene.objects)]
    return spots[rng.integers(len(spots))] if spots else None


def paste_half(picture: Picture, item: PlacedObject, rng: np.random.Generator) -> Picture:
    """Paste half of a glyph's visible area, cut horizontally or vertically through its middle."""
    glyph = load_sheet(item.size)[item.kind]
    alpha = glyph[..., 3:].copy()
    axis = int(rng.integers(2))
    middle = int(np.median(np.nonzero(alpha[..., 0] > 0.5)[axis]))
    halves = (slice(None, middle), slice(middle, None))
    alpha[(slice(None),) * axis + (halves[rng.integers(2)],)] = 0
    pixels = picture / 255.0
    box = pixels[item.y : item.y + item.side, item.x : item.x + item.side]
    box += alpha * (glyph[..., :3] - box)
    return to_picture(pixels)


@pytest.mark.parametrize("decibels", [None, 24.0, 22.0])
def test_match_scene_recovers_rendered_scene(decibels: float | None) -> None:
    rng = np.random.default_rng(0)
    number = 300 if decibels is None else 150
    for composition, scene in samples(number, seed=1 if decibels is None else int(decibels)):
        picture = scene.render() if decibels is None else degrade(scene.render(), rng, decibels)
        found = match_scene(picture)
        assert same(found, scene)
        near, clear = residual_errors(picture, found)
        assert near < MAX_RESIDUE / 2 and clear < MAX_STRAY * 0.8  # room for what a tokenizer adds
        assert compare_scene(found, composition).ok


def test_match_scene_every_glyph_on_every_background() -> None:
    rng = np.random.default_rng(0)
    for background in BACKGROUNDS:
        for kind in KINDS:
            items = (PlacedObject(kind, "large", 8, 64), PlacedObject(kind, "small", 80, 16))
            scene = Scene(background, items)
            assert same(match_scene(degrade(scene.render(), rng, 24.0)), scene)


def test_match_scene_empty_background_has_no_objects() -> None:
    for background in BACKGROUNDS:
        picture = Scene(background, ()).render()
        assert same(match_scene(picture), Scene(background, ()))
        verdict = judge_flat_image(picture, Composition(background, (ObjectGroup("cat"),)))
        assert verdict == FidelityResult(objects=False, count=False, relation=True, background=True, clean=True)


@pytest.mark.parametrize("noisy", [False, True])
def test_judge_wrong_scenes_fail_the_right_criterion(noisy: bool) -> None:
    rng = np.random.default_rng(2)

    def verdict(scene: Scene, composition: Composition) -> FidelityResult:
        picture = scene.render()
        return judge_flat_image(degrade(picture, rng, 23.0) if noisy else picture, composition)

    for composition, scene in samples(40, seed=3):
        right = FidelityResult(True, True, True, True, True)
        assert verdict(scene, composition) == right
        item = scene.objects[rng.integers(len(scene.objects))]

        assert not verdict(without(scene, item), composition).count

        swapped = verdict(swap(scene, item, replace(item, kind=other_kind(scene, rng))), composition)
        assert not swapped.objects and swapped.background and swapped.clean

        extra = free_place(scene, rng)
        if extra is not None:
            crowded = verdict(replace(scene, objects=(*scene.objects, extra)), composition)
            assert crowded == replace(right, objects=False)
            twin = replace(scene, objects=(*scene.objects, replace(extra, kind=item.kind)))
            assert not verdict(twin, composition).count

        background = str(rng.choice(sorted(set(BACKGROUNDS) - {scene.background})))
        assert verdict(replace(scene, background=background), composition) == replace(right, background=False)

        if composition.relation is not None:
            mirror = RELATIONS[RELATIONS.index(composition.relation) ^ 1]
            assert verdict(scene, replace(composition, relation=mirror)) == replace(right, relation=False)

        stated = tuple(
            replace(group, size="large" if item.size == "small" else "small") for group in composition.groups
        )
        if all(other.size == item.size for other in scene.objects):
            assert verdict(scene, replace(composition, groups=stated)) == replace(right, objects=False)


def test_judge_one_misplaced_object_breaks_relation() -> None:
    items = (
        PlacedObject("cat", "small", 0, 0),
        PlacedObject("cat", "small", 88, 0),
        PlacedObject("dog", "small", 48, 48),
    )
    composition = Composition("blue", (ObjectGroup("cat", 2), ObjectGroup("dog")), "left")
    assert is_in_relation(items[0], "left", items[2]) and not is_in_relation(items[1], "left", items[2])
    verdict = judge_flat_image(Scene("blue", items).render(), composition)
    assert verdict == FidelityResult(objects=True, count=True, relation=False, background=True, clean=True)


@pytest.mark.parametrize("noisy", [False, True])
def test_judge_half_glyphs_are_rejected(noisy: bool) -> None:
    """Half a glyph instead of a whole one, and half a glyph too many."""
    rng = np.random.default_rng(4)
    passed = 0
    for composition, scene in samples(50, seed=5):
        item = scene.objects[rng.integers(len(scene.objects))]
        pictures = [paste_half(without(scene, item).render(), item, rng)]
        extra = free_place(scene, rng)
        if extra is not None:
            pictures.append(paste_half(scene.render(), extra, rng))
        for picture in pictures:
            picture = degrade(picture, rng, 24.0) if noisy else picture
            passed += judge_flat_image(picture, composition).ok
    assert passed <= 0


def test_judge_blended_glyphs_are_mostly_rejected() -> None:
    """Two glyphs blended half and half; a few pairs of round orange ones are hardly distinguishable."""
    rng = np.random.default_rng(6)
    passed = 0
    for composition, scene in samples(60, seed=7):
        item = scene.objects[rng.integers(len(scene.objects))]
        stranger = swap(scene, item, replace(item, kind=other_kind(scene, rng)))
        blend = to_picture((scene.render() / 255.0 + stranger.render() / 255.0) / 2)
        passed += judge_flat_image(blend, composition).ok
    assert passed <= 2


def test_judge_random_images_are_not_clean() -> None:
    rng = np.random.default_rng(8)
    composition = Composition("blue", (ObjectGroup("cat"),))
    for cell in (1, 8, 16, 128):
        coarse = rng.integers(0, 256, (CANVAS // cell, CANVAS // cell, 3))
        picture = coarse.repeat(cell, 0).repeat(cell, 1).astype(np.uint8)
        assert not judge_flat_image(picture, composition).clean
