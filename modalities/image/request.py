"""Image requests in progress: tokens as passes commit them, the images they make so far, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.core.decode import Method, StepResult
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import StopPoint
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.recipe import ImageRecipe
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.request import GenerationRequest, GenerationStream

if TYPE_CHECKING:
    from polydraft.modalities.image.pipeline import TextToImagePipeline

PLACEHOLDER_COLOUR = (236, 236, 240)  # where there is no token yet


@dataclass(frozen=True)
class ImageRequestInfo:
    """Caption and seed that an image is generated from."""

    caption: str  # as the model read it
    seed: int


@dataclass(frozen=True)
class ImageStep:
    """Progress after one target pass, over all rows."""

    tokens_done: int  # committed so far
    tokens_total: int  # when complete
    passes: int
    step: StepResult = field(repr=False)  # of the decoding loop


@dataclass(frozen=True)
class ImageProgress:
    """Progress of a request."""

    tokens_done: int
    tokens_total: int
    passes: int
    tokens: Tensor = field(repr=False)  # [n, T] int64 codes, -1 where there is none; or [n, T, C] latents, NaN there
    committed_at: Tensor = field(repr=False)  # [n, T], target pass (from 1) that committed each token; 0 where none has
    images: list[Image.Image]  # unfinished images, when some were due
    seconds: float = 0.0  # spent decoding


class ImageGenerationRequest(GenerationRequest[ImageProgress, ImageResult]):
    """One request for images."""

    def __init__(
        self,
        pipe: TextToImagePipeline,
        method: Method,
        prompts: list[PromptInputs],
        recipe: ImageRecipe,
        ignored: tuple[str, ...],
        partial_images: int = 0,
    ) -> None:
        super().__init__(method, prompts)
        self.pipe: TextToImagePipeline = pipe
        self.recipe: ImageRecipe = recipe
        self.ignored: tuple[str, ...] = ignored
        self.request_info: list[ImageRequestInfo] = [
            ImageRequestInfo(text, prompt.seed) for text, prompt in zip(recipe.captions, prompts, strict=True)
        ]
        self.tokens: Tensor = pipe.empty_tokens(len(prompts))
        self.committed_at: Tensor = torch.zeros(len(prompts), pipe.image_tokens, dtype=torch.long)
        self.committed: list[list[Any]] = [[] for _ in prompts]
        self.tokens_done: int
        self.tokens_total: int
        self.tokens_done, self.tokens_total = 0, self.committed_at.numel()
        self.preview_thresholds: list[int] = [
            self.tokens_total * share // (partial_images + 1) for share in range(1, partial_images + 1)
        ]

    def on_tokens(self, committed: dict[int, tuple[int, list[Any]]], ended: set[int]) -> dict[int, StopPoint]:
        """Store the committed tokens at their places in the images."""
        for row, (num_previous, tokens) in committed.items():
            indices, values = self.pipe.locate_tokens(self.prompts[row], num_previous, tokens)
            self.tokens[row, indices] = values
            self.committed[row] += tokens
            self.committed_at[row, indices] = self.passes
            self.tokens_done += len(indices)
        return {}

    def poll_events(self) -> list[ImageProgress]:
        """Return the progress so far, with unfinished images when some are due."""
        done, is_due = self.tokens_done, False
        while self.preview_thresholds and done >= self.preview_thresholds[0]:
            self.preview_thresholds.pop(0)
            is_due = not self.is_finished
        images = decode_partial_images(self.pipe, self.tokens, self.request_info) if is_due else []
        return [
            ImageProgress(
                done,
                self.tokens_total,
                self.passes,
                self.tokens.clone(),
                self.committed_at.clone(),
                images,
                self.decode_seconds,
            )
        ]

    def result(self) -> ImageResult:
        """Return images, tokens and statistics of everything that was committed so far."""
        rows = self.stats()
        return ImageResult(
            self.pipe.decode_images(self.tokens, self.request_info), self.tokens.clone(), self.committed_at.clone(),
            DecodeStats.sum_rows(rows), rows, [row.finish for row in self.rows], self.ignored,
            self.recipe.prompts, self.recipe.seeds, self.pipe.card.name, self.method.name, self.pipe.grid,
            [list(tokens) for tokens in self.committed], self.recipe,
        )  # fmt: skip


class ImageStream(GenerationStream[ImageGenerationRequest], Iterator[ImageStep]):
    """Iterator over the decoding steps of one call, and its result."""

    def __init__(self, request: ImageGenerationRequest) -> None:
        super().__init__(request)
        self.remaining_steps: Iterator[StepResult] = self.steps()

    def __next__(self) -> ImageStep:
        step = next(self.remaining_steps)
        return ImageStep(self.request.tokens_done, self.request.tokens_total, self.request.passes, step)

    def result(self) -> ImageResult:
        """Return images, tokens and statistics of everything that was committed so far."""
        with self.request.pipe.lock:
            return self.request.result()


def decode_partial_images(
    pipe: TextToImagePipeline, tokens: Tensor, request_info: Sequence[ImageRequestInfo]
) -> list[Image.Image]:
    """Decode tokens `[n, T, …]` to images, in a plain colour where they are missing."""
    images = []
    for image, row_missing in zip(pipe.decode_images(tokens, request_info), pipe.missing_mask(tokens), strict=True):
        pixels = np.array(image)
        cell_height, cell_width = pixels.shape[0] // pipe.grid[0], pixels.shape[1] // pipe.grid[1]
        mask = row_missing.view(pipe.grid).numpy().repeat(cell_height, 0).repeat(cell_width, 1)
        pixels[mask] = PLACEHOLDER_COLOUR
        images.append(Image.fromarray(pixels))
    return images
