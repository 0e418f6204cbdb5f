"""Text to image with an autoregressive model: what users call.

    from polydraft import generate_image, load
    generate_image("two frogs on a blue background").image.save("frogs.png")
    pipe = load("tiny-image", method="jacobi")
    for step in pipe.stream("a cat above a star on a navy background"): print(step.tokens_done)

The same seed draws the same picture with every identical method, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.arguments import to_name
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.stamps import Stamp
from polydraft.core.law.sampling import Sampler, Sampling
from polydraft.core.target import CausalTarget, Prompt
from polydraft.modalities.image.base import PicturePipeline, check_drawing
from polydraft.modalities.image.families import family_of
from polydraft.modalities.image.family import Parts, PictureFamily
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.run import Asked, ImageRun, ImageStep, ImageStream
from polydraft.modalities.image.sibling import Sibling
from polydraft.modalities.image.target import EMBEDDINGS
from polydraft.modalities.image_io import Picture
from polydraft.modalities.loading import ModelCard, check_method, device_name, dtype_name, load, stamp

KEPT_GRIDS = 8  # sizes whose methods are kept, those last drawn; models of any size have no end of them


def generate_image(
    prompt: str | Sequence[str], *, speculative: bool = True, model: str | Path = "tiny-image",
    method: str | None = None, n: int = 1, seed: int | Sequence[int] = 0, temperature: float | None = None,
    top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
    guidance_scale: float | None = None, size: str | None = None, iterations: int | None = None,
    negative_prompt: str | None = None, prime: Picture | None = None, device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    on_step: Callable[[ImageStep], None] | None = None,
) -> ImageResult:  # fmt: skip
    """Draw `prompt` (or each of a list), `n` pictures a prompt.

    speculative: True uses the model's best identical method, False plain decoding; the picture is the same.
    seed: picture i gets seed + i, or the i-th of a list. None everywhere else means the model's own default;
    temperature 0 is greedy, guidance_scale 1 is off. size: "512x256" is wide, for models that draw several sizes.
    iterations: sets of tokens of a picture, for models that draw these. negative_prompt: what guidance leads away from.
    prime: a picture (a file or a PIL image) to go on from, or one shown with the prompt, for models that do. Raises a
    PolydraftError that says what to change.
    """
    check_drawing(
        prompt, n, seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, guidance_scale=guidance_scale
    )
    check_method(model, method, "image")
    names = to_name("model", model), device_name(device), dtype_name(dtype)
    return _cached_pipeline(*names, stamp(model))(
        prompt, speculative=speculative, method=method, n=n, seed=seed, temperature=temperature, top_k=top_k,
        top_p=top_p, min_p=min_p, guidance_scale=guidance_scale, size=size, iterations=iterations,
        negative_prompt=negative_prompt, prime=prime, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, device: str, dtype: str, stamp: Stamp) -> PicturePipeline:
    return load(model, device=device, dtype=dtype, modality="image")


class ImagePipeline(PicturePipeline):
    """Pictures of codes, drawn by a model of any family (`family.py`).

    negative: what guidance leads away from, in words.
    """

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        self.kind = family_of(card)
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.family = self.kind(Parts(card, self.target_model, device))
        self.context, self.negative = self.family.context, self.family.negative or ""
        self.eos = self.family.eos
        self._grids: dict[tuple[int, int], Self] = {}

    def read_target(self, folder: Path) -> PreTrainedModel:
        return self.kind.load(self.card, self.device, self.dtype, self.card.device_map)

    def adapted(self, guided: bool) -> CausalTarget:
        return self.family.target(guided)

    @property
    def covered(self) -> bool:
        return True  # a family has tests

    @property
    def grid(self) -> tuple[int, int]:
        return self.family.grid

    @property
    def token_side(self) -> int:
        return self.family.side

    @property
    def row(self) -> int:  # type: ignore[override]
        return self.family.row

    @property
    def origins(self) -> Tensor | None:  # type: ignore[override]
        return self.family.origins

    @property
    def preview(self) -> int:  # type: ignore[override]
        return int((self.family.placed >= 0).int().argmax())

    @property
    def budget(self) -> int:
        return self.family.budget

    def placed(self, prompt: Prompt, had: int, committed: list[Any]) -> tuple[Tensor, Tensor]:
        """Ends of rows, and pictures before the picture, have no place."""
        places = self.family.placed[had : had + len(committed)]
        return places[places >= 0], self.read_tokens(committed)[places >= 0]

    def sized(self, size: str | None) -> Self:
        if size in (None, "auto", self.dimensions):
            return self
        grid = self.family.grid_of(str(size))
        found = self._grids.pop(grid, None)  # methods belong to a grid, so that requests of one size share theirs
        self._grids[grid] = self.of(self.family.at(grid)) if found is None else found
        for oldest in list(self._grids)[:-KEPT_GRIDS]:
            del self._grids[oldest]
        return self._grids[grid].changed(negative=self.negative)

    def of(self, family: PictureFamily) -> Self:
        """The same weights, drawing what another form of the family draws; methods are its own."""
        other = self.changed(family=family, _methods={}, _targets={}, _sizes={})
        for name in GRIDDED & vars(other).keys():
            del vars(other)[name]
        return other

    def beside(self, drafter: str | Path) -> Self:
        return super().beside(drafter).changed(_grids={})

    def led_from(self, negative_prompt: str | None) -> Self:
        if negative_prompt is None or self.family.negative is None:
            return super().led_from(negative_prompt)
        return self.changed(negative=negative_prompt)

    def begun(self, prime: Image.Image | None) -> Self:
        return self if prime is None else self.of(self.family.begun(prime))

    def read_drafter(self, kind: str, folder: Path) -> Any:
        """Of models whose ids are their own, a smaller model of pictures where others have a language model."""
        if kind != "lm" or self.family.speaks:
            return super().read_drafter(kind, folder)
        return Sibling.of(folder, self.family, self.dtype)

    def drafter(self, kind: str) -> Any:
        found = super().drafter(kind)
        return found.at(self.grid) if isinstance(found, Sibling) else found

    def sampling(self, **asked: Any) -> Sampling:
        found = super().sampling(**asked)
        if self.family.branches == 1 and found.guidance_scale != 1:
            raise InvalidArgument(f"{self.card.name} draws without guidance; leave out guidance_scale.")
        return found

    def caption(self, text: str) -> tuple[str, list[str]]:
        return self.family.caption(text)

    def branches(self, caption: str) -> tuple[tuple[int, ...], ...]:
        return self.family.prompt(caption, self.negative).ids

    def prompt(self, caption: str, seed: int, sampling: Sampling) -> Prompt:
        read = self.family.prompt(caption, self.negative)
        alike = len({branch[-1] for branch in read.ids}) == 1
        assert alike or self.family.embeds, "branches share their root, unless prompts say what is read"
        inputs = {EMBEDDINGS: read.embeddings} if read.embeddings else {}
        return Prompt(read.ids, self.budget, seed, inputs=inputs, sampling=sampling)

    def blank(self, rows: int) -> Tensor:
        known = len(self.family.prime)
        tokens = torch.full((rows, self.image_tokens), -1)
        tokens[:, :known] = torch.tensor(self.family.prime, dtype=torch.long)
        return tokens

    def read_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        return torch.as_tensor(committed, dtype=torch.long) - self.family.first

    def missing(self, tokens: Tensor) -> Tensor:
        return tokens < 0

    def pixels(self, tokens: Tensor, asked: Sequence[Asked] = ()) -> Tensor:
        return self.family.pixels(tokens.clamp(min=0).view(-1, *self.grid), asked)

    @cached_property
    def mask(self) -> Tensor:
        return self.family.classes

    @cached_property
    def sampler(self) -> Sampler:
        """The family's grammar; what a checkpoint asks for beside it is about text."""
        family = self.family
        return Sampler(
            self.mask, self.ends, slot=family.slot, planned=family.planned, forced=family.forced,
            narrowing=family.narrowing,
        )  # fmt: skip

    @cached_property
    def rigid(self) -> Tensor | None:  # type: ignore[override]
        """`[V]` bool: ids that are no codes."""
        others = self.codes.isnan().any(-1)
        return others if self.family.forced or len(self.mask) > 1 else None

    @property
    def codes(self) -> Tensor:
        return self.family.table


GRIDDED = frozenset(name for name, kept in vars(ImagePipeline).items() if isinstance(kept, cached_property))

__all__ = ["ImagePipeline", "PicturePipeline", "ImageResult", "ImageRun", "ImageStep", "ImageStream", "generate_image"]
