"""GLM-Image (zai-org/GLM-Image): free text, sizes that are multiples of 32, codes first and pixels by diffusion.

A language model draws the codes of a preview, about 256, and then those of the picture, 32x32 pixels each. A diffusion
transformer makes pixels of the latter: diffusers' GlmImagePipeline, which is given the codes, so that the language
model is loaded once. A prompt is the caption in the folder's chat template, `<sop>rows columns<eop>` of the picture and
of the preview, and the token that begins an image; ids are one space, in which code k is id k. The head also scores 128
ids behind the codes. They are never drawn here: transformers' loop may end a picture early by one, or leave one in it,
and diffusers then fails. Makers: temperature 0.9, top-p 0.75, no guidance of codes; 50 steps of diffusion, guided by
1.5.
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
from polydraft.core.folders.door import read_pipeline
from polydraft.modalities.hub import refuse_pickles
from polydraft.modalities.image.families.text import Words
from polydraft.modalities.image.family import Branches, Parts, PictureFamily
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import DeviceMap, ModelCard, pretrained, read_weights

MARKS = ("grid_bos", "grid_eos", "bos")  # around the size of a grid, and what begins an image


class GlmImage(PictureFamily):
    """A folder of diffusers' `GlmImagePipeline`. small: rows of a square picture's preview; steps: of diffusion."""

    grid, side = (32, 32), 32
    free: ClassVar[bool] = True
    branches: int = 1
    small: ClassVar[int] = 16
    steps: ClassVar[int] = 50

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.size = self.config.vision_vocab_size
        self.text = Words(parts.card.path / "processor", parts.card.name, self.words)
        self.marks = [self.mark(name) for name in MARKS]
        self.diffusion = self.read_diffusion(parts)
        known = self.diffusion.transformer.config.prior_vq_quantizer_codebook_size
        if known != len(self.codebook):
            raise WeightsError(
                f"{self.card.name} draws {len(self.codebook)} different codes and its diffusion transformer knows "
                f"{known}; its parts are of several models, download it again."
            )

    def mark(self, name: str) -> str:
        found: str | None = getattr(self.text.tokenizer, f"{name}_token", None)
        if found is None:
            raise WeightsError(f"the tokenizer of {self.card.name} has no {name}_token; download it again.")
        return found

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import GlmImageForConditionalGeneration

        model: Any = pretrained(GlmImageForConditionalGeneration, card.target, device, dtype, device_map)
        model.model.visual = nn.Identity()  # it looks at pictures
        return model

    def read_diffusion(self, parts: Parts) -> Any:
        """diffusers' pipeline without the language model, in the language model's type if diffusion is done in it."""
        from diffusers import GlmImagePipeline
        from transformers.utils.import_utils import is_accelerate_available

        dtype = torch.float32 if self.model.dtype is torch.float64 else self.model.dtype
        for part in sorted(part for part in parts.card.path.iterdir() if part.is_dir()):
            refuse_pickles(part)

        def read() -> Any:
            made: Any = read_pipeline(
                "diffusion transformer", GlmImagePipeline, parts.card.path, processor=None,
                vision_language_encoder=None, dtype=dtype, low_cpu_mem_usage=is_accelerate_available(),
            )  # fmt: skip
            made.set_progress_bar_config(disable=True)
            return made.to(parts.device)

        return read_weights("diffusion transformer", parts.card.path, read)

    # the network

    @property
    def backbone(self) -> nn.Module:
        backbone: nn.Module = self.model.model.language_model
        return backbone

    @property
    def codebook(self) -> Tensor:
        weight: Tensor = self.model.model.vqmodel.quantize.embedding.weight
        return weight

    @property
    def vectors(self) -> Tensor:
        """As its tokenizer looks them up: of length one."""
        return F.normalize(self.codebook.float(), dim=-1)

    # grids

    @property
    def grids(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of the preview and of the picture, as they are drawn."""
        rows, columns = self.grid
        ratio = rows / columns
        return (int(sqrt(ratio) * self.small), int(sqrt(1 / ratio) * self.small)), self.grid

    @property
    def preview(self) -> int:
        """Codes of the preview."""
        rows, columns = self.grids[0]
        return rows * columns

    @property
    def budget(self) -> int:
        return self.preview + super().budget

    @property
    def placed(self) -> Tensor:
        return torch.cat([torch.full((self.preview,), -1), torch.arange(super().budget)])

    @property
    def origins(self) -> Tensor:
        """The preview, enlarged."""
        (low, narrow), (high, wide) = self.grids
        enlarged = (torch.arange(high) * low // high)[:, None] * narrow + torch.arange(wide) * narrow // wide
        return torch.cat([torch.full((self.preview,), -1), enlarged.flatten()])

    def grid_of(self, size: str) -> tuple[int, int]:
        grid = super().grid_of(size)
        if max(grid) > min(grid) * self.small**2:  # its preview would be less than a row
            raise InvalidArgument(
                f"size={size} is not possible; {self.card.name} draws pictures at most {self.small**2} times as long "
                f"as wide, such as {self.dimensions}."
            )
        return grid

    @cached_property
    def places(self) -> Tensor:
        """`[3, budget + 1]`: time, row and column of every id that is drawn, and of one behind the last.

        Both grids begin where whatever comes before has ended on the longest axis (transformers, `get_rope_index`).
        """
        begins, parts = 0, []
        for rows, columns in (*self.grids, (1, 1)):
            spots = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).T
            parts.append(begins + F.pad(spots, (0, 0, 1, 0)))
            begins += max(rows, columns)
        return torch.cat(parts, 1).to(self.device)

    def coordinates(self, places: Tensor) -> Tensor:
        """`[3, …]`: of a prompt's places they are all the same; only their differences are seen."""
        drawn = self.places[:, places.clamp(0, self.budget)]
        return torch.where(places < 0, places, drawn)

    # prompts and pictures

    def prompt(self, caption: str, negative: str) -> Branches:
        opens, closes, begins = self.marks
        said: Any = [{"role": "user", "content": [{"type": "text", "text": self.text.plain(caption)}]}]
        written: Any = read_weights(
            "chat template", self.card.path, lambda: self.text.tokenizer.apply_chat_template(said, tokenize=False)
        )
        sizes = "".join(f"{opens}{rows} {columns}{closes}" for rows, columns in self.grids[::-1])
        return Branches((tuple(self.text.ids(f"{written}{sizes}{begins}", framed=True)),))

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        """Each by itself: diffusers pads what a batch reads, and its transformer sees the padding."""
        known = asked or [Asked("", 0)] * len(codes)
        return torch.cat([self.diffused(grid, one) for grid, one in zip(codes, known, strict=True)])

    def diffused(self, codes: Tensor, asked: Asked) -> Tensor:
        """`[1, 3, H, W]` of codes `[rows, columns]`; diffusion reads a code for 16x16 pixels."""
        high, wide = (self.side * edge for edge in codes.shape)
        finer = codes.repeat_interleave(2, 0).repeat_interleave(2, 1).reshape(1, -1)
        noise = torch.Generator().manual_seed(asked.seed)
        made: Tensor = self.diffusion(
            asked.caption, height=high, width=wide, prior_token_ids=finer, num_inference_steps=self.steps,
            generator=noise, output_type="pt",
        ).images  # fmt: skip
        return made * 2 - 1
