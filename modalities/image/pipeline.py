"""Text to image with an autoregressive model: the functions and classes that users call.

    from polydraft import generate_image, load
    generate_image("two frogs on a blue background").image.save("frogs.png")
    pipe = load("tiny-image", method="jacobi")
    for step in pipe.stream("a cat above a star on a navy background"): print(step.tokens_done)

The same seed gives the same image with every identical method, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.modalities.given_drafters import Drafter, Drafters
from polydraft.modalities.image.base import TextToImagePipeline, check_image_arguments
from polydraft.modalities.image.catalogue import family_class
from polydraft.modalities.image.diffusers_names import (
    StepEndCallback,
    check_one_name,
    resolve_count,
    resolve_seed,
)
from polydraft.modalities.image.draft_model import CodebookDraftModel
from polydraft.modalities.image.family import ImageFamily, ImageFamilyParts
from polydraft.modalities.image.request import ImageGenerationRequest, ImageRequestInfo, ImageStep, ImageStream
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.target import EMBEDDINGS
from polydraft.modalities.image_io import ImageInput
from polydraft.modalities.loading import cached_pipeline
from polydraft.modalities.model_card import ModelCard

MAX_CACHED_GRIDS = 8  # least recently used sizes lose their cached methods, since some models support any size


def generate_image(
    prompt: str | Sequence[str], *, speculative: bool = True, model: str | Path = "tiny-image",
    drafter: Drafters | None = None, method: str | None = None, n: int | None = None,
    seed: int | Sequence[int] | None = None,
    temperature: float | None = None, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
    guidance_scale: float | None = None, size: str | None = None, iterations: int | None = None,
    negative_prompt: str | None = None, prime: ImageInput | None = None, device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    on_step: Callable[[ImageStep], None] | None = None, num_images_per_prompt: int | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    callback_on_step_end: StepEndCallback | None = None,
) -> ImageResult:  # fmt: skip
    """Generate `n` images of each prompt.

    None stands for the model's default.

    Args:
        prompt (str | Sequence[str]): one prompt, or several.
        speculative (bool): True uses the model's best identical method, False plain decoding; the image is the same.
        model (str | Path): a model's name, its folder, or a repository on the hub.
        drafter (Drafters | None): a drafter's folder or repository, or several, as for `load`.
        method (str | None): how to draft and verify.
        n (int | None): images per prompt; None is 1.
        seed (int | Sequence[int] | None): image i gets seed + i, or the i-th of a list; None is 0.
        temperature (float | None): 0 is greedy.
        top_k (int | None): number of the likeliest tokens to sample from.
        top_p (float | None): probability mass of the likeliest tokens to sample from.
        min_p (float | None): least probability of a token, relative to the likeliest one.
        guidance_scale (float | None): strength of classifier-free guidance; 1 is off.
        size (str | None): "512x256" is wide, for models of several sizes.
        iterations (int | None): sets of tokens per image, for models that generate sets.
        negative_prompt (str | None): what guidance leads away from.
        prime (ImageInput | None): an image (a file or a PIL image) to continue, or to be shown with the prompt, for
            models that can.
        device (str | torch.device): "auto" is an accelerator if there is one.
        dtype (str | torch.dtype): of the weights.
        on_step (Callable[[ImageStep], None] | None): called after every target pass.
        num_images_per_prompt (int | None): diffusers' name of `n`.
        generator (torch.Generator | Sequence[torch.Generator] | None): in place of `seed`, which is drawn from it: a
            generator, or one for every image.
        callback_on_step_end (StepEndCallback | None): in place of `on_step`, with diffusers' arguments: the pipeline,
            the index of the step, the number of tokens so far, and `{"step": …}`.

    Returns:
        ImageResult: images, tokens and statistics.

    Raises:
        PolydraftError: the call is not possible; the message says what to change.
    """
    count = resolve_count(n, num_images_per_prompt)
    check_one_name("on_step", on_step, "callback_on_step_end", callback_on_step_end)
    seeds = resolve_seed(seed, generator)
    check_image_arguments(
        prompt, count, seeds, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        guidance_scale=guidance_scale,
    )  # fmt: skip
    pipe: TextToImagePipeline = cached_pipeline("image", model, method, device, dtype, drafter=drafter)
    return pipe(
        prompt, speculative=speculative, method=method, n=count, seed=seeds, temperature=temperature, top_k=top_k,
        top_p=top_p, min_p=min_p, guidance_scale=guidance_scale, size=size, iterations=iterations,
        negative_prompt=negative_prompt, prime=prime, on_step=on_step, callback_on_step_end=callback_on_step_end,
    )  # fmt: skip


class ImagePipeline(TextToImagePipeline):
    """Images of codebook tokens, generated by a model of any family (`family.py`)."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        self.family_type: type[ImageFamily] = family_class(card)
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.family: ImageFamily = self.family_type(ImageFamilyParts(card, self.target_model, device))
        self.context_len: int = self.family.context
        self.negative_prompt: str = self.family.default_negative_prompt or ""
        self.eos_token_ids: frozenset[int] = self.family.eos_token_ids
        self._grids: dict[tuple[int, int], Self] = {}

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        return self.family_type.load(self.card, self.device, self.dtype, self.card.device_map)

    def build_target(self, guided: bool) -> CausalTarget:
        return self.family.build_target(guided)

    @property
    def is_tested_architecture(self) -> bool:
        return True  # every family has tests

    @property
    def grid(self) -> tuple[int, int]:
        return self.family.grid

    @property
    def token_side(self) -> int:
        return self.family.pixels_per_code

    @property
    def row_length(self) -> int:  # type: ignore[override]
        return self.family.row_stride

    @property
    def preview_index(self) -> Tensor | None:  # type: ignore[override]
        """Return the earlier token of the same spot of an image, `[T]`, -1 without one."""
        return self.family.preview_index

    @property
    def num_preview_tokens(self) -> int:  # type: ignore[override]
        """Return the number of tokens before the image rows."""
        return int((self.family.code_indices >= 0).int().argmax())

    @property
    def num_new_tokens(self) -> int:
        return self.family.num_new_tokens

    def locate_tokens(self, prompt: PromptInputs, num_previous: int, committed: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the image's tokens among the committed ones; ends of rows and previews are none."""
        indices = self.family.code_indices[num_previous : num_previous + len(committed)]
        return indices[indices >= 0], self.to_result_tokens(committed)[indices >= 0]

    def with_size(self, size: str | None) -> Self:
        if size in (None, "auto", self.dimensions):
            return self
        grid = self.family.parse_size(str(size))
        found = self._grids.pop(grid, None)  # requests of one size share their methods, which belong to a grid
        self._grids[grid] = self.with_family(self.family.with_grid(grid)) if found is None else found
        for oldest in list(self._grids)[:-MAX_CACHED_GRIDS]:
            del self._grids[oldest]
        return self._grids[grid].copy_with(negative_prompt=self.negative_prompt)

    def with_family(self, family: ImageFamily) -> Self:
        """Return a pipeline of the same weights with another form of the family, and methods of its own."""
        other = self.copy_with(family=family, _methods={}, _targets={}, _sizes={})
        for name in GRID_DEPENDENT & vars(other).keys():
            del vars(other)[name]
        return other

    def with_drafter(self, drafter: Drafter) -> Self:
        return super().with_drafter(drafter).copy_with(_grids={})

    def with_negative_prompt(self, negative_prompt: str | None) -> Self:
        if negative_prompt is None or self.family.default_negative_prompt is None:
            return super().with_negative_prompt(negative_prompt)
        return self.copy_with(negative_prompt=negative_prompt)

    def with_init_image(self, init_image: Image.Image | None) -> Self:
        return self if init_image is None else self.with_family(self.family.with_init_image(init_image))

    def load_drafter_network(self, kind: str, folder: Path) -> Any:
        """Load a drafter; where the target's ids are its own, a draft model is a smaller image model."""
        if kind != "lm" or self.family.uses_text_vocabulary:
            return super().load_drafter_network(kind, folder)
        return CodebookDraftModel.from_folder(folder, self.family, self.dtype)

    def drafter(self, kind: str) -> Any:
        found = super().drafter(kind)
        return found.for_grid(self.grid) if isinstance(found, CodebookDraftModel) else found

    def sampling_params(self, **requested: Any) -> SamplingParams:
        found = super().sampling_params(**requested)
        if self.family.num_branches == 1 and found.guidance_scale != 1:
            raise InvalidArgument(f"{self.card.name} generates without guidance; leave out guidance_scale.")
        return found

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        return self.family.parse_caption(text)

    def encode_branches(self, caption: str) -> tuple[tuple[int, ...], ...]:
        return self.family.encode_prompt(caption, self.negative_prompt).ids

    def build_prompt(self, caption: str, seed: int, sampling: SamplingParams) -> PromptInputs:
        branches = self.family.encode_prompt(caption, self.negative_prompt)
        share_root = len({branch[-1] for branch in branches.ids}) == 1
        assert share_root or self.family.uses_prompt_embeddings, (
            "branches share their root token, unless prompts bring embeddings"
        )
        inputs = {EMBEDDINGS: branches.embeddings} if branches.embeddings else {}
        return PromptInputs(branches.ids, self.num_new_tokens, seed, model_kwargs=inputs, sampling_params=sampling)

    def empty_tokens(self, num_images: int) -> Tensor:
        num_init = len(self.family.init_codes)
        tokens = torch.full((num_images, self.image_tokens), -1)
        tokens[:, :num_init] = torch.tensor(self.family.init_codes, dtype=torch.long)
        return tokens

    def to_result_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        return torch.as_tensor(committed, dtype=torch.long) - self.family.first_code_id

    def missing_mask(self, tokens: Tensor) -> Tensor:
        return tokens < 0

    def decode_pixels(self, tokens: Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> Tensor:
        return self.family.decode_pixels(tokens.clamp(min=0).view(-1, *self.grid), request_info)

    @cached_property
    def token_mask(self) -> Tensor:
        return self.family.allowed_tokens

    @cached_property
    def sampler(self) -> Sampler:
        """Return a sampler with the family's grammar; other settings in a checkpoint's configuration are about text."""
        family = self.family
        return Sampler(
            self.token_mask,
            self.stop_token_mask,
            state_fn=family.grammar_state,
            num_prefix_tokens_read=family.num_prefix_tokens_read,
            max_forced_run=family.max_forced_tokens,
            min_p_scale=family.min_p_scale,
        )

    @cached_property
    def exact_only_mask(self) -> Tensor | None:  # type: ignore[override]
        """Return `[V]` bool, the ids that are no codes."""
        is_no_code = self.codebook.isnan().any(-1)
        return is_no_code if self.family.max_forced_tokens or len(self.token_mask) > 1 else None

    @property
    def codebook(self) -> Tensor:
        return self.family.embeddings_by_id


GRID_DEPENDENT = frozenset(name for name, value in vars(ImagePipeline).items() if isinstance(value, cached_property))

__all__ = [
    "ImageGenerationRequest",
    "ImagePipeline",
    "ImageResult",
    "ImageStep",
    "ImageStream",
    "TextToImagePipeline",
    "generate_image",
]
