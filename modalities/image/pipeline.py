"""Text to image with an autoregressive model: what users call.

    from polydraft import generate_image, load
    generate_image("two frogs on a blue background").image.save("frogs.png")
    pipe = load("tiny-image", method="jacobi")
    for step in pipe.stream("a cat above a star on a navy background"): print(step.tokens_done)

The same seed draws the same picture with every identical method, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.base import PicturePipeline
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.run import ImageRun, ImageStep, ImageStream
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.image.world import WorldPictures
from polydraft.modalities.loading import ModelCard, load, read_weights


def generate_image(
    prompt: str | list[str], *, speculative: bool = True, model: str = "tiny-image", method: str | None = None,
    n: int = 1, seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, guidance_scale: float | None = None, size: str | None = None, device: str = "auto",
    dtype: str = "auto", on_step: Callable[[ImageStep], None] | None = None,
) -> ImageResult:  # fmt: skip
    """Draw `prompt` (or each of a list), `n` pictures a prompt.

    speculative: True uses the model's best identical method, False plain decoding; the picture is the same.
    seed: picture i gets seed + i, or the i-th of a list. None everywhere else means the model's own default;
    temperature 0 is greedy, guidance_scale 1 is off. size: "512x256" is wide, for models that draw several sizes.
    Raises a PolydraftError that says what to change.
    """
    return _cached_pipeline(model, device, dtype)(
        prompt, speculative=speculative, method=method, n=n, seed=seed, temperature=temperature, top_k=top_k,
        top_p=top_p, guidance_scale=guidance_scale, size=size, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, device: str, dtype: str) -> PicturePipeline:
    return load(model, device=device, dtype=dtype, modality="image")


class ImagePipeline(WorldPictures):
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
    def token_side(self) -> int:
        return self.vq.config.image_size // self.vq.config.grid

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
