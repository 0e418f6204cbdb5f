"""The ledger's targets: what has not begun, at every cell, and nothing that has."""

from __future__ import annotations

import numpy as np
import torch

from polydraft.apps.train.image.data import MOST_LISTED, Batch, outline, packed_scene
from polydraft.apps.train.image.ledger import MANY, Ledger, owed
from polydraft.apps.train.image.posterior import CELLS
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.painting.matte import shown
from polydraft.modalities.world.scene import GRID, Placed, Scene

PROMPT = 5


def batch_of(scenes: list[Scene]) -> Batch:
    rows, length = len(scenes), PROMPT + CELLS + 2
    cells = torch.full((rows, length), -1)
    cells[:, PROMPT : PROMPT + CELLS] = torch.arange(CELLS)
    kinds, begins = torch.from_numpy(np.stack([outline(scene) for scene in scenes])).unbind(-1)
    nothing = torch.zeros(rows, length, dtype=torch.long)
    return Batch(nothing, nothing[..., None], nothing[..., None], nothing > 0, nothing, cells, kinds, begins)


def test_a_thing_is_owing_up_to_the_first_cell_that_shows_it() -> None:
    fox, owl = list(KINDS)[3], list(KINDS)[8]
    scene = Scene("blue", (Placed(fox, "small", 0, 0), Placed(fox, "small", 64, 96), Placed(owl, "large", 64, 32)))
    told = owed(batch_of([scene]))[0, PROMPT : PROMPT + CELLS]
    firsts = []
    for item in scene.objects:
        down, right = np.argwhere(shown(item.kind, item.size))[0]
        firsts.append((item.y // GRID + int(down)) * (128 // GRID) + item.x // GRID + int(right))
    for cell in range(CELLS):
        foxes, owls = sum(first >= cell for first in firsts[:2]), int(firsts[2] >= cell)
        assert told[cell, 3].tolist() == [foxes > 0, foxes > 1, False]
        assert told[cell, 8].tolist() == [owls > 0, False, False]
    told[:, [3, 8]] = 0
    assert not told.any()


def test_packed_scenes_owe_all_they_list() -> None:
    rng = np.random.default_rng(3)
    scenes = [packed_scene(rng) for _ in range(8)]
    first = owed(batch_of(scenes))[:, PROMPT]
    for scene, told in zip(scenes, first, strict=True):
        assert len(scene.objects) <= MOST_LISTED
        counts = [min(MANY, sum(item.kind == kind for item in scene.objects)) for kind in KINDS]
        assert told.sum(-1).tolist() == counts


def test_a_ledger_that_knows_pays_nothing() -> None:
    """Biases alone: right of an empty scene, and as many times wrong as three foxes have cells before them."""
    ledger, fox = Ledger(8), list(KINDS)[3]
    hidden = torch.zeros(1, PROMPT + CELLS + 2, 8)
    empty = batch_of([Scene("blue", ())])
    three = batch_of([Scene("blue", tuple(Placed(fox, "small", x, 64) for x in (0, 32, 64)))])
    with torch.no_grad():
        ledger.owing.bias.fill_(-20.0)
        assert ledger(hidden, empty) < 1e-4
        told = ledger(hidden, three)
    torch.testing.assert_close(told, 20 * owed(three)[:, PROMPT : PROMPT + CELLS].sum() / CELLS, rtol=1e-3, atol=1e-3)
