"""What `tiny-image` is trained on: rendered scenes as pixels for the tokenizer, as captions and codes for the LM."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.apps.train.image.placing import laws
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import plan, vocabulary
from polydraft.modalities.image.vq import VQTokenizer, channels_last
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.painting.matte import shown
from polydraft.modalities.world.painting.staging import TURNS, turned
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    CELLS,
    GRID,
    SIDE,
    Placed,
    Scene,
    overlap,
    place,
    random_composition,
    somewhere,
)
from polydraft.modalities.world.words.captions import describe, with_article
from polydraft.modalities.world.worlds import FLAT, World

if TYPE_CHECKING:
    from polydraft.apps.train.image.textured import Source

Codes = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

LONGEST_PROMPT = 16
LONGEST_IN_SETTINGS = 24  # "in front of a brick wall" is longer than "on a blue background"
MOST_LISTED = 8  # objects of a packed scene whose caption fits in a prompt


def packed_scene(
    rng: np.random.Generator, tries: int = 24, backgrounds: Sequence[str] = tuple(BACKGROUNDS),
    chances: Floats | None = None,
) -> Scene:  # fmt: skip
    """A canvas as full of objects as `tries` random placements make it. chances: of every kind, `[K]`; all are equally
    likely unless given."""
    objects: list[Placed] = []
    for attempt in range(tries):
        size = "large" if attempt < tries // 3 else "small"
        x, y = somewhere(size, rng)
        item = Placed(list(KINDS)[rng.choice(len(KINDS), p=chances)], size, x, y)
        if len(objects) < MOST_LISTED and not any(overlap(item, other) for other in objects):
            objects.append(item)
    background = backgrounds[int(rng.integers(len(backgrounds)))]
    return Scene(background, tuple(objects), 0 if background in BACKGROUNDS else int(rng.integers(2**32)))


def list_objects(scene: Scene, rng: np.random.Generator) -> str:
    """ "cat fox cat on a blue background": the caption of a packed scene, its objects in any order."""
    kinds = rng.permutation([item.kind for item in scene.objects])
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
    """`[B, 1, 128, 128]`: what every pixel counts, 1 on average; in a thing's box `things` times as much on average.

    Half of what it counts more is for the thing's own: a bicycle is a quarter of its box, and else drowns in the ground
    it stands on.
    """
    weight = torch.ones(len(scenes), 1, CANVAS, CANVAS)
    for row, scene in enumerate(scenes):
        for item in scene.objects:
            box = weight[row, 0, item.y : item.y + item.side, item.x : item.x + item.side]
            box[:] = 1 + (things - 1) * (1 + own(item.kind, item.size)) / 2
    return weight / weight.mean()


@functools.cache
def own(kind: str, size: str) -> Tensor:
    """`[S, S]`: how much of a thing's box is the thing, however it is turned, over the mean of that."""
    alpha = torch.stack([torch.from_numpy(turned(kind, size, turn)[..., 3]) for turn in TURNS]).mean(0)
    return alpha / alpha.mean()


def grounds(weight: Tensor) -> Tensor:
    """`[B, H/8, W/8]`: share of every cell outside all things' boxes, from what `boxes` says."""
    outside = weight <= weight.amin((1, 2, 3), keepdim=True)
    return F.avg_pool2d(outside.float(), GRID)[:, 0]


def belonging(things: Iterable[Placed]) -> Bools:
    """`[H/8, W/8]`: cells that belong to things."""
    found = np.zeros((SIDE, SIDE), bool)
    for item in things:
        cells, row, column = shown(item.kind, item.size), item.y // GRID, item.x // GRID
        found[row : row + len(cells), column : column + len(cells)] |= cells
    return found


def counting(things: Sequence[Placed], thing: float, first: float) -> Floats:
    """`[CELLS]`: what every cell counts: `first` where a thing begins, `thing` where one goes on, 1 elsewhere."""
    found = np.where(belonging(things).ravel(), thing, 1.0)
    for item in things:
        found[belonging([item]).argmax()] = first
    return found


class GlyphCodes:
    """The codes of every glyph on every background, from which whole scenes are pasted together.

    A code depends on its own cell alone and objects stand on cells, so this equals encoding the scene.
    """

    def __init__(self, vq: VQTokenizer) -> None:
        self.size = vq.config.codebook_size
        empty = self.encode(vq, [Scene(name, ()) for name in BACKGROUNDS], 1)
        self.empty = {name: codes[0, 0] for name, codes in zip(BACKGROUNDS, empty, strict=True)}
        self.glyphs: dict[tuple[str, str, str], NDArray[np.int64]] = {}
        for background in BACKGROUNDS:
            for size, pixels in SIZES.items():
                cells = pixels // GRID
                alone = self.encode(vq, [Scene(background, (Placed(kind, size, 0, 0),)) for kind in KINDS], cells)
                for kind, codes in zip(KINDS, alone, strict=True):
                    self.glyphs[background, size, kind] = codes

    @staticmethod
    @torch.no_grad()
    def encode(vq: VQTokenizer, scenes: list[Scene], cells: int = SIDE) -> NDArray[np.int64]:
        """Codes of so many cells down and across from the top left corner, `[B, cells, cells]`."""
        side = cells * GRID
        return encoded(vq, to_pixels([scene.matted()[:side, :side] for scene in scenes]))

    def of(self, scene: Scene) -> NDArray[np.int64]:
        """A scene's codes, `[H/8, W/8]`."""
        codes = np.full((SIDE, SIDE), self.empty[scene.background])
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
    """Pictures: ids `[B, L]` right-padded. weight `[B, L]`: what a code counts, 0 elsewhere. planned `[B, L]`: ids of
    plans."""

    ids: Tensor
    weight: Tensor
    planned: Tensor


