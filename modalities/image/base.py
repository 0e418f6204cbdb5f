"""What text-to-image pipelines share, whatever their tokens are and whatever their captions may say.

pipe = load("tiny-image")
for step in pipe.stream("two frogs on a blue background"): print(step.tokens_done)
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from itertools import product
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.core.arguments import optional, refusal, to_callback, to_integer, to_items, to_string
from polydraft.core.errors import InvalidArgument, PromptError
from polydraft.core.law.sampling import MOST_TOKENS, Sampling
from polydraft.core.target import Prompt
from polydraft.core.version import __version__
from polydraft.modalities.image.recipe import Recipe
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.run import Asked, ImageRun, ImageStep, ImageStream
from polydraft.modalities.image_io import Picture, load_image
from polydraft.modalities.pipeline import Pipeline, check_sampling, exclusive, guided, seeds

LONGEST_TEXT = 2000  # characters
MOST_PICTURES = 10_000  # of a prompt in a call
SCALES = [1 - step / 32 for step in range(31)]  # of a size that is to be drawn as nearly as possible
SIZES_ALLOWED, LONGEST_SIZE = "a string such as '512x256', which is wide", 16  # characters
SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")  # width and height


class PicturePipeline(Pipeline):
    """A text-to-image model with its weights, ready to draw with any of its methods."""

    @property
    @abstractmethod
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""

    @property
    @abstractmethod
    def token_side(self) -> int:
        """Pixels a side of what a token stands for."""

    @abstractmethod
    def caption(self, text: str) -> tuple[str, list[str]]:
        """Return what the model reads of a prompt, and what of it is not drawn; raises PromptError."""

    @abstractmethod
    def branches(self, caption: str) -> tuple[tuple[int, ...], ...]:
        """Ids of the conditional branch of guidance, and of the others."""

    @abstractmethod
    def blank(self, rows: int) -> Tensor:
        """`[rows, T, …]`: pictures of which no token is there."""

    @abstractmethod
    def read_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        """`[K, …]`: what the loop committed, as results have it."""

    def placed(self, prompt: Prompt, had: int, committed: list[Any]) -> tuple[Tensor, Tensor]:
        """Places `[K]` of what the loop committed to a row that had so many tokens, and the tokens `[K, …]` there."""
        return torch.arange(had, had + len(committed)), self.read_tokens(committed)

    def drawn(self, prompts: Sequence[Prompt], outputs: Sequence[Tensor]) -> Tensor:
        """`[n, T, …]`: tokens of whole pictures, of what the loop committed to each row."""
        tokens = self.blank(len(prompts))
        for row, (prompt, committed) in enumerate(zip(prompts, outputs, strict=True)):
            places, made = self.placed(prompt, 0, committed.tolist())
            tokens[row, places] = made
        return tokens

    @abstractmethod
    def missing(self, tokens: Tensor) -> Tensor:
        """`[n, T]` bool: tokens that are not there."""

    @abstractmethod
    def pixels(self, tokens: Tensor, asked: Sequence[Asked] = ()) -> Tensor:
        """`[n, 3, H, W]` in -1..1 of tokens `[n, T, …]`; missing ones look like something. asked: of each, if known."""

    @property
    def image_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def row(self) -> int:  # type: ignore[override]
        return self.grid[1]

    @property
    def budget(self) -> int:
        """What the loop commits for a picture."""
        return self.image_tokens

    @property
    def dimensions(self) -> str:
        """Width and height of its pictures, "128x128"."""
        return f"{self.grid[1] * self.token_side}x{self.grid[0] * self.token_side}"

    def sized(self, size: str | None) -> Self:
        """The same model, drawing pictures of `size`: "512x256" is wide; None or "auto" its own. `run` also knows
        "~512x256", the nearest that it draws."""
        if size not in (None, "auto", self.dimensions):
            raise InvalidArgument(f"size={size} is not possible; {self.card.name} draws {self.dimensions}.")
        return self

    def of_size(self, size: str | None) -> Self:
        """Return the same model, drawing pictures of a size as `run` takes it."""
        return self.nearest(size[1:]) if size is not None and size.startswith("~") else self.sized(size)

    def nearest(self, size: str) -> Self:
        """Return the same model, drawing pictures of the largest size up to `size`, in its proportions as far as tokens
        allow; its own size where it draws no such."""
        found = SIZE.fullmatch(size)
        if found is None:
            return self.sized(size)  # which says what a size is
        wide, high = map(int, found.groups())
        for scale, unit in product(SCALES, (self.token_side, 2 * self.token_side)):
            width, height = (max(unit, round(side * scale / unit) * unit) for side in (wide, high))
            with suppress(InvalidArgument):
                return self.sized(f"{width}x{height}")
        return self

    def drawn_in(self, iterations: int | None) -> Self:
        """The same model, drawing a picture in so many sets of tokens; None is its own number."""
        if iterations is not None:
            raise InvalidArgument(f"iterations={iterations} is not possible; {self.card.name} draws token by token.")
        return self

    def led_from(self, negative_prompt: str | None) -> Self:
        """The same model, with guidance that leads away from these words; None is from its own."""
        if negative_prompt is not None:
            raise InvalidArgument(f"{self.card.name} reads no negative prompt; leave out negative_prompt.")
        return self

    def begun(self, prime: Image.Image | None) -> Self:
        """Return the model going on from an RGB picture, or shown one with the prompt; None is neither."""
        if prime is not None:
            raise anew(self.card.name)
        return self

    def as_costly(self, result: ImageResult) -> dict[str, Any]:
        """Options of plain drawing that takes as many target passes as a lossy `result` did, what that is to be
        compared with; empty where plain drawing cannot be had in fewer passes, or nothing was lost."""
        return {}

    def changed(self, **attributes: Any) -> Self:
        """The same weights and methods, other attributes."""
        other = copy(self)
        vars(other).update(attributes)
        return other

    def sample_prompts(self) -> list[Prompt]:
        return self.prompts_to_ids(["a cat"])

    def __call__(
        self, prompt: str | Sequence[str], *, on_step: Callable[[ImageStep], None] | None = None, **options: Any
    ) -> ImageResult:
        """As `generate_image`, without model, device and dtype."""
        on_step = optional(to_callback, "on_step", on_step)
        stream = self.stream(prompt, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(self, prompt: str | Sequence[str], **options: Any) -> ImageStream:
        """An iterator of steps; leave it at any time, `result()` is what was drawn so far. options: as of `run`."""
        return ImageStream(self.run(prompt, **options))

    @exclusive
    def run(
        self, prompt: str | Sequence[str], *, speculative: bool = True, method: str | None = None, n: int = 1,
        seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, min_p: float | None = None, guidance_scale: float | None = None,
        size: str | None = None, iterations: int | None = None, negative_prompt: str | None = None,
        prime: Picture | None = None, partial_images: int = 0,
    ) -> ImageRun:  # fmt: skip
        """The same for who drives the loop; partial_images: how often pictures are drawn before they are whole."""
        texts = check_drawing(prompt, n, seed)
        n = to_integer("n", n, 1)
        pipe = self.of_size(optional(to_size, "size", size))
        partial_images = to_integer("partial_images", partial_images, 0, pipe.image_tokens)
        choice = self.chosen(speculative, method)
        pipe = pipe.drawn_in(optional(to_integer, "iterations", iterations, 1, MOST_TOKENS))
        if optional(to_string, "negative_prompt", negative_prompt):
            check_prompt(negative_prompt, "negative prompt")
        pipe = pipe.led_from(negative_prompt).begun(None if prime is None else load_image(prime))
        captions, ignored = pipe.read(texts)
        texts, captions = ([text for text in some for _ in range(n)] for some in (texts, captions))
        sampling = pipe.sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, guidance_scale=guidance_scale
        )
        prompts = pipe.prompts_to_ids(captions, seeds(seed, len(captions), "picture"), sampling)
        way = pipe.method(choice, guided(prompts))
        recipe = Recipe(
            texts, captions, [int(prompt.seed) for prompt in prompts], pipe.card.name, way.name,
            float(sampling.temperature), int(sampling.top_k), float(sampling.top_p), float(sampling.min_p),
            float(sampling.guidance_scale), pipe.dimensions, negative_prompt,
            None if iterations is None else int(iterations), prime is not None,
            str(pipe.dtype).removeprefix("torch."), pipe.device.type, __version__,
        )  # fmt: skip
        return ImageRun(pipe, way, prompts, recipe, ignored, partial_images)

    def read(self, texts: list[str]) -> tuple[list[str], tuple[str, ...]]:
        """What the model reads of prompts, and what of them is not drawn."""
        captions, ignored = [], []
        for text in texts:
            caption, unknown = self.caption(text)
            captions.append(caption)
            ignored += unknown
        return captions, tuple(dict.fromkeys(ignored))

    def prompts_to_ids(
        self, captions: list[str], row_seeds: list[int] | None = None, sampling: Sampling | None = None
    ) -> list[Prompt]:
        """Both branches of every row; sampling: the model's own unless given."""
        sampling = self.sampling() if sampling is None else sampling
        row_seeds = list(range(len(captions))) if row_seeds is None else row_seeds
        return [self.prompt(caption, seed, sampling) for caption, seed in zip(captions, row_seeds, strict=True)]

    def prompt(self, caption: str, seed: int, sampling: Sampling) -> Prompt:
        """What is asked of the loop for one picture."""
        return Prompt(self.branches(caption), self.budget, seed, sampling=sampling)

    @torch.inference_mode()
    def decode_images(self, tokens: Tensor, asked: Sequence[Asked] = ()) -> list[Image.Image]:
        """Return the pictures of tokens `[n, T, …]`; where some are missing it is open what they show.

        Each is decoded alone, since convolutions round differently in a batch: a picture's bytes must not depend on
        what is drawn beside it.

        Args:
            asked (Sequence[Asked]): What each picture was drawn for, if known.
        """
        return [
            to_image(self.pixels(tokens[row : row + 1].to(self.device), asked[row : row + 1])[0])
            for row in range(len(tokens))
        ]


