"""Text to image with an autoregressive model: what users call.

    from polydraft import generate_image, load
    generate_image("two frogs on a blue background").image.save("frogs.png")
    pipe = load("tiny-image", method="jacobi")
    for step in pipe.stream("a cat above a star on a navy background"): print(step.tokens_done)

The same seed draws the same picture with every identical method, alone or in a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.core.errors import InvalidArgument, PromptError, WeightsError
from polydraft.core.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.run import ImageRun, ImageStep, ImageStream
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.loading import ModelCard, load, read_weights
from polydraft.modalities.pipeline import Pipeline, guided, seeds
from polydraft.modalities.world.parsing import normalise

LONGEST_TEXT = 2000  # characters
LONGEST_PROMPT = 46  # words the model reads


def generate_image(
    prompt: str | list[str], *, speculative: bool = True, model: str = "tiny-image", method: str | None = None,
    n: int = 1, seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, guidance_scale: float | None = None, device: str = "auto", dtype: str = "auto",
    on_step: Callable[[ImageStep], None] | None = None,
) -> ImageResult:  # fmt: skip
    """Draw `prompt` (or each of a list), `n` pictures a prompt.

    speculative: True uses the model's best identical method, False plain decoding; the picture is the same.
    seed: picture i gets seed + i, or the i-th of a list. None everywhere else means the model's own default;
    temperature 0 is greedy, guidance_scale 1 is off.
    Raises a PolydraftError that says what to change.
    """
    return _cached_pipeline(model, device, dtype)(
        prompt, speculative=speculative, method=method, n=n, seed=seed, temperature=temperature, top_k=top_k,
        top_p=top_p, guidance_scale=guidance_scale, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, device: str, dtype: str) -> PicturePipeline:
    return load(model, device=device, dtype=dtype, modality="image")


class PicturePipeline(Pipeline):
    """A text-to-image model with its weights, ready to draw with any of its methods, whatever its tokens are."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.text = read_weights("vocabulary", card.path, lambda: vocabulary.load(card.path / "target"))

    @property
    @abstractmethod
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""

    @property
    @abstractmethod
    def side(self) -> int:
        """Pixels a side."""

    @abstractmethod
    def blank(self, rows: int) -> Tensor:
        """`[rows, T, …]`: pictures of which no token is there."""

    @abstractmethod
    def read_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        """`[K, …]`: what the loop committed, as results have it."""

    @abstractmethod
    def missing(self, tokens: Tensor) -> Tensor:
        """`[n, T]` bool: tokens that are not there."""

    @abstractmethod
    def pixels(self, tokens: Tensor) -> Tensor:
        """`[n, 3, H, W]` in -1..1 of tokens `[n, T, …]`; missing ones look like something."""

    @property
    def image_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def row(self) -> int:  # type: ignore[override]
        return self.grid[1]

    def sample_prompts(self) -> list[Prompt]:
        return self.prompts_to_ids(["a cat"])

    def __call__(
        self, prompt: str | list[str], *, on_step: Callable[[ImageStep], None] | None = None, **options: Any
    ) -> ImageResult:
        """As `generate_image`, without model, device and dtype."""
        stream = self.stream(prompt, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(
        self, prompt: str | list[str], *, speculative: bool = True, method: str | None = None, n: int = 1,
        seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, guidance_scale: float | None = None,
    ) -> ImageStream:  # fmt: skip
        """An iterator of steps; leave it at any time, `result()` is what was drawn so far."""
        return ImageStream(
            self.run(
                prompt, speculative=speculative, method=method, n=n, seed=seed, temperature=temperature, top_k=top_k,
                top_p=top_p, guidance_scale=guidance_scale,
            )
        )  # fmt: skip

    def run(
        self, prompt: str | list[str], *, speculative: bool = True, method: str | None = None, n: int = 1,
        seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, guidance_scale: float | None = None, partial_images: int = 0,
    ) -> ImageRun:  # fmt: skip
        """The same for who drives the loop; partial_images: how often pictures are drawn before they are whole."""
        choice = self.chosen(speculative, method)
        if not isinstance(n, int) or n < 1:
            raise InvalidArgument(f"n={n} is not possible; it must be a whole number from 1.")
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        captions, ignored = self.read(texts)
        captions = [caption for caption in captions for _ in range(n)]
        sampling = self.sampling(temperature=temperature, top_k=top_k, top_p=top_p, guidance_scale=guidance_scale)
        prompts = self.prompts_to_ids(captions, seeds(seed, len(captions), "picture"), sampling)
        way = self.method(choice, guided(prompts))
        return ImageRun(self, way, prompts, [text for text in texts for _ in range(n)], ignored, partial_images)

    def read(self, texts: list[str]) -> tuple[list[str], tuple[str, ...]]:
        """Captions in the model's own words, and the words it does not know."""
        if not texts:
            raise PromptError("the list of prompts is empty; give at least one prompt.")
        captions, ignored = [], []
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise PromptError("the prompt is empty; say what to draw, such as 'two frogs on a blue background'.")
            if len(text) > LONGEST_TEXT:
                raise PromptError(f"the prompt has {len(text)} characters; use at most {LONGEST_TEXT}.")
            words, unknown = normalise(text)
            if not words:
                raise PromptError(
                    f"{self.card.name} knows no word of this prompt; "
                    f"`polydraft models {self.card.name}` lists what it can draw."
                )
            if len(words) > LONGEST_PROMPT:
                raise PromptError(f"the prompt has {len(words)} words the model reads; use at most {LONGEST_PROMPT}.")
            captions.append(" ".join(words))
            ignored += unknown
        return captions, tuple(dict.fromkeys(ignored))

    def prompts_to_ids(
        self, captions: list[str], row_seeds: list[int] | None = None, sampling: Sampling | None = None
    ) -> list[Prompt]:
        """Conditional and unconditional branches of every row; sampling: the model's own unless given."""
        sampling = self.sampling() if sampling is None else sampling
        empty = tuple(vocabulary.prompt_ids(self.text, ""))
        row_seeds = list(range(len(captions))) if row_seeds is None else row_seeds
        return [
            Prompt(
                (tuple(vocabulary.prompt_ids(self.text, caption)), empty), self.image_tokens, seed, sampling=sampling
            )
            for caption, seed in zip(captions, row_seeds, strict=True)
        ]

    @torch.inference_mode()
    def decode_images(self, tokens: Tensor) -> list[Image.Image]:
        """Pictures of tokens `[n, T, …]`; whatever where some are missing."""
        pixels = torch.cat([self.pixels(part) for part in tokens.to(self.device).split(8)])
        bytes_ = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1).to("cpu", torch.uint8)
        return [Image.fromarray(np.asarray(picture)) for picture in bytes_]


