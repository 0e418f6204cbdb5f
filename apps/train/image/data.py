"""What `tiny-image` is trained on: rendered scenes as pixels for the tokenizer, as captions and codes for the LM."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.train.image.posterior import (
    CELLS,
    MOST,
    SIDE,
    Bools,
    Codes,
    Floats,
    behind,
    corner,
    first_of,
    laws,
    settled,
)
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer, channels_last
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.painting.matte import shown
from polydraft.modalities.world.painting.settings import SETTINGS
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
from polydraft.modalities.world.words.captions import describe, in_setting, synonyms, with_article
from polydraft.modalities.world.worlds import FLAT, World

if TYPE_CHECKING:
    from polydraft.apps.train.image.textured import Source

LONGEST_PROMPT = 16
LONGEST_IN_SETTINGS = 24  # "in front of a brick wall" is longer than "on a blue background"
MOST_LISTED = 8  # objects of a packed scene whose caption fits in a prompt


def packed_scene(rng: np.random.Generator, tries: int = 24, backgrounds: Sequence[str] = tuple(BACKGROUNDS)) -> Scene:
    """A canvas as full of objects as `tries` random placements make it."""
    objects: list[Placed] = []
    for attempt in range(tries):
        size = "large" if attempt < tries // 3 else "small"
        x, y = rng.integers((CANVAS - SIZES[size]) // GRID + 1, size=2) * GRID
        item = Placed(list(KINDS)[rng.integers(len(KINDS))], size, int(x), int(y))
        if len(objects) < MOST_LISTED and not any(overlap(item, other) for other in objects):
            objects.append(item)
    background = backgrounds[int(rng.integers(len(backgrounds)))]
    return Scene(background, tuple(objects), 0 if background in BACKGROUNDS else int(rng.integers(2**32)))


def list_objects(scene: Scene, rng: np.random.Generator) -> str:
    """ "cat fox cat on a blue background": the caption of a packed scene, its objects in any order."""
    kinds = rng.permutation([item.kind for item in scene.objects])
    if scene.background in SETTINGS:
        return in_setting(" ".join(kinds), scene.background, rng)
    return f"{' '.join(kinds)} on {with_article(f'a {scene.background}')} background"


def to_pixels(pictures: list[NDArray[np.uint8]]) -> Tensor:
    """`[B, 3, H, W]` in -1..1."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def encoded(vq: VQTokenizer, pixels: Tensor) -> Codes:
    """Codes `[B, H/8, W/8]` of pictures `[B, 3, H, W]`."""
    pixels = pixels.to(vq.codebook.dtype).contiguous(memory_format=torch.channels_last)
    codes: Codes = vq.encode(pixels).numpy()
    return codes


def open_tokenizer(folder: Path) -> VQTokenizer:
    """As it ships, in the precision that is quick here."""
    return channels_last(VQTokenizer.from_folder(folder).to(fast_dtype()))


