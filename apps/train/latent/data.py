"""What `tiny-latent` is trained on: scenes as captions and latents, and the laws of what each could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.train.image.data import LONGEST_PROMPT, Bools, Codes, list_objects, packed_scene, to_pixels
from polydraft.apps.train.latent.posterior import MOST, Floats, corner, laws, settled
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CELLS,
    GRID,
    SIDE,
    Composition,
    Placed,
    Scene,
    place,
    random_composition,
)
from polydraft.modalities.world.words.captions import describe, synonyms
from polydraft.modalities.world.words.captions import vocabulary as words

Latents = NDArray[np.float32]

# A cell this near to the bare background is the bare background: what things begin with has to be seen through the
# noise of tokens, at a multiple of it that is seldom mistaken, and nobody misses so faint an edge in a picture.
NEAR = 0.7
DIGITS = 3  # of latents that are told apart
LATE = 0.4  # share of scenes of one or two things that stand as late as in the latest of `PLACES`
PLACES = 60


class GlyphLatents:
    """The latents of every glyph on every background, from which whole scenes are pasted together.

    A latent depends on its own cell alone and objects stand on cells, so this equals rendering and encoding the scene.
    table: all distinct latents, `[N, C]`; scenes are ids into it. firsts: `[N]`, those that things begin with counted
    from 1, 0 for all others.
    """

    def __init__(self, codec: LatentAutoencoder) -> None:
        found: dict[tuple[str, str, str], Latents] = {}
        bare: dict[str, Latents] = {}
        for background in BACKGROUNDS:
            bare[background] = self.encode(codec, [Scene(background, ())], 1)[0, 0, 0]
            for size, pixels in SIZES.items():
                pictures = [Scene(background, (Placed(kind, size, 0, 0),)) for kind in KINDS]
                latents = self.encode(codec, pictures, pixels // GRID)
                latents[np.linalg.norm(latents - bare[background], axis=-1) < NEAR] = bare[background]
                found |= {(background, size, kind): cells for kind, cells in zip(KINDS, latents, strict=True)}
        flat = np.concatenate(
            [np.stack(list(bare.values())), *(cells.reshape(-1, codec.size) for cells in found.values())]
        )
        _, first, ids = np.unique(flat.round(DIGITS), axis=0, return_index=True, return_inverse=True)
        self.table = torch.from_numpy(flat[first])
        self.empty = {name: int(ids[index]) for index, name in enumerate(bare)}
        parts = np.split(ids[len(bare) :], np.cumsum([cells.shape[0] ** 2 for cells in found.values()])[:-1])
        self.glyphs: dict[tuple[str, str, str], Codes] = {
            name: part.reshape(cells.shape[:2]) for (name, cells), part in zip(found.items(), parts, strict=True)
        }
        seen = {name: ids[ids != self.empty[name[0]]] for name, ids in self.glyphs.items()}
        if hidden := [kind for (_, _, kind), ids in seen.items() if not len(ids)]:
            raise InvalidArgument(
                f"latents of this encoder do not tell {hidden[0]!r} from the background; train it for longer."
            )
        firsts = {int(ids[0]) for ids in seen.values()}
        self.firsts = torch.zeros(len(self.table), dtype=torch.long)
        self.firsts[sorted(firsts)] = torch.arange(1, len(firsts) + 1)

    @staticmethod
    @torch.no_grad()
    def encode(codec: LatentAutoencoder, scenes: list[Scene], side: int) -> Latents:
        """The upper left `side` x `side` cells of scenes."""
        pixels = to_pixels([scene.render()[: side * GRID, : side * GRID] for scene in scenes])
        latents: Latents = codec.encode(pixels).numpy()
        return latents

    def ids(self, scene: Scene) -> Codes:
        """Which latents a scene has, `[H/8, W/8]`."""
        ids = np.full((SIDE, SIDE), self.empty[scene.background])
        for item in scene.objects:
            glyph = self.glyphs[scene.background, item.size, item.kind]
            row, column = item.y // GRID, item.x // GRID
            ids[row : row + len(glyph), column : column + len(glyph)] = glyph
        return ids

    def of(self, scenes: list[Scene]) -> Tensor:
        """Latents of scenes, `[B, H/8, W/8, C]`."""
        return self.table[torch.from_numpy(np.stack([self.ids(scene) for scene in scenes]))]


@dataclass(frozen=True)
class LatentBatch:
    """Captions and latents. ids: `[B, L]`, zeros where latents stand; begins: `[B]`, the place of the first.

    latents: `[B, CELLS, C]` without noise. could: `[B, CELLS, K, C]`, what every latent could have been given those
    before it, and chances `[B, CELLS, K]`, which are 0 where there is nothing to learn; firsts `[B, CELLS, K]`: what
    would begin with it, 0 for nothing. plain: `[B, CELLS]`, bare background for sure. begun: `[B, CELLS]`, something
    stands there or before. whole: `[B, CELLS]`, something may begin there and its chances are of all that the model
    does not see (`posterior.laws`). told: `[B]`, the caption is there. scenes: what the latents are of.
    """

    ids: Tensor
    begins: Tensor
    latents: Tensor
    could: Tensor
    chances: Tensor
    firsts: Tensor
    plain: Tensor
    begun: Tensor
    whole: Tensor
    told: Tensor
    scenes: tuple[Scene, ...]

    @property
    def over(self) -> Tensor:
        """`[B, CELLS]`: bare background for sure after something has begun, so that no more may begin there."""
        return self.plain & self.begun

    def replaced(self, rows: Sequence[int], others: LatentBatch) -> LatentBatch:
        """This batch with `rows` of it those of `others`, in order."""
        at = torch.tensor(rows)
        names = [field.name for field in fields(self) if field.name != "scenes"]
        mixed = {name: getattr(self, name).index_copy(0, at, getattr(others, name)) for name in names}
        scenes = dict(enumerate(self.scenes)) | dict(zip(rows, others.scenes, strict=True))
        return replace(self, **mixed, scenes=tuple(scenes.values()))


def last_begun(scene: Scene) -> int:
    """The cell that a scene's last thing stands on first."""
    return max(map(corner, scene.objects))