class ImagePipeline(PicturePipeline):
    """Pictures of VQ codes."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.code_offset = vocabulary.code_offset(self.text)
        folder = card.path / "tokenizer"
        self.vq = read_weights("tokenizer", folder, lambda: VQTokenizer.from_folder(folder).to(device, dtype).eval())
        wanted, vocab = self.code_offset + len(self.vq.codebook), self.target_model.config.vocab_size
        if wanted != vocab:
            raise WeightsError(
                f"the words and codes in {card.path} are {wanted} ids and its target knows {vocab}; "
                "its parts are of several models, install it again."
            )

    @property
    def grid(self) -> tuple[int, int]:
        return self.vq.config.grid, self.vq.config.grid

    @property
    def side(self) -> int:
        return self.vq.config.image_size

    def blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.image_tokens), -1)

    def read_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        return torch.as_tensor(committed, dtype=torch.long) - self.code_offset

    def missing(self, tokens: Tensor) -> Tensor:
        return tokens < 0

    def pixels(self, tokens: Tensor) -> Tensor:
        return self.vq.decode(tokens.clamp(min=0).view(-1, *self.grid))

    @cached_property
    def mask(self) -> Tensor:
        """`[1, V]` bool: codes, everywhere."""
        return (torch.arange(self.target_model.config.vocab_size, device=self.device) >= self.code_offset)[None]

    @cached_property
    def codes(self) -> Tensor:
        """`[V, D]`: what the tokenizer looks codes up by; nan for words."""
        vectors = self.vq.codebook.float()
        codes = torch.full((self.mask.shape[1], vectors.shape[1]), torch.nan, device=vectors.device)
        codes[self.code_offset : self.code_offset + len(vectors)] = vectors
        return codes


__all__ = ["ImagePipeline", "PicturePipeline", "ImageResult", "ImageRun", "ImageStep", "ImageStream", "generate_image"]
