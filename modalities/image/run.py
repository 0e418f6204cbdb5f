"""Pictures under way: tokens as passes commit them, the picture they make so far, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.core.decode import Method, Step
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import Stop
from polydraft.core.target import Prompt
from polydraft.modalities.image.recipe import Recipe
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.run import Run, Stream

if TYPE_CHECKING:
    from polydraft.modalities.image.pipeline import PicturePipeline

UNDRAWN = (236, 236, 240)  # colour of what no token says yet


@dataclass(frozen=True)
class Asked:
    """What a picture was drawn for: the caption as the model read it, and the picture's seed."""

    caption: str
    seed: int


@dataclass(frozen=True)
class ImageStep:
    """One target pass: tokens committed so far and wanted, over all rows, and the core's own step."""

    tokens_done: int
    tokens_total: int
    passes: int
    step: Step


@dataclass(frozen=True)
class ImageNews:
    """Where drawing stands.

    tokens: `[n, T]` int64 codes, -1 where there is none yet, or `[n, T, C]` latents, nan there.
    committed_at: `[n, T]`, which pass (from 1) committed each, 0
    where none has. pictures: what the tokens make so far, when one was due; empty otherwise. seconds: spent decoding.
    """

    tokens_done: int
    tokens_total: int
    passes: int
    tokens: Tensor
    committed_at: Tensor
    pictures: list[Image.Image]
    seconds: float = 0.0


class ImageRun(Run[ImageNews, ImageResult]):
    """One request for pictures.

    recipe: what the pictures are drawn from. partial_images: how many unfinished ones are to be drawn, at equal shares
    of tokens. done: tokens of pictures that are there.
    """

    def __init__(
        self, pipe: PicturePipeline, method: Method, prompts: list[Prompt], recipe: Recipe, ignored: tuple[str, ...],
        partial_images: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(method, prompts)
        self.pipe, self.recipe, self.ignored = pipe, recipe, ignored
        self.asked = [Asked(text, prompt.seed) for text, prompt in zip(recipe.captions, prompts, strict=True)]
        self.tokens = pipe.blank(len(prompts))
        self.committed_at = torch.zeros(len(prompts), pipe.image_tokens, dtype=torch.long)
        self.decoded: list[list[Any]] = [[] for _ in prompts]
        self.done, self.total = 0, self.committed_at.numel()
        self.due_at = [self.total * share // (partial_images + 1) for share in range(1, partial_images + 1)]

    def take(self, committed: dict[int, tuple[int, list[Any]]], ended: set[int]) -> dict[int, Stop]:
        for row, (had, tokens) in committed.items():
            places, made = self.pipe.placed(self.prompts[row], had, tokens)
            self.tokens[row, places] = made
            self.decoded[row] += tokens
            self.committed_at[row, places] = self.passes
            self.done += len(places)
        return {}

    def news(self) -> list[ImageNews]:
        done, due = self.done, False
        while self.due_at and done >= self.due_at[0]:
            self.due_at.pop(0)
            due = not self.over
        pictures = unfinished(self.pipe, self.tokens, self.asked) if due else []
        return [
            ImageNews(
                done,
                self.total,
                self.passes,
                self.tokens.clone(),
                self.committed_at.clone(),
                pictures,
                self.seconds,
            )
        ]

    def result(self) -> ImageResult:
        """Pictures, tokens and statistics of what was committed so far."""
        rows = self.stats()
        return ImageResult(
            self.pipe.decode_images(self.tokens, self.asked), self.tokens.clone(), self.committed_at.clone(),
            DecodeStats.total(rows), rows, [row.finish for row in self.rows], self.ignored,
            self.recipe.prompts, self.recipe.seeds, self.pipe.card.name, self.method.name, self.pipe.grid,
            [list(tokens) for tokens in self.decoded], self.recipe,
        )  # fmt: skip


class ImageStream(Stream[ImageRun], Iterator[ImageStep]):
    """Steps of one call, and what has been drawn after them."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__(run)
        self.made = self.steps()

    def __next__(self) -> ImageStep:
        step = next(self.made)
        return ImageStep(self.run.done, self.run.total, self.run.passes, step)

    def result(self) -> ImageResult:
        """Pictures, tokens and statistics of what was committed so far."""
        with self.run.pipe.lock:
            return self.run.result()


def unfinished(pipe: PicturePipeline, tokens: Tensor, asked: Sequence[Asked]) -> list[Image.Image]:
    """What tokens `[n, T, …]` make, plain where they are missing."""
    drawn = []
    for picture, row in zip(pipe.decode_images(tokens, asked), pipe.missing(tokens), strict=True):
        pixels = np.array(picture)
        high, wide = pixels.shape[0] // pipe.grid[0], pixels.shape[1] // pipe.grid[1]
        missing = row.view(pipe.grid).numpy().repeat(high, 0).repeat(wide, 1)
        pixels[missing] = UNDRAWN
        drawn.append(Image.fromarray(pixels))
    return drawn