def to_image(pixels: Tensor) -> Image.Image:
    """Return the picture of `pixels` `[3, H, W]` in -1..1."""
    bytes_ = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().permute(1, 2, 0).to("cpu", torch.uint8)
    return Image.fromarray(np.asarray(bytes_))


def check_prompt(text: Any, name: str = "prompt") -> None:
    """Raise PromptError for a prompt that is no text, empty or too long.

    Args:
        name (str): What the error calls it.
    """
    if not isinstance(text, str):
        raise PromptError(f"the {name} is a {type(text).__name__}; give a string, such as 'a cat above a star'.")
    if not text.strip():
        raise PromptError(f"the {name} is empty; say what to draw, such as 'two frogs on a blue background'.")
    if len(text) > LONGEST_TEXT:
        raise PromptError(f"the {name} has {len(text)} characters; use at most {LONGEST_TEXT}.")


def to_size(name: str, value: Any) -> str:
    """Return a size as it is written, whatever model draws it; raises InvalidArgument for what is none."""
    if len(text := to_string(name, value, SIZES_ALLOWED)) > LONGEST_SIZE:
        raise refusal(name, value, SIZES_ALLOWED)
    return text


def check_drawing(prompt: str | Sequence[str], n: int, seed: int | Sequence[int], **sampling: Any) -> list[str]:
    """Return the prompts; raise where no model could draw what is asked for, which needs no weights to tell.

    Raises:
        PromptError: for a prompt that is empty or too long.
        InvalidArgument: for a number of pictures, seeds or sampling parameters that are not possible.
    """
    n = to_integer("n", n, 1, MOST_PICTURES)
    texts = [prompt] if isinstance(prompt, str) else to_items("prompt", prompt, "a string, or a list of strings")
    if not texts:
        raise PromptError("the list of prompts is empty; give at least one prompt.")
    for text in texts:
        check_prompt(text)
    seeds(seed, n * len(texts), "picture")
    check_sampling(**sampling)
    return texts


def anew(name: str) -> InvalidArgument:
    """Said of a model that goes on from no other picture."""
    return InvalidArgument(f"{name} begins every picture anew; leave out prime.")


def grid_of(size: str, side: int, context: int, name: str, usual: str) -> tuple[int, int]:
    """Rows and columns of tokens, `side` pixels each, of a picture of `size`, "512x256" being wide.

    context: positions that the model holds; name, usual: what errors call it, and the size it would draw.
    """
    found = SIZE.fullmatch(size)
    wide, high = map(int, found.groups()) if found else (1, 1)
    if wide % side or high % side:
        raise InvalidArgument(
            f"size={size} is not possible; {name} draws widths and heights that are multiples of {side}, "
            f"such as {usual}."
        )
    if (tokens := wide // side * (high // side)) >= context:
        raise InvalidArgument(
            f"size={size} is {tokens} tokens and {name} holds {context} positions; draw a smaller picture, such as "
            f"{usual}."
        )
    return high // side, wide // side
