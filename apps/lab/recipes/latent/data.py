"""Training data of `tiny-latent`: scenes as captions and latents, and the exact distribution of every latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.lab.recipes.image.data import (
    LONGEST_PROMPT,
    Bools,
    Codes,
    images_to_tensor,
    list_objects,
    packed_scene,
)
from polydraft.apps.lab.recipes.latent.posterior import (
    MAX_OBJECTS,
    Floats,
    cell_posteriors,
    corner_cell,
    determined_cells,
)
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    GRID,
    GRID_SIDE,
    NUM_CELLS,
    Composition,
    PlacedObject,
    Scene,
    place_objects,
    random_composition,
)
from polydraft.modalities.world.words.captions import caption_vocabulary as words
from polydraft.modalities.world.words.captions import plural_synonyms, write_caption

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Latents = NDArray[np.float32]

# A cell this near to the bare background is taken as background: first cells of objects have to be visible through the
# noise of tokens, at a multiple of it that is seldom mistaken, and so faint an edge is not missed in an image.
NEAR = 0.7
DIGITS = 3  # decimal places in which distinct latents differ
LATE = 0.4  # share of scenes with one or two objects that are the latest of `PLACES` placements
PLACES = 60


class GlyphLatents:
    """Latents of every glyph on every background, from which flat scenes are assembled.

    A latent depends on its own cell alone and objects are aligned to cells, so this equals rendering and encoding the
    scene.

    Attributes:
        table (Tensor): [N, C] all distinct latents; scenes are ids into it.
        start_classes (Tensor): [N] long, first latents of objects numbered from 1, 0 for all others.
    """

    def __init__(self, codec: LatentAutoencoder) -> None:
        found: dict[tuple[str, str, str], Latents] = {}
        bare: dict[str, Latents] = {}
        for background in BACKGROUNDS:
            bare[background] = self.encode(codec, [Scene(background, ())], 1)[0, 0, 0]
            for size, pixels in GLYPH_SIZES.items():
                pictures = [Scene(background, (PlacedObject(kind, size, 0, 0),)) for kind in KINDS]
                latents = self.encode(codec, pictures, pixels // GRID)
                latents[np.linalg.norm(latents - bare[background], axis=-1) < NEAR] = bare[background]
                found |= {(background, size, kind): cells for kind, cells in zip(KINDS, latents, strict=True)}
        flat = np.concatenate(
            [np.stack(list(bare.values())), *(cells.reshape(-1, codec.size) for cells in found.values())]
        )
        _, first, ids = np.unique(flat.round(DIGITS), axis=0, return_index=True, return_inverse=True)
        self.table: Tensor = torch.from_numpy(flat[first])
        self.empty: dict[str, int] = {name: int(ids[index]) for index, name in enumerate(bare)}
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
        self.start_classes: Tensor = torch.zeros(len(self.table), dtype=torch.long)
        self.start_classes[sorted(firsts)] = torch.arange(1, len(firsts) + 1)

    @staticmethod
    @torch.no_grad()
    def encode(codec: LatentAutoencoder, scenes: list[Scene], side: int) -> Latents:
        """Return latents of the upper left `side` x `side` cells of scenes."""
        pixels = images_to_tensor([scene.render()[: side * GRID, : side * GRID] for scene in scenes])
        latents: Latents = codec.encode(pixels).numpy()
        return latents

    def scene_ids(self, scene: Scene) -> Codes:
        """Return ids [H/8, W/8] of a scene's latents in `table`."""
        ids = np.full((GRID_SIDE, GRID_SIDE), self.empty[scene.background])
        for item in scene.objects:
            glyph = self.glyphs[scene.background, item.size, item.kind]
            row, column = item.y // GRID, item.x // GRID
            ids[row : row + len(glyph), column : column + len(glyph)] = glyph
        return ids

    def encode_scenes(self, scenes: list[Scene]) -> Tensor:
        """Return the latents [B, H/8, W/8, C] of scenes."""
        return self.table[torch.from_numpy(np.stack([self.scene_ids(scene) for scene in scenes]))]


@dataclass(frozen=True)
class LatentBatch:
    """Captions and latents of scenes, and the exact distribution of every latent given those before it."""

    ids: Tensor  # [B, L], zeros at positions of latents
    latent_starts: Tensor  # [B] position of the first latent
    latents: Tensor  # [B, CELLS, C] without noise
    candidates: Tensor  # [B, CELLS, K, C] possible values of every latent given those before it
    candidate_probs: Tensor  # [B, CELLS, K], all 0 where there is nothing to learn
    candidate_classes: Tensor  # [B, CELLS, K] object that would start with it, 0 for none
    is_background: Tensor  # [B, CELLS] background with certainty
    has_started: Tensor  # [B, CELLS] an object covers the cell or one before it
    is_exact: Tensor  # [B, CELLS] an object may start, and its posterior needs no fixed object (`posterior.py`)
    has_caption: Tensor  # [B]
    scenes: tuple[Scene, ...]

    @property
    def is_finished(self) -> Tensor:
        """Return [B, CELLS] bool: background with certainty after an object has started, so that none may start."""
        return self.is_background & self.has_started

    def replace_rows(self, rows: Sequence[int], others: LatentBatch) -> LatentBatch:
        """Return this batch with its `rows` replaced by those of `others`, in order."""
        at = torch.tensor(rows)
        names = [field.name for field in fields(self) if field.name != "scenes"]
        mixed = {name: getattr(self, name).index_copy(0, at, getattr(others, name)) for name in names}
        scenes = dict(enumerate(self.scenes)) | dict(zip(rows, others.scenes, strict=True))
        return replace(self, **mixed, scenes=tuple(scenes.values()))


