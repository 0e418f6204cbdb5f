"""Base class of text-to-image pipelines, whatever their tokens are and whatever captions they understand.

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
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.core.checks.arguments import argument_error, to_integer, to_items, to_optional, to_string
from polydraft.core.errors import InvalidArgument, PromptError
from polydraft.core.sampling.params import MAX_TOKENS, SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.version import __version__
from polydraft.modalities.image.diffusers_names import (
    StepEndCallback,
    resolve_callback,
    resolve_count,
    resolve_seed,
)
from polydraft.modalities.image.recipe import ImageRecipe
from polydraft.modalities.image.request import ImageGenerationRequest, ImageRequestInfo, ImageStep, ImageStream
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image_io import ImageInput, load_image
from polydraft.modalities.pipeline import Pipeline, check_sampling_params, expand_seeds, synchronized, uses_cfg

MAX_PROMPT_LENGTH = 2000  # characters
MAX_IMAGES = 10_000  # per prompt and call
SIZE_SCALES = [1 - step / 32 for step in range(31)]  # tried in turn for the nearest size
SIZE_FORMAT, MAX_SIZE_LENGTH = "a string such as '512x256', which is wide", 16  # characters
SIZE_PATTERN = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")  # width and height


class ImageOptions(TypedDict, total=False):
    """Keyword arguments of a call that all image pipelines take; `generate_image` and `run` document them."""

    speculative: bool
    method: str | None
    n: int
    seed: int | Sequence[int]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    guidance_scale: float | None
    size: str | None
    iterations: int | None
    negative_prompt: str | None
    prime: ImageInput | None
    partial_images: int


class TextToImagePipeline(Pipeline):
    """Text-to-image model with its weights, ready to generate with any of its methods."""

    @property
    @abstractmethod
    def grid(self) -> tuple[int, int]:
        """Return the rows and columns of tokens in an image."""

    @property
    @abstractmethod
    def token_side(self) -> int:
        """Return the pixels per side of the square that a token stands for."""

    @abstractmethod
    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        """Split a prompt into the caption that the model reads and the words that it ignores.

        Raises:
            PromptError: the model cannot generate anything from the prompt.
        """

    @abstractmethod
    def encode_branches(self, caption: str) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of all guidance branches, the conditional one first."""

    @abstractmethod
    def empty_tokens(self, num_images: int) -> Tensor:
        """Return tokens `[num_images, T, …]` of images without any token."""

    @abstractmethod
    def to_result_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        """Convert committed tokens to the form that results have, `[K, …]`."""

    def locate_tokens(self, prompt: PromptInputs, num_previous: int, committed: list[Any]) -> tuple[Tensor, Tensor]:
        """Return which of an image's tokens were committed, and their values.

        Args:
            prompt (PromptInputs): the image's prompt.
            num_previous (int): tokens that the row had before.
            committed (list[Any]): what was committed behind them.

        Returns:
            tuple[Tensor, Tensor]: indices `[K]` into the image's tokens, and tokens `[K, …]`.
        """
        return torch.arange(num_previous, num_previous + len(committed)), self.to_result_tokens(committed)

    def assemble_tokens(self, prompts: Sequence[PromptInputs], outputs: Sequence[Tensor]) -> Tensor:
        """Return the image tokens `[n, T, …]` of everything that was committed to each row."""
        tokens = self.empty_tokens(len(prompts))
        for row, (prompt, committed) in enumerate(zip(prompts, outputs, strict=True)):
            indices, values = self.locate_tokens(prompt, 0, committed.tolist())
            tokens[row, indices] = values
        return tokens

    @abstractmethod
    def missing_mask(self, tokens: Tensor) -> Tensor:
        """Return `[n, T]` bool, true where a token has not been generated."""

    @abstractmethod
    def decode_pixels(self, tokens: Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> Tensor:
        """Decode tokens to pixels.

        Args:
            tokens (Tensor): `[n, T, …]`; missing ones are decoded to something.
            request_info (Sequence[ImageRequestInfo]): what each image was generated from, where it is known.

        Returns:
            Tensor: `[n, 3, H, W]` in -1..1.
        """

    @property
    def image_tokens(self) -> int:
        """Return the number of tokens in an image."""
        return self.grid[0] * self.grid[1]

    @property
    def row_length(self) -> int:  # type: ignore[override]
        """Return the number of tokens in a row of the image."""
        return self.grid[1]

    @property
    def num_new_tokens(self) -> int:
        """Return the number of tokens that are committed for an image, with all that is not part of it."""
        return self.image_tokens

    @property
    def dimensions(self) -> str:
        """Return width and height of the images, as in "128x128"."""
        return f"{self.grid[1] * self.token_side}x{self.grid[0] * self.token_side}"

    def with_size(self, size: str | None) -> Self:
        """Return a pipeline of the same weights for images of another size.

        Args:
            size (str | None): "512x256" is wide; None or "auto" is the model's default.

        Raises:
            InvalidArgument: the model does not generate this size.
        """
        if size not in (None, "auto", self.dimensions):
            raise InvalidArgument(f"size={size} is not possible; {self.card.name} generates {self.dimensions}.")
        return self

    def with_requested_size(self, size: str | None) -> Self:
        """Return a pipeline for a size as `run` takes it, which may be approximate ("~512x256")."""
        return self.with_nearest_size(size[1:]) if size is not None and size.startswith("~") else self.with_size(size)

    def with_nearest_size(self, size: str) -> Self:
        """Return a pipeline for the largest size up to `size` with about its proportions.

        It keeps the default size if the model generates none such.
        """
        match = SIZE_PATTERN.fullmatch(size)
        if match is None:
            return self.with_size(size)  # its error explains what a size is
        wanted = [int(side) for side in match.groups()]
        for scale, unit in product(SIZE_SCALES, (self.token_side, 2 * self.token_side)):
            width, height = (max(unit, round(side * scale / unit) * unit) for side in wanted)
            with suppress(InvalidArgument):
                return self.with_size(f"{width}x{height}")
        return self

    def with_iterations(self, iterations: int | None) -> Self:
        """Return a pipeline that generates an image in `iterations` sets of tokens; None is the model's default."""
        if iterations is not None:
            raise InvalidArgument(
                f"iterations={iterations} is not possible; {self.card.name} generates token by token."
            )
        return self

    def with_negative_prompt(self, negative_prompt: str | None) -> Self:
        """Return a pipeline whose guidance leads away from `negative_prompt`; None is the model's default."""
        if negative_prompt is not None:
            raise InvalidArgument(f"{self.card.name} reads no negative prompt; leave out negative_prompt.")
        return self

    def with_init_image(self, init_image: Image.Image | None) -> Self:
        """Return a pipeline that continues `init_image` (RGB), or is shown it with the prompt; None is neither."""
        if init_image is not None:
            raise unsupported_init_image(self.card.name)
        return self

    def options_at_equal_cost(self, result: ImageResult) -> dict[str, Any]:
        """Return options of plain decoding with as many target passes as a lossy `result` took, to compare it with.

        Empty if plain decoding cannot do with fewer passes, or if the result is not lossy.
        """
        return {}

    def copy_with(self, **attributes: Any) -> Self:
        """Return a copy with the same weights and methods and other attributes."""
        other = copy(self)
        vars(other).update(attributes)
        return other

    def sample_prompts(self) -> list[PromptInputs]:
        """Return prompts to time a pass with."""
        return self.build_prompts(["a cat"])

    def __call__(
        self, prompt: str | Sequence[str], *, on_step: Callable[[ImageStep], None] | None = None,
        num_images_per_prompt: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        callback_on_step_end: StepEndCallback | None = None, **options: Unpack[ImageOptions],
    ) -> ImageResult:  # fmt: skip
        """Generate images as `generate_image` does, which also takes model, device and dtype.

        Args:
            prompt (str | Sequence[str]): one prompt, or several.
            on_step (Callable[[ImageStep], None] | None): called after every target pass.
            num_images_per_prompt (int | None): diffusers' name of `n`.
            generator (torch.Generator | Sequence[torch.Generator] | None): in place of `seed`, which is drawn from it.
            callback_on_step_end (StepEndCallback | None): in place of `on_step`, with diffusers' arguments: the
                pipeline, the index of the step, the number of tokens so far, and `{"step": …}`.
            **options (Unpack[ImageOptions]): the other arguments of `generate_image`.

        Raises:
            PolydraftError: the call is not possible; the message says what to change.
        """
        on_step = resolve_callback(on_step, callback_on_step_end, self)
        if num_images_per_prompt is not None:
            options["n"] = resolve_count(options.get("n"), num_images_per_prompt)
        if generator is not None:
            options["seed"] = resolve_seed(options.get("seed"), generator)
        stream = self.stream(prompt, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(self, prompt: str | Sequence[str], **options: Unpack[ImageOptions]) -> ImageStream:
        """Return an iterator over decoding steps; it takes the options of `run`.

        It may be left at any time; `result()` then has what was generated so far.
        """
        return ImageStream(self.run(prompt, **options))

    @synchronized
    def run(
        self, prompt: str | Sequence[str], *, speculative: bool = True, method: str | None = None, n: int = 1,
        seed: int | Sequence[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, min_p: float | None = None, guidance_scale: float | None = None,
        size: str | None = None, iterations: int | None = None, negative_prompt: str | None = None,
        prime: ImageInput | None = None, partial_images: int = 0,
    ) -> ImageGenerationRequest:  # fmt: skip
        """Return a request for images, to be driven by a scheduler; the other arguments are those of `generate_image`.

        Args:
            size (str | None): also "~512x256", the nearest size that the model generates.
            partial_images (int): how many unfinished versions of the images are decoded on the way.
        """
        texts = check_image_arguments(prompt, n, seed)
        n = to_integer("n", n, 1)
        pipe = self.with_requested_size(to_optional(to_size, "size", size))
        partial_images = to_integer("partial_images", partial_images, 0, pipe.image_tokens)
        choice = self.select_method(speculative, method)
        pipe = pipe.with_iterations(to_optional(to_integer, "iterations", iterations, 1, MAX_TOKENS))
        if to_optional(to_string, "negative_prompt", negative_prompt):
            check_prompt(negative_prompt, "negative prompt")
        pipe = pipe.with_negative_prompt(negative_prompt).with_init_image(None if prime is None else load_image(prime))
        captions, ignored = pipe.parse_captions(texts)
        texts, captions = ([text for text in items for _ in range(n)] for items in (texts, captions))
        sampling = pipe.sampling_params(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, guidance_scale=guidance_scale
        )
        prompts = pipe.build_prompts(captions, expand_seeds(seed, len(captions), "picture"), sampling)
        built_method = pipe.method(choice, uses_cfg(prompts))
        recipe = ImageRecipe(
            texts, captions, [int(prompt.seed) for prompt in prompts], pipe.card.name, built_method.name,
            float(sampling.temperature), int(sampling.top_k), float(sampling.top_p), float(sampling.min_p),
            float(sampling.guidance_scale), pipe.dimensions, negative_prompt,
            None if iterations is None else int(iterations), prime is not None,
            str(pipe.dtype).removeprefix("torch."), pipe.device.type, __version__,
        )  # fmt: skip
        return ImageGenerationRequest(pipe, built_method, prompts, recipe, ignored, partial_images)

    def parse_captions(self, texts: list[str]) -> tuple[list[str], tuple[str, ...]]:
        """Return the captions that the model reads of prompts, and the words that it ignores, each once."""
        captions, ignored = [], []
        for text in texts:
            caption, ignored_words = self.parse_caption(text)
            captions.append(caption)
            ignored += ignored_words
        return captions, tuple(dict.fromkeys(ignored))

    def build_prompts(
        self, captions: list[str], row_seeds: list[int] | None = None, sampling: SamplingParams | None = None
    ) -> list[PromptInputs]:
        """Build the prompt inputs of captions, all guidance branches of each.

        Args:
            captions (list[str]): one per row.
            row_seeds (list[int] | None): one per row; 0, 1, … if None.
            sampling (SamplingParams | None): the model's default if None.
        """
        sampling = self.sampling_params() if sampling is None else sampling
        row_seeds = list(range(len(captions))) if row_seeds is None else row_seeds
        return [self.build_prompt(caption, seed, sampling) for caption, seed in zip(captions, row_seeds, strict=True)]

    def build_prompt(self, caption: str, seed: int, sampling: SamplingParams) -> PromptInputs:
        """Build the prompt inputs of one image."""
        return PromptInputs(self.encode_branches(caption), self.num_new_tokens, seed, sampling_params=sampling)

    @torch.inference_mode()
    def decode_images(self, tokens: Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> list[Image.Image]:
        """Decode tokens to images; missing tokens are decoded to something.

        Each is decoded alone, since convolutions round differently in a batch: the bytes of an image must not depend on
        what else is generated with it.

        Args:
            tokens (Tensor): `[n, T, …]`.
            request_info (Sequence[ImageRequestInfo]): what each image was generated from, where it is known.
        """
        return [
            to_image(self.decode_pixels(tokens[row : row + 1].to(self.device), request_info[row : row + 1])[0])
            for row in range(len(tokens))
        ]


def to_image(pixels: Tensor) -> Image.Image:
    """Convert pixels `[3, H, W]` in -1..1 to an image."""
    bytes_ = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().permute(1, 2, 0).to("cpu", torch.uint8)
    return Image.fromarray(np.asarray(bytes_))


def check_prompt(text: Any, name: str = "prompt") -> None:
    """Check that a prompt is a string, not empty and not too long.

    Args:
        text (Any): the prompt.
        name (str): how the error calls it.

    Raises:
        PromptError: it is not.
    """
    if not isinstance(text, str):
        raise PromptError(f"the {name} is a {type(text).__name__}; give a string, such as 'a cat above a star'.")
    if not text.strip():
        raise PromptError(f"the {name} is empty; say what to generate, such as 'two frogs on a blue background'.")
    if len(text) > MAX_PROMPT_LENGTH:
        raise PromptError(f"the {name} has {len(text)} characters; use at most {MAX_PROMPT_LENGTH}.")


def to_size(name: str, value: Any) -> str:
    """Return a size as it is written, without asking whether any model generates it.

    Raises:
        InvalidArgument: it is no size.
    """
    if len(text := to_string(name, value, SIZE_FORMAT)) > MAX_SIZE_LENGTH:
        raise argument_error(name, value, SIZE_FORMAT)
    return text


def check_image_arguments(prompt: str | Sequence[str], n: int, seed: int | Sequence[int], **sampling: Any) -> list[str]:
    """Check all that can be checked of a call before a model is loaded.

    Returns:
        list[str]: the prompts.

    Raises:
        PromptError: a prompt is empty or too long.
        InvalidArgument: the number of images, the seeds or the sampling parameters are not possible.
    """
    n = to_integer("n", n, 1, MAX_IMAGES)
    texts = [prompt] if isinstance(prompt, str) else to_items("prompt", prompt, "a string, or a list of strings")
    if not texts:
        raise PromptError("the list of prompts is empty; give at least one prompt.")
    for text in texts:
        check_prompt(text)
    expand_seeds(seed, n * len(texts), "picture")
    check_sampling_params(**sampling)
    return texts


def unsupported_init_image(name: str) -> InvalidArgument:
    """Return the error of models that do not continue images."""
    return InvalidArgument(f"{name} begins every image anew; leave out prime.")


def grid_of(size: str, side: int, context: int, name: str, usual: str) -> tuple[int, int]:
    """Return the rows and columns of tokens in an image of `size`, of which "512x256" is wide.

    Args:
        size (str): width and height in pixels.
        side (int): pixels per side of a token.
        context (int): positions that the model has.
        name (str): how errors call the model.
        usual (str): a size that errors recommend.

    Raises:
        InvalidArgument: it is no size, no multiple of `side`, or more than the context holds.
    """
    match = SIZE_PATTERN.fullmatch(size)
    width, height = map(int, match.groups()) if match else (1, 1)
    if width % side or height % side:
        raise InvalidArgument(
            f"size={size} is not possible; {name} generates widths and heights that are multiples of {side}, "
            f"such as {usual}."
        )
    if (tokens := width // side * (height // side)) >= context:
        raise InvalidArgument(
            f"size={size} is {tokens} tokens and {name} holds {context} positions; generate a smaller image, such as "
            f"{usual}."
        )
    return height // side, width // side
