"""GLM-Image (zai-org/GLM-Image): free text, sizes that are multiples of 32, codes first and pixels by diffusion.

A language model generates the codes of a preview, about 256, and then those of the image, 32x32 pixels each. A
diffusion transformer makes pixels of the latter: diffusers' GlmImagePipeline, which is given the codes, so that the
language model is loaded once. A prompt is the caption in the folder's chat template, `<sop>rows columns<eop>` of the
image and of the preview, and the token that begins an image; ids are one space, in which code k is id k. The head also
scores 128 ids behind the codes. They are never generated here: transformers' loop may end an image early by one, or
leave one in it, and diffusers then fails. Makers: temperature 0.9, top-p 0.75, no guidance of codes; 50 steps of
diffusion, guided by 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.folders.readers import read_pipeline
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.image.family import GuidanceBranches, ImageFamily, ImageFamilyParts
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weight_paths import refuse_pickles
from polydraft.modalities.weights import load_pretrained, read_weights

SPECIAL_TOKENS = ("grid_bos", "grid_eos", "bos")  # around the size of a grid, and at the beginning of an image


class GlmImage(ImageFamily):
    """Folder of diffusers' `GlmImagePipeline`."""

    grid: tuple[int, int] = (32, 32)
    pixels_per_code: int = 32
    supports_any_size: ClassVar[bool] = True
    num_branches: int = 1
    preview_side: ClassVar[int] = 16  # codes per side of a square image's preview
    diffusion_steps: ClassVar[int] = 50

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.vocab_size: int = self.config.vision_vocab_size
        self.prompt_tokenizer: Any
        self.prompt_tokenizer = PromptTokenizer(parts.card.path / "processor", parts.card.name, self.prompt_vocab_size)
        self.special_tokens: list[str] = [self.find_special_token(name) for name in SPECIAL_TOKENS]
        self.diffusion: Any = self.load_diffusion(parts)
        known = self.diffusion.transformer.config.prior_vq_quantizer_codebook_size
        if known != len(self.raw_codebook):
            raise WeightsError(
                f"{self.card.name} generates {len(self.raw_codebook)} different codes and its diffusion transformer "
                f"knows {known}; its parts are of several models, download it again."
            )

    def find_special_token(self, name: str) -> str:
        """Return a special token of the tokenizer.

        Raises:
            WeightsError: the tokenizer lacks it.
        """
        found: str | None = getattr(self.prompt_tokenizer.tokenizer, f"{name}_token", None)
        if found is None:
            raise WeightsError(f"the tokenizer of {self.card.name} has no {name}_token; download it again.")
        return found

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import GlmImageForConditionalGeneration

        model: Any = load_pretrained(GlmImageForConditionalGeneration, card.target, device, dtype, device_map)
        model.model.visual = nn.Identity()  # it reads images
        return model

    def load_diffusion(self, parts: ImageFamilyParts) -> Any:
        """Load diffusers' pipeline without the language model, in its dtype unless that is float64."""
        from diffusers import GlmImagePipeline
        from transformers.utils.import_utils import is_accelerate_available

        dtype = torch.float32 if self.model.dtype is torch.float64 else self.model.dtype
        for part in sorted(part for part in parts.card.path.iterdir() if part.is_dir()):
            refuse_pickles(part)

        def load_pipeline() -> Any:
            pipeline: Any = read_pipeline(
                "diffusion transformer", GlmImagePipeline, parts.card.path, processor=None,
                vision_language_encoder=None, dtype=dtype, low_cpu_mem_usage=is_accelerate_available(),
            )  # fmt: skip
            pipeline.set_progress_bar_config(disable=True)
            return pipeline.to(parts.device)

        return read_weights("diffusion transformer", parts.card.path, load_pipeline)

    # the network

    @property
    def backbone(self) -> nn.Module:
        backbone: nn.Module = self.model.model.language_model
        return backbone

    @property
    def raw_codebook(self) -> Tensor:
        weight: Tensor = self.model.model.vqmodel.quantize.embedding.weight
        return weight

    @property
    def codebook_embeddings(self) -> Tensor:
        """Return normalised embeddings, as the image tokenizer looks codes up."""
        return F.normalize(self.raw_codebook.float(), dim=-1)

    # grids

    @property
    def grids(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return rows and columns of the preview and of the image, in the order they are generated."""
        rows, columns = self.grid
        ratio = rows / columns
        return (int(sqrt(ratio) * self.preview_side), int(sqrt(1 / ratio) * self.preview_side)), self.grid

    @property
    def num_preview_codes(self) -> int:
        """Return the number of codes of the preview."""
        rows, columns = self.grids[0]
        return rows * columns

    @property
    def num_new_tokens(self) -> int:
        return self.num_preview_codes + super().num_new_tokens

    @property
    def code_indices(self) -> Tensor:
        return torch.cat([torch.full((self.num_preview_codes,), -1), torch.arange(super().num_new_tokens)])

    @property
    def preview_index(self) -> Tensor:
        """Return the preview's code at the same spot for every code of the image."""
        (low, narrow), (high, wide) = self.grids
        enlarged = (torch.arange(high) * low // high)[:, None] * narrow + torch.arange(wide) * narrow // wide
        return torch.cat([torch.full((self.num_preview_codes,), -1), enlarged.flatten()])

    def parse_size(self, size: str) -> tuple[int, int]:
        grid = super().parse_size(size)
        if max(grid) > min(grid) * self.preview_side**2:  # its preview would be less than a row
            raise InvalidArgument(
                f"size={size} is not possible; {self.card.name} generates images at most {self.preview_side**2} times "
                f"as long as wide, such as {self.dimensions}."
            )
        return grid

    @cached_property
    def position_table(self) -> Tensor:
        """Return `[3, num_new_tokens + 1]`: time, row and column of every generated id, and of one behind the last.

        Both grids begin behind the largest coordinate of whatever comes before (transformers, `get_rope_index`).
        """
        start, parts = 0, []
        for rows, columns in (*self.grids, (1, 1)):
            cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).T
            parts.append(start + F.pad(cells, (0, 0, 1, 0)))
            start += max(rows, columns)
        return torch.cat(parts, 1).to(self.device)

    def rotary_positions(self, positions: Tensor) -> Tensor:
        """Return rotary coordinates `[3, …]`; a prompt's are all equal, since only differences count."""
        generated = self.position_table[:, positions.clamp(0, self.num_new_tokens)]
        return torch.where(positions < 0, positions, generated)

    # prompts and images

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        grid_bos, grid_eos, image_bos = self.special_tokens
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": self.prompt_tokenizer.plain(caption)}]}]
        text: Any = read_weights(
            "chat template",
            self.card.path,
            lambda: self.prompt_tokenizer.tokenizer.apply_chat_template(messages, tokenize=False),
        )
        sizes = "".join(f"{grid_bos}{rows} {columns}{grid_eos}" for rows, columns in self.grids[::-1])
        return GuidanceBranches((tuple(self.prompt_tokenizer.ids(f"{text}{sizes}{image_bos}", framed=True)),))

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        """Decode each image by itself: diffusers pads what a batch reads, and its transformer sees the padding."""
        infos = request_info or [ImageRequestInfo("", 0)] * len(codes)
        return torch.cat([self.decode_with_diffusion(grid, info) for grid, info in zip(codes, infos, strict=True)])

    def decode_with_diffusion(self, codes: Tensor, request_info: ImageRequestInfo) -> Tensor:
        """Decode codes `[rows, columns]` to pixels `[1, 3, H, W]`; diffusion reads a code per 16x16 pixels."""
        height, width = (self.pixels_per_code * edge for edge in codes.shape)
        upsampled = codes.repeat_interleave(2, 0).repeat_interleave(2, 1).reshape(1, -1)
        noise = torch.Generator().manual_seed(request_info.seed)
        images: Tensor = self.diffusion(
            request_info.caption,
            height=height,
            width=width,
            prior_token_ids=upsampled,
            num_inference_steps=self.diffusion_steps,
            generator=noise,
            output_type="pt",
        ).images
        return images * 2 - 1