def last_start_cell(scene: Scene) -> int:
    """Return the first cell of a scene's last object."""
    return max(map(corner_cell, scene.objects))


class LatentBatches:
    """Endless batches of scenes with the distributions of their latents; a share `drop` of captions is empty.

    Cells where objects must start since there is hardly room left decide about the whole image, but few scenes reach
    them. So such scenes are oversampled; the distribution of what follows is the same, given what is visible and the
    sizes.
    """

    def __init__(self, glyphs: GlyphLatents, seed: int, held_out: bool = False, drop: float = 0.1) -> None:
        self.glyphs: GlyphLatents = glyphs
        self.held_out: bool = held_out
        self.drop: float = drop
        self.text: Tokenizer = vocabulary.build_tokenizer(words(), plural_synonyms())
        self.rng: np.random.Generator = np.random.default_rng(seed)

    def sample_captioned(self) -> tuple[str, Scene, Codes, Floats, Bools]:
        """Sample a composition from the grammar; return caption, scene and the distributions of `posterior.py`."""
        composition = random_composition(self.rng, self.held_out)
        placements = (place_objects(composition, self.rng) for _ in range(self.num_placements(composition)))
        scene = max(placements, key=last_start_cell)
        empty = self.glyphs.empty[scene.background]
        caption = "" if self.rng.random() < self.drop else write_caption(composition, self.rng)
        ids = self.glyphs.scene_ids(scene)
        return caption, scene, *cell_posteriors(composition, scene, ids, empty, int(self.rng.integers(6)))

    def num_placements(self, composition: Composition) -> int:
        """Return how many placements are sampled, of which the latest is used; one where three objects are placed."""
        is_exact = sum(group.count for group in composition.groups) < MAX_OBJECTS
        return PLACES if is_exact and self.rng.random() < LATE and not self.held_out else 1

    def sample_packed(self) -> tuple[str, Scene, Codes, Floats, Bools]:
        """Sample a packed scene; only latents that those before determine are trained on."""
        scene = packed_scene(self.rng)
        ids = self.glyphs.scene_ids(scene)
        probs = np.zeros((NUM_CELLS, 1 + MAX_OBJECTS), np.float32)
        for item in scene.objects:
            probs[determined_cells(ids, item, self.glyphs.empty[scene.background]), 0] = 1
        candidates = np.repeat(ids.reshape(-1, 1), 1 + MAX_OBJECTS, 1)
        return list_objects(scene, self.rng), scene, candidates, probs, np.zeros(NUM_CELLS, bool)

    def next_batch(self, rows: int, packed: float = 0.0) -> LatentBatch:
        """Return the next batch, a share `packed` of it packed scenes."""
        samples = [self.sample_packed() if self.rng.random() < packed else self.sample_captioned() for _ in range(rows)]
        ids = torch.full((rows, LONGEST_PROMPT + NUM_CELLS), vocabulary.PAD)
        begins = torch.zeros(rows, dtype=torch.long)
        for row, (caption, *_) in enumerate(samples):
            prompt = vocabulary.encode_prompt(self.text, caption)
            begins[row] = len(prompt)
            ids[row, : len(prompt)] = torch.tensor(prompt)
        by_cell = zip(*[posterior for _, _, *posterior in samples], strict=True)
        candidates, probs, is_exact = (torch.from_numpy(np.stack(posterior)) for posterior in by_cell)
        empty = torch.tensor([self.glyphs.empty[scene.background] for _, scene, *_ in samples])
        scene_ids = torch.from_numpy(np.stack([self.glyphs.scene_ids(scene) for _, scene, *_ in samples])).flatten(1)
        return LatentBatch(
            ids, begins, self.glyphs.table[scene_ids], self.glyphs.table[candidates], probs,
            self.glyphs.start_classes[candidates], (candidates[..., 0] == empty[:, None]) & (probs[..., 0] == 1),
            (scene_ids != empty[:, None]).cumsum(1) > 0, is_exact,
            torch.tensor([bool(caption) for caption, *_ in samples]), tuple(scene for _, scene, *_ in samples),
        )  # fmt: skip
