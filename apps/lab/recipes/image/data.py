"""Training data of `tiny-image`: rendered scenes as pixels for the tokenizer, as captions and codes for the LM."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.apps.lab.recipes.image.plan_distribution import placement_probs
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import scene_plan as plan
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer, channels_last
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.painting.matte import kind_cells
from polydraft.modalities.world.painting.staging import ANGLES, rotated_glyph
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    GRID_SIDE,
    NUM_CELLS,
    PlacedObject,
    Scene,
    boxes_overlap,
    place_objects,
    random_composition,
    random_position,
)
from polydraft.modalities.world.words.captions import with_article, write_caption
from polydraft.modalities.world.worlds import FLAT, World

if TYPE_CHECKING:
    from polydraft.apps.lab.recipes.image.textured import SceneSource

Codes = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

LONGEST_PROMPT = 16
LONGEST_IN_SETTINGS = 24  # "in front of a brick wall" is longer than "on a blue background"
MOST_LISTED = 8  # objects of a packed scene whose caption fits in a prompt


def packed_scene(
    rng: np.random.Generator, tries: int = 24, backgrounds: Sequence[str] = tuple(BACKGROUNDS),
    kind_probs: Floats | None = None,
) -> Scene:  # fmt: skip
    """Sample a scene as full of objects as `tries` random placements make it.

    Args:
        rng (np.random.Generator): source of randomness.
        tries (int): number of placements that are tried.
        backgrounds (Sequence[str]): backgrounds to choose from.
        kind_probs (NDArray | None): [K] probability of every kind; None is uniform.
    """
    objects: list[PlacedObject] = []
    for attempt in range(tries):
        size = "large" if attempt < tries // 3 else "small"
        x, y = random_position(size, rng)
        item = PlacedObject(list(KINDS)[rng.choice(len(KINDS), p=kind_probs)], size, x, y)
        if len(objects) < MOST_LISTED and not any(boxes_overlap(item, other) for other in objects):
            objects.append(item)
    background = backgrounds[int(rng.integers(len(backgrounds)))]
    return Scene(background, tuple(objects), 0 if background in BACKGROUNDS else int(rng.integers(2**32)))


def list_objects(scene: Scene, rng: np.random.Generator) -> str:
    """Return the caption of a packed scene, its objects in random order: "cat fox cat on a blue background"."""
    kinds = rng.permutation([item.kind for item in scene.objects])
    return f"{' '.join(kinds)} on {with_article(f'a {scene.background}')} background"


def images_to_tensor(pictures: list[NDArray[np.uint8]]) -> Tensor:
    """Stack images [H, W, 3] uint8 to [B, 3, H, W] in -1..1."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def encode_images(vq: VQTokenizer, pixels: Tensor) -> Codes:
    """Return the codes [B, H/8, W/8] of images [B, 3, H, W]."""
    pixels = pixels.to(vq.codebook.dtype).contiguous(memory_format=torch.channels_last)
    codes: Codes = vq.encode(pixels).numpy()
    return codes


def load_vq_tokenizer(folder: Path) -> VQTokenizer:
    """Load a tokenizer as it ships, in the fastest precision of this machine."""
    return channels_last(VQTokenizer.from_folder(folder).to(fast_dtype()))