@dataclass(frozen=True)
class Plans:
    """Plans that nobody draws: ids `[B, L]` and planned `[B, L]` as above; chances `[B, plan.LENGTH, words]`: of every
    word, at every token of a plan."""

    ids: Tensor
    planned: Tensor
    chances: Tensor


class Sample(NamedTuple):
    """A scene of a batch: its caption, what its plan says, its codes `[H/8, W/8]` and what each counts."""

    caption: str
    plan: list[str]
    codes: Codes
    weight: Floats


class Batches:
    """Captions, plans and codes of scenes.

    One caption in `drop` is left out for guidance (Ho and Salimans 2022, "Classifier-Free Diffusion Guidance").
    In a world with settings a share `textured` of the scenes come from `source`. Most that a texture's code says nobody
    could know, and it drowns what can be: cells of things count `things` times as much as others, and where a thing
    begins `first` times. Which these are the plan has said, so that the best law stays the same; a model that is not
    sure of a place yet says too often that something begins. text: the vocabulary, the world's own unless given; one
    without plans makes rows without.
    """

    def __init__(
        self, vq_folder: Path, seed: int, held_out: bool = False, drop: float = 0.1, world: World = FLAT,
        source: Source | None = None, textured: float = 0.0, things: float = 1.0, first: float = 1.0,
        text: Tokenizer | None = None,
    ) -> None:  # fmt: skip
        self.codes = glyph_codes(vq_folder, (vq_folder / "model.safetensors").stat().st_mtime_ns)
        self.text = text or vocabulary.of_pictures(world)
        self.planned = plan.said(self.text)
        self.source, self.textured = source, textured if source else 0.0
        self.things, self.first = things, first
        self.longest = LONGEST_IN_SETTINGS if world.settings else LONGEST_PROMPT
        self.offset = vocabulary.code_offset(self.text)
        self.vocab_size = self.offset + self.codes.size
        self.world, self.rng = world, np.random.default_rng(seed)
        self.held_out, self.drop = held_out, drop

    def on_colours(self) -> Sample:
        """A scene of the flat world's grammar."""
        composition = random_composition(self.rng, self.held_out)
        scene = place(composition, self.rng)
        return self.drawn(describe(composition, self.rng), plan.of(scene), self.codes.of(scene))

    def in_setting(self) -> Sample:
        """A textured scene."""
        assert self.source is not None
        told = self.source.next()
        return self.drawn(told.captions[self.rng.integers(len(told.captions))], told.plan, told.codes)

    def drawn(self, caption: str, said: list[str], codes: Codes) -> Sample:
        weight = counting(plan.things(said), self.things, self.first) if self.planned else np.ones(CELLS)
        return Sample(self.kept(caption), said, codes, weight)

    def kept(self, caption: str) -> str:
        return "" if self.rng.random() < self.drop else caption

    def next(self, rows: int) -> Batch:
        """The next pictures."""
        among = self.rng.random(rows) < self.textured
        return self.batch([self.in_setting() if textured else self.on_colours() for textured in among], CELLS)

    def plans(self, rows: int) -> Plans:
        """Captions and plans of so many scenes."""
        chances = torch.zeros(rows, plan.LENGTH, self.offset)
        samples, places = [], [self.text.token_to_id(word) for word in plan.places()]
        for row in range(rows):
            composition = self.world.composition(self.rng, self.held_out)
            scene = place(composition, self.rng)
            said, caption = plan.of(scene), self.kept(describe(composition, self.rng))
            samples.append(Sample(caption, said, np.zeros((0, 0), np.int64), np.zeros(0)))
            chances[row, torch.arange(plan.LENGTH), torch.tensor([self.text.token_to_id(word) for word in said])] = 1
            for index, law in enumerate(laws(composition, said)):
                chances[row, 2 * index + 1, places] = torch.from_numpy(law)
        batch = self.batch(samples, 0)
        return Plans(batch.ids, batch.planned, chances)

    def batch(self, samples: list[Sample], codes: int) -> Batch:
        """Of samples with so many codes each."""
        length = self.longest + self.planned + codes  # one shape for every batch: compiled once
        ids = torch.full((len(samples), length), vocabulary.PAD)
        weight, planned = torch.zeros(len(samples), length), torch.zeros(len(samples), length, dtype=torch.bool)
        for row, (caption, said, drawn, counts) in enumerate(samples):
            prompt = vocabulary.prompt_ids(self.text, caption)
            begins = len(prompt) + self.planned
            here = slice(begins, begins + codes)
            words = [self.text.token_to_id(word) for word in said[: self.planned]]
            ids[row, :begins] = torch.tensor([*prompt, *words])
            ids[row, here] = torch.from_numpy(drawn).flatten() + self.offset
            weight[row, here], planned[row, len(prompt) : begins] = torch.from_numpy(counts).float(), True
        return Batch(ids, weight, planned)
