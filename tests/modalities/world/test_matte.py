"""What codes tell of a picture: things before a matte, grounds where no thing is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.painting.matte import CELL, MATTE, matted, shown
from polydraft.modalities.world.painting.staging import TURNS, Pose, turned
from polydraft.modalities.world.scene import BACKGROUNDS, Placed, Scene
from polydraft.modalities.world.worlds import TEXTURED


def cells(kind: str, size: str) -> np.ndarray:
    return shown(kind, size).repeat(CELL, 0).repeat(CELL, 1)


@given(
    st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(SIZES)), st.sampled_from(TURNS),
    st.lists(st.sampled_from([*TEXTURED.settings, *BACKGROUNDS]), min_size=2, max_size=2, unique=True),
)  # fmt: skip
def test_cells_of_a_thing_are_the_same_on_every_ground(kind: str, size: str, turn: float, grounds: list[str]) -> None:
    item = Placed(kind, size, 24, 40)
    here = slice(40, 40 + item.side), slice(24, 24 + item.side)
    belongs, things = cells(kind, size), [(item, Pose(turn))]
    bare = [Scene(name, (), 5).layers()[0] for name in grounds]
    one, other = (matted(ground, things) for ground in bare)
    assert np.array_equal(one[here][belongs], other[here][belongs])
    for ground, told in zip(bare, (one, other), strict=True):
        assert np.array_equal(told[here][~belongs], ground[here][~belongs])
        told[here] = ground[here]
        assert np.array_equal(told, ground)


def test_what_belongs_to_a_thing_is_nearly_all_of_it() -> None:
    for kind in KINDS:
        for size in SIZES:
            for turn in TURNS:
                alpha = turned(kind, size, turn)[..., 3]
                assert alpha[~cells(kind, size)].sum() < 0.03 * alpha.sum()


def test_a_picture_and_what_codes_tell_of_it_differ_at_edges_alone() -> None:
    scene = Scene("grass", (Placed("whale", "large", 32, 40),), 7)
    picture, told = scene.views()
    assert np.array_equal(picture, scene.render()) and np.array_equal(told, scene.matted())
    differs = (np.abs(picture.astype(int) - told) > 8).any(-1)
    box = differs[40:96, 32:88]
    assert differs.sum() == box.sum() and 0.05 < box.mean() < 0.6
    grey = np.abs(told[40:96, 32:88] - MATTE * 255).max(-1) < 1.5
    assert grey.any() and cells("whale", "large")[grey].all()