def render_views(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """Return images and their matted versions, [B, 3, H, W] in -1..1, in channels-last layout for fast convolutions.

    Codes are computed of the matted version (`modalities/world/painting/matte.py`).
    """
    images, matted = zip(*(scene.render_both() for scene in scenes), strict=True)
    pixels, matted_pixels = (
        images_to_tensor(list(views)).contiguous(memory_format=torch.channels_last) for views in (images, matted)
    )
    return pixels, matted_pixels


def pixel_weights(scenes: list[Scene], things: float) -> Tensor:
    """Return weights [B, 1, 128, 128] of pixels, 1 on average; in boxes of objects `things` times as large on average.

    Half of the additional weight follows the object's silhouette: a bicycle is a quarter of its box, and otherwise the
    background in the box would dominate it.
    """
    weight = torch.ones(len(scenes), 1, CANVAS, CANVAS)
    for row, scene in enumerate(scenes):
        for item in scene.objects:
            box = weight[row, 0, item.y : item.y + item.side, item.x : item.x + item.side]
            box[:] = 1 + (things - 1) * (1 + silhouette_weights(item.kind, item.size)) / 2
    return weight / weight.mean()


@functools.cache
def silhouette_weights(kind: str, size: str) -> Tensor:
    """Return the coverage [S, S] of an object's box, averaged over rotations, over its mean."""
    alpha = torch.stack([torch.from_numpy(rotated_glyph(kind, size, turn)[..., 3]) for turn in ANGLES]).mean(0)
    return alpha / alpha.mean()


def background_share(weight: Tensor) -> Tensor:
    """Return the share [B, H/8, W/8] of every cell outside all boxes of objects, from `pixel_weights`."""
    outside = weight <= weight.amin((1, 2, 3), keepdim=True)
    return F.avg_pool2d(outside.float(), GRID)[:, 0]


def object_cells(things: Iterable[PlacedObject]) -> Bools:
    """Return a mask [H/8, W/8] bool of cells that show objects."""
    result = np.zeros((GRID_SIDE, GRID_SIDE), bool)
    for item in things:
        cells, row, column = kind_cells(item.kind, item.size), item.y // GRID, item.x // GRID
        result[row : row + len(cells), column : column + len(cells)] |= cells
    return result


def cell_weights(things: Sequence[PlacedObject], thing: float, first: float) -> Floats:
    """Return weights [CELLS]: `first` at first cells of objects, `thing` at their other cells, 1 elsewhere."""
    result = np.where(object_cells(things).ravel(), thing, 1.0)
    for item in things:
        result[object_cells([item]).argmax()] = first
    return result


class GlyphCodes:
    """Codes of every glyph on every background, from which flat scenes are assembled.

    A code depends on its own cell alone and objects are aligned to cells, so this equals encoding the scene.
    """

    def __init__(self, vq: VQTokenizer) -> None:
        self.size: int = vq.config.codebook_size
        empty = self.encode(vq, [Scene(name, ()) for name in BACKGROUNDS], 1)
        self.empty: dict[str, Any] = {name: codes[0, 0] for name, codes in zip(BACKGROUNDS, empty, strict=True)}
        self.glyphs: dict[tuple[str, str, str], NDArray[np.int64]] = {}
        for background in BACKGROUNDS:
            for size, pixels in GLYPH_SIZES.items():
                cells = pixels // GRID
                alone = self.encode(vq, [Scene(background, (PlacedObject(kind, size, 0, 0),)) for kind in KINDS], cells)
                for kind, codes in zip(KINDS, alone, strict=True):
                    self.glyphs[background, size, kind] = codes

    @staticmethod
    @torch.no_grad()
    def encode(vq: VQTokenizer, scenes: list[Scene], cells: int = GRID_SIDE) -> NDArray[np.int64]:
        """Return the codes [B, cells, cells] of the upper left cells of scenes."""
        side = cells * GRID
        return encode_images(vq, images_to_tensor([scene.render_on_matte()[:side, :side] for scene in scenes]))

    def encode_scene(self, scene: Scene) -> NDArray[np.int64]:
        """Return the codes [H/8, W/8] of a scene."""
        codes = np.full((GRID_SIDE, GRID_SIDE), self.empty[scene.background])
        for item in scene.objects:
            glyph = self.glyphs[scene.background, item.size, item.kind]
            row, column = item.y // GRID, item.x // GRID
            codes[row : row + len(glyph), column : column + len(glyph)] = glyph
        return codes


@functools.lru_cache(maxsize=2)
def cached_glyph_codes(folder: Path, changed: int) -> GlyphCodes:
    """Return the glyph codes of the tokenizer in `folder`, cached by the time its weights changed."""
    return GlyphCodes(load_vq_tokenizer(folder))


@dataclass(frozen=True)
class ImageBatch:
    """Training sequences of captions, plans and codes."""

    ids: Tensor  # [B, L], right-padded
    weight: Tensor  # [B, L] weight of a code in the loss, 0 elsewhere
    planned: Tensor  # [B, L] bool, ids of plans


@dataclass(frozen=True)
class PlanBatch:
    """Training sequences of captions and plans without codes."""

    ids: Tensor  # [B, L], right-padded
    planned: Tensor  # [B, L] bool, ids of plans
    probs: Tensor  # [B, plan.PLAN_LENGTH, words] probability of every word at every token of a plan


class SceneSample(NamedTuple):
    """Scene of a batch."""

    caption: str
    plan: list[str]  # words
    codes: Codes  # [H/8, W/8]
    weight: Floats  # [CELLS] of codes in the loss


class SceneBatches:
    """Endless batches of captions, plans and codes of scenes.

    A share `drop` of captions is empty, for guidance (Ho and Salimans 2022, "Classifier-Free Diffusion Guidance").
    In a world with settings a share `textured` of the scenes come from `source`. Most of a texture's codes are
    unpredictable and would dominate the loss: cells of objects count `things` times as much as others, and their first
    cells `first` times. The plan states which cells these are, so the optimum stays the same; but a model that is not
    yet sure of a position predicts too often that an object begins.

    Args:
        vq_folder (Path): folder of the tokenizer.
        seed (int): seed of scenes and captions.
        held_out (bool): whether compositions are held-out ones.
        drop (float): share of captions that are dropped.
        world (World): backgrounds of the scenes.
        source (SceneSource | None): textured scenes.
        textured (float): share of textured scenes.
        things (float): weight of cells of objects.
        first (float): weight of their first cells.
        text (Tokenizer | None): vocabulary; None is the world's own. Without plan words sequences have no plans.
    """

    def __init__(
        self, vq_folder: Path, seed: int, held_out: bool = False, drop: float = 0.1, world: World = FLAT,
        source: SceneSource | None = None, textured: float = 0.0, things: float = 1.0, first: float = 1.0,
        text: Tokenizer | None = None,
    ) -> None:  # fmt: skip
        self.codes: GlyphCodes = cached_glyph_codes(vq_folder, (vq_folder / "model.safetensors").stat().st_mtime_ns)
        self.text: Tokenizer = text or vocabulary.build_image_tokenizer(world)
        self.planned: int = plan.plan_length(self.text)
        self.source: SceneSource | None = source
        self.textured: float = textured if source else 0.0
        self.things: float = things
        self.first: float = first
        self.longest = LONGEST_IN_SETTINGS if world.settings else LONGEST_PROMPT
        self.offset: int = vocabulary.code_offset(self.text)
        self.vocab_size: int = self.offset + self.codes.size
        self.world: World = world
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.held_out: bool = held_out
        self.drop: float = drop

    def sample_flat(self) -> SceneSample:
        """Sample a scene of the flat world's grammar."""
        composition = random_composition(self.rng, self.held_out)
        scene = place_objects(composition, self.rng)
        caption = write_caption(composition, self.rng)
        return self.make_sample(caption, plan.plan_for_scene(scene), self.codes.encode_scene(scene))

    def sample_textured(self) -> SceneSample:
        """Take a textured scene from the source."""
        assert self.source is not None
        scene = self.source.next_scene()
        return self.make_sample(scene.captions[self.rng.integers(len(scene.captions))], scene.plan, scene.codes)

    def make_sample(self, caption: str, plan_words: list[str], codes: Codes) -> SceneSample:
        weight = np.ones(NUM_CELLS)
        if self.planned:
            weight = cell_weights(plan.parse_plan(plan_words), self.things, self.first)
        return SceneSample(self.drop_caption(caption), plan_words, codes, weight)

    def drop_caption(self, caption: str) -> str:
        return "" if self.rng.random() < self.drop else caption

    def next_batch(self, rows: int) -> ImageBatch:
        """Return the next batch of images."""
        is_textured = self.rng.random(rows) < self.textured
        samples = [self.sample_textured() if textured else self.sample_flat() for textured in is_textured]
        return self.collate(samples, NUM_CELLS)

    def next_plans(self, rows: int) -> PlanBatch:
        """Return captions and plans of `rows` scenes."""
        probs = torch.zeros(rows, plan.PLAN_LENGTH, self.offset)
        samples, places = [], [self.text.token_to_id(word) for word in plan.placement_tokens()]
        for row in range(rows):
            composition = self.world.random_composition(self.rng, self.held_out)
            scene = place_objects(composition, self.rng)
            plan_words, caption = plan.plan_for_scene(scene), self.drop_caption(write_caption(composition, self.rng))
            samples.append(SceneSample(caption, plan_words, np.zeros((0, 0), np.int64), np.zeros(0)))
            words = torch.tensor([self.text.token_to_id(word) for word in plan_words])
            probs[row, torch.arange(plan.PLAN_LENGTH), words] = 1
            for index, distribution in enumerate(placement_probs(composition, plan_words)):
                probs[row, 2 * index + 1, places] = torch.from_numpy(distribution)
        batch = self.collate(samples, 0)
        return PlanBatch(batch.ids, batch.planned, probs)

    def collate(self, samples: list[SceneSample], codes: int) -> ImageBatch:
        """Collate samples with `codes` codes each."""
        length = self.longest + self.planned + codes  # one shape for every batch: compiled once
        ids = torch.full((len(samples), length), vocabulary.PAD)
        weight, planned = torch.zeros(len(samples), length), torch.zeros(len(samples), length, dtype=torch.bool)
        for row, (caption, plan_words, drawn, counts) in enumerate(samples):
            prompt = vocabulary.encode_prompt(self.text, caption)
            begins = len(prompt) + self.planned
            here = slice(begins, begins + codes)
            words = [self.text.token_to_id(word) for word in plan_words[: self.planned]]
            ids[row, :begins] = torch.tensor([*prompt, *words])
            ids[row, here] = torch.from_numpy(drawn).flatten() + self.offset
            weight[row, here], planned[row, len(prompt) : begins] = torch.from_numpy(counts).float(), True
        return ImageBatch(ids, weight, planned)