def views(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """Pictures and what codes tell of them, `[B, 3, H, W]` in -1..1, laid out for fast CPU convolutions."""
    pictures, told = zip(*(scene.views() for scene in scenes), strict=True)
    pixels, matted = (to_pixels(list(some)).contiguous(memory_format=torch.channels_last) for some in (pictures, told))
    return pixels, matted


def boxes(scenes: list[Scene], things: float) -> Tensor:
    """`[B, 1, 128, 128]`: what every pixel counts, 1 on average; in a thing's box `things` times as much."""
    weight = torch.ones(len(scenes), 1, CANVAS, CANVAS)
    for row, scene in enumerate(scenes):
        for item in scene.objects:
            weight[row, 0, item.y : item.y + item.side, item.x : item.x + item.side] = things
    return weight / weight.mean()


def grounds(weight: Tensor) -> Tensor:
    """`[B, H/8, W/8]`: share of every cell outside all things' boxes, from what `boxes` says."""
    outside = weight <= weight.amin((1, 2, 3), keepdim=True)
    return F.avg_pool2d(outside.float(), GRID)[:, 0]


def outline(scene: Scene) -> Codes:
    """`[MOST_LISTED, 2]`: every thing's kind, by number, and the first cell that shows it; of things that are not there
    the number behind the last kind, and cell -1."""
    found = np.tile([len(KINDS), -1], (MOST_LISTED, 1))
    for row, item in enumerate(scene.objects):
        found[row] = list(KINDS).index(item.kind), corner(item) + first_of(shown(item.kind, item.size))
    return found


def begun(scene: Scene) -> Bools:
    """`[H/8, W/8]`: cells in a thing's box behind the first that shows it: from there on it is seen to be there."""
    found = np.zeros(CELLS, bool)
    for item in scene.objects:
        found[behind(item, first_of(shown(item.kind, item.size)))] = True
    return found.reshape(SIDE, SIDE)


class GlyphCodes:
    """The codes of every glyph on every background, from which whole scenes are pasted together.

    A code depends on its own cell alone and objects stand on cells, so this equals encoding the scene.
    """

    def __init__(self, vq: VQTokenizer) -> None:
        self.side, self.size = CANVAS // GRID, vq.config.codebook_size
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
        return encoded(vq, to_pixels([scene.matted() for scene in scenes]))

    def of(self, scene: Scene) -> NDArray[np.int64]:
        """A scene's codes, `[H/8, W/8]`."""
        codes = np.full((self.side, self.side), self.empty[scene.background])
        for item in scene.objects:
            glyph = self.glyphs[scene.background, item.size, item.kind]
            row, column = item.y // GRID, item.x // GRID
            codes[row : row + len(glyph), column : column + len(glyph)] = glyph
        return codes


@functools.lru_cache(maxsize=2)
def glyph_codes(folder: Path, changed: int) -> GlyphCodes:
    """Of the tokenizer in `folder`, whose weights changed then: a thousand pictures, encoded once for all batches."""
    return GlyphCodes(open_tokenizer(folder))


@dataclass(frozen=True)
class Batch:
    """ids `[B, L]` right-padded. What the token at every place could have been, and the chances: choices and chances
    `[B, L, K]`; chances are 0 where there is nothing to learn. starts `[B, L]`: where an object may begin. weight
    `[B, L]`: what a place counts. cells `[B, L]`: which cell a code is of, -1 for the caption. kinds, begins
    `[B, MOST_LISTED]`: things as `outline` has them.
    """

    ids: Tensor
    choices: Tensor
    chances: Tensor
    starts: Tensor
    weight: Tensor
    cells: Tensor
    kinds: Tensor
    begins: Tensor


class Sample(NamedTuple):
    """A scene of a batch: codes `[H/8, W/8]`; laws as `posterior.laws` has them; weight `[CELLS]`; things as
    `outline` has them."""

    caption: str
    codes: Codes
    laws: tuple[Codes, Floats, Bools]
    weight: Floats
    things: Codes


class Batches:
    """Captions and codes of scenes, with the laws of their codes.

    One caption in `drop` is left out for guidance (Ho and Salimans 2022, "Classifier-Free Diffusion Guidance").
    In a world with settings a share `textured` of the scenes come from `source`. What could begin where is counted
    there, too, but nobody can count what a texture could have been: its law is the code itself, and its divergence is
    the cross-entropy. Most of that nobody could know, and it drowns what can be: cells of things already begun count
    `things` times as much as others. Whether one has begun is known from the codes before it, so that the best law
    stays the same.
    """

    longest = LONGEST_PROMPT

    def __init__(
        self, vq_folder: Path, seed: int, held_out: bool = False, drop: float = 0.1, world: World = FLAT,
        source: Source | None = None, textured: float = 0.0, things: float = 1.0,
    ) -> None:  # fmt: skip
        self.codes = glyph_codes(vq_folder, (vq_folder / "model.safetensors").stat().st_mtime_ns)
        self.text = vocabulary.build(world.vocabulary(), synonyms())
        self.source, self.textured, self.things = source, textured if source else 0.0, things
        if world.settings:
            self.longest = LONGEST_IN_SETTINGS
        self.offset = vocabulary.code_offset(self.text)
        self.vocab_size = self.offset + self.codes.size
        self.rng, self.held_out, self.drop = np.random.default_rng(seed), held_out, drop

    def captioned(self) -> tuple[str, Scene, tuple[Codes, Floats, Bools]]:
        """A composition from the grammar, drawn once: its caption, and the law of every code."""
        composition = random_composition(self.rng, self.held_out)
        scene = place(composition, self.rng)
        codes, empty = self.codes.of(scene), int(self.codes.empty[scene.background])
        caption = "" if self.rng.random() < self.drop else describe(composition, self.rng)
        return caption, scene, laws(composition, scene, codes, empty, int(self.rng.integers(6)))

    def packed(self) -> tuple[str, Scene, tuple[Codes, Floats, Bools]]:
        """Many objects at once: what glyphs look like is learned sooner than from scenes that are mostly empty.

        Only codes that the codes before them settle count; where objects begin is for the grammar's scenes to teach.
        """
        scene = packed_scene(self.rng)
        codes = self.codes.of(scene)
        chances = np.zeros((CELLS, 1 + MOST), np.float32)
        for item in scene.objects:
            chances[settled(codes, item, int(self.codes.empty[scene.background])), 0] = 1
        laws = np.repeat(codes.reshape(-1, 1), 1 + MOST, 1), chances, np.zeros(CELLS, bool)
        return list_objects(scene, self.rng), scene, laws

    def in_setting(self, packed: float) -> Sample:
        """A textured scene: its caption, its codes, and their laws as far as they can be counted. None is whole: what
        begins is not the only thing that could be there beside the code that is."""
        assert self.source is not None
        told = self.source.next(packed)
        caption = "" if self.rng.random() < self.drop else told.captions[self.rng.integers(len(told.captions))]
        found = told.choices, told.chances, np.zeros(CELLS, bool)
        weight = np.where(told.begun.ravel(), self.things, 1.0).astype(np.float32)
        return Sample(caption, told.codes, found, weight, told.things)

    def sample(self, packed: float) -> Sample:
        if self.textured and self.rng.random() < self.textured:
            return self.in_setting(packed)
        caption, scene, found = self.packed() if self.rng.random() < packed else self.captioned()
        return Sample(caption, self.codes.of(scene), found, np.ones(CELLS, np.float32), outline(scene))

    def next(self, rows: int, packed: float = 0.0) -> Batch:
        """The next batch, a share `packed` of it packed scenes."""
        samples = [self.sample(packed) for _ in range(rows)]
        length = self.longest + CELLS  # one shape for every batch: compiled once
        ids = torch.full((rows, length), vocabulary.PAD)
        choices, chances = torch.zeros(rows, length, 1 + MOST, dtype=torch.long), torch.zeros(rows, length, 1 + MOST)
        starts, weight = torch.zeros(rows, length, dtype=torch.bool), torch.zeros(rows, length)
        cells = torch.full((rows, length), -1)
        for row, (caption, codes, (what, how_likely, may_begin), counts, _) in enumerate(samples):
            prompt = vocabulary.prompt_ids(self.text, caption)
            here = slice(len(prompt), len(prompt) + CELLS)
            ids[row, : len(prompt)] = torch.tensor(prompt)
            ids[row, here] = torch.from_numpy(codes).flatten() + self.offset
            choices[row, here], chances[row, here] = torch.from_numpy(what) + self.offset, torch.from_numpy(how_likely)
            starts[row, here], weight[row, here] = torch.from_numpy(may_begin), torch.from_numpy(counts)
            cells[row, here] = torch.arange(CELLS)
        kinds, begins = torch.from_numpy(np.stack([one.things for one in samples])).unbind(-1)
        return Batch(ids, choices, chances, starts, weight, cells, kinds, begins)