class LatentBatches:
    """Scenes with the laws of their latents; one caption in `drop` is left out for guidance.

    Where things have to come since there is hardly room left, all that follows hangs on it, but few scenes get there.
    So there are more of these than there would be; what could follow is the same, given what is seen and the sizes.
    """

    def __init__(self, glyphs: GlyphLatents, seed: int, held_out: bool = False, drop: float = 0.1) -> None:
        self.glyphs, self.held_out, self.drop = glyphs, held_out, drop
        self.text = vocabulary.build(words(), synonyms())
        self.rng = np.random.default_rng(seed)

    def captioned(self) -> tuple[str, Scene, Codes, Floats, Bools]:
        """A composition from the grammar: its caption, and the law of every latent (`posterior.py`)."""
        composition = random_composition(self.rng, self.held_out)
        scene = max((place(composition, self.rng) for _ in range(self.places(composition))), key=last_begun)
        empty = self.glyphs.empty[scene.background]
        caption = "" if self.rng.random() < self.drop else describe(composition, self.rng)
        return caption, scene, *laws(composition, scene, self.glyphs.ids(scene), empty, int(self.rng.integers(6)))

    def places(self, composition: Composition) -> int:
        """How often things are placed, of which the latest is taken; not of three, where one of them is held."""
        whole = sum(group.count for group in composition.groups) < MOST
        return PLACES if whole and self.rng.random() < LATE and not self.held_out else 1

    def packed(self) -> tuple[str, Scene, Codes, Floats, Bools]:
        """Many objects at once; only what the latents before settle counts."""
        scene = packed_scene(self.rng)
        ids = self.glyphs.ids(scene)
        chances = np.zeros((CELLS, 1 + MOST), np.float32)
        for item in scene.objects:
            chances[settled(ids, item, self.glyphs.empty[scene.background]), 0] = 1
        could = np.repeat(ids.reshape(-1, 1), 1 + MOST, 1)
        return list_objects(scene, self.rng), scene, could, chances, np.zeros(CELLS, bool)

    def next(self, rows: int, packed: float = 0.0) -> LatentBatch:
        """The next batch, a share `packed` of it packed scenes."""
        samples = [self.packed() if self.rng.random() < packed else self.captioned() for _ in range(rows)]
        ids = torch.full((rows, LONGEST_PROMPT + CELLS), vocabulary.PAD)
        begins = torch.zeros(rows, dtype=torch.long)
        for row, (caption, *_) in enumerate(samples):
            prompt = vocabulary.prompt_ids(self.text, caption)
            begins[row] = len(prompt)
            ids[row, : len(prompt)] = torch.tensor(prompt)
        by_cell = zip(*[law for _, _, *law in samples], strict=True)
        could, chances, whole = (torch.from_numpy(np.stack(law)) for law in by_cell)
        empty = torch.tensor([self.glyphs.empty[scene.background] for _, scene, *_ in samples])
        there = torch.from_numpy(np.stack([self.glyphs.ids(scene) for _, scene, *_ in samples])).flatten(1)
        return LatentBatch(
            ids, begins, self.glyphs.table[there], self.glyphs.table[could], chances, self.glyphs.firsts[could],
            (could[..., 0] == empty[:, None]) & (chances[..., 0] == 1), (there != empty[:, None]).cumsum(1) > 0,
            whole, torch.tensor([bool(caption) for caption, *_ in samples]), tuple(scene for _, scene, *_ in samples),
        )  # fmt: skip
