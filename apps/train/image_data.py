"""What `tiny-image` is trained on: rendered scenes as pixels for the tokenizer, as captions and codes for the LM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer, channels_last
from polydraft.modalities.world.captions import describe, with_article
from polydraft.modalities.world.captions import vocabulary as words
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    Placed,
    Scene,
    overlap,
    place,
    random_composition,
)

LONGEST_PROMPT = 16
MOST_LISTED = 8  # objects of a packed scene whose caption fits in a prompt


def packed_scene(rng: np.random.Generator, tries: int = 24) -> Scene:
    """A canvas as full of objects as `tries` random placements make it."""
    objects: list[Placed] = []
    for attempt in range(tries):
        size = "large" if attempt < tries // 3 else "small"
        x, y = rng.integers((CANVAS - SIZES[size]) // GRID + 1, size=2) * GRID
        item = Placed(list(KINDS)[rng.integers(len(KINDS))], size, int(x), int(y))
        if len(objects) < MOST_LISTED and not any(overlap(item, other) for other in objects):
            objects.append(item)
    return Scene(list(BACKGROUNDS)[rng.integers(len(BACKGROUNDS))], tuple(objects))


def list_objects(scene: Scene, rng: np.random.Generator) -> str:
    """ "cat fox cat on a blue background": the caption of a packed scene, its objects in any order."""
    kinds = rng.permutation([item.kind for item in scene.objects])
    return f"{' '.join(kinds)} on {with_article(f'a {scene.background}')} background"


def to_pixels(pictures: list[NDArray[np.uint8]]) -> Tensor:
    """`[B, 3, H, W]` in -1..1."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1.0


class GlyphCodes:
    """The codes of every glyph on every background, from which whole scenes are pasted together.

    A code depends on its own cell alone and objects stand on cells, so this equals rendering and encoding the scene.
    """

    def __init__(self, vq: VQTokenizer) -> None:
        self.side = CANVAS // GRID
        empty = self.encode(vq, [Scene(name, ()) for name in BACKGROUNDS])
        self.empty = {name: codes[0, 0] for name, codes in zip(BACKGROUNDS, empty, strict=True)}
        self.glyphs: dict[tuple[str, str, str], NDArray[np.int64]] = {}
        for background in BACKGROUNDS:
            for size, pixels in SIZES.items():
                cells = pixels // GRID
                pictures = self.encode(vq, [Scene(background, (Placed(kind, size, 0, 0),)) for kind in KINDS])
                for kind, codes in zip(KINDS, pictures, strict=True):
                    self.glyphs[background, size, kind] = codes[:cells, :cells]

    @staticmethod
    @torch.no_grad()
    def encode(vq: VQTokenizer, scenes: list[Scene]) -> NDArray[np.int64]:
        pixels = to_pixels([scene.render() for scene in scenes]).to(torch.bfloat16)
        codes: NDArray[np.int64] = vq.encode(pixels.contiguous(memory_format=torch.channels_last)).numpy()
        return codes

    def of(self, scene: Scene) -> NDArray[np.int64]:
        """A scene's codes, `[H/8, W/8]`."""
        codes = np.full((self.side, self.side), self.empty[scene.background])
        for item in scene.objects:
            glyph = self.glyphs[scene.background, item.size, item.kind]
            row, column = item.y // GRID, item.x // GRID
            codes[row : row + len(glyph), column : column + len(glyph)] = glyph
        return codes


class Batches:
    """Captions and codes of scenes: ids `[B, L]` (right padded) and labels (-100 off the codes).

    One caption in `drop` is left out for guidance (Ho and Salimans 2022, "Classifier-Free Diffusion Guidance").
    """

    def __init__(self, vq_folder: Path, seed: int, held_out: bool = False, drop: float = 0.1) -> None:
        vq = channels_last(VQTokenizer.from_folder(vq_folder).to(torch.bfloat16))
        self.codes = GlyphCodes(vq)
        self.text = vocabulary.build(words())
        self.offset = vocabulary.code_offset(self.text)
        self.vocab_size = self.offset + vq.config.codebook_size
        self.rng, self.held_out, self.drop = np.random.default_rng(seed), held_out, drop

    def captioned(self) -> tuple[str, Scene]:
        """A composition from the grammar, drawn once."""
        composition = random_composition(self.rng, self.held_out)
        scene = place(composition, self.rng)
        return ("" if self.rng.random() < self.drop else describe(composition, self.rng)), scene

    def packed(self) -> tuple[str, Scene]:
        """Many objects at once: what glyphs look like is learned sooner than from scenes that are mostly empty."""
        scene = packed_scene(self.rng)
        return list_objects(scene, self.rng), scene

    def next(self, rows: int, packed: float = 0.0) -> tuple[Tensor, Tensor]:
        """The next batch, a share `packed` of it packed scenes."""
        samples = [self.packed() if self.rng.random() < packed else self.captioned() for _ in range(rows)]
        length = LONGEST_PROMPT + self.codes.side**2  # one shape for every batch: compiled once
        ids = torch.full((rows, length), vocabulary.PAD)
        labels = torch.full((rows, length), -100)
        for row, (caption, scene) in enumerate(samples):
            prompt = vocabulary.prompt_ids(self.text, caption)
            codes = torch.from_numpy(self.codes.of(scene)).flatten() + self.offset
            end = len(prompt) + len(codes)
            ids[row, : len(prompt)] = torch.tensor(prompt)
            ids[row, len(prompt) : end] = labels[row, len(prompt) : end] = codes
        return ids, labels
