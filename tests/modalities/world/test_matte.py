"""Images with objects on a matte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.painting.matte import CELL, MATTE_COLOUR, draw_on_matte, kind_cells
from polydraft.modalities.world.painting.staging import ANGLES, Pose, rotated_glyph
from polydraft.modalities.world.scene import BACKGROUNDS, PlacedObject, Scene
from polydraft.modalities.world.worlds import TEXTURED


def cells(kind: str, size: str) -> np.ndarray:
    return kind_cells(kind, size).repeat(CELL, 0).repeat(CELL, 1)


@given(
    st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(GLYPH_SIZES)), st.sampled_from(ANGLES),
    st.lists(st.sampled_from([*TEXTURED.settings, *BACKGROUNDS]), min_size=2, max_size=2, unique=True),
)  # fmt: skip
def test_object_cells_are_equal_on_every_background(kind: str, size: str, turn: float, grounds: list[str]) -> None:
    item = PlacedObject(kind, size, 24, 40)
    here = slice(40, 40 + item.side), slice(24, 24 + item.side)
    belongs, things = cells(kind, size), [(item, Pose(turn))]
    bare = [Scene(name, (), 5).build_layers()[0] for name in grounds]
    one, other = (draw_on_matte(ground, things) for ground in bare)
    assert np.array_equal(one[here][belongs], other[here][belongs])
    for ground, matted in zip(bare, (one, other), strict=True):
        assert np.array_equal(matted[here][~belongs], ground[here][~belongs])
        matted[here] = ground[here]
        assert np.array_equal(matted, ground)


def test_object_cells_cover_nearly_all_of_object() -> None:
    for kind in KINDS:
        for size in GLYPH_SIZES:
            for turn in ANGLES:
                alpha = rotated_glyph(kind, size, turn)[..., 3]
                assert alpha[~cells(kind, size)].sum() < 0.03 * alpha.sum()


def test_matte_image_differs_only_at_edges() -> None:
    scene = Scene("grass", (PlacedObject("whale", "large", 32, 40),), 7)
    picture, matted = scene.render_both()
    assert np.array_equal(picture, scene.render()) and np.array_equal(matted, scene.render_on_matte())
    differs = (np.abs(picture.astype(int) - matted) > 8).any(-1)
    box = differs[40:96, 32:88]
    assert differs.sum() == box.sum() and 0.05 < box.mean() < 0.6
    grey = np.abs(matted[40:96, 32:88] - MATTE_COLOUR * 255).max(-1) < 1.5
    assert grey.any() and cells("whale", "large")[grey].all()
