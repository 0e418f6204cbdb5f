"""Anole (leloy/Anole-7b-v0.1-hf): 512x512 in 32x32 codes, by the Chameleon whose head was trained to generate images.

A prompt is `<bos> caption <end of turn> <boi>`; guidance leads away from `<bos> <boi>`. Where an image is shown with
the caption there are three branches (Brooks et al. 2023, InstructPix2Pix, arXiv 2211.09800): everything, the image
alone, neither; from neither, guidance goes 1.2 times the way to the image, and from there `guidance_scale` times the
way to everything. Without an image the last two are one. The settings are those of GAIR-NLP/anole,
chameleon/inference/chameleon.py: guidance 3, temperature 0.7, top-p 0.9. The end of an image is never generated.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.chameleon import vq
from polydraft.modalities.image.families.chameleon.model import EOI, Chameleon
from polydraft.modalities.image.family import GuidanceBranches, ImageFamilyParts

IMAGE_GUIDANCE_SCALE = 1.2  # guidance from the unconditional branch to the image that is shown


class Anole(Chameleon):
    """Anole, with or without an image that is shown with captions."""

    reads_images = True
    shown_codes: tuple[int, ...] = ()  # of the image that is shown with captions

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.eoi: Any = self.prompt_tokenizer.id(EOI)
        side = self.model.config.vq_config.resolution // self.pixels_per_code
        self.grid: tuple[int, int] = side, side

    def with_init_image(self, init_image: Image.Image) -> Self:
        """Return the family with an RGB image shown to it, cropped to fill the grid."""
        if not hasattr(self.vq.encoder, "conv_in"):
            raise WeightsError(
                f"the VQGAN of {self.card.name} has no encoder, so that no image can be shown to it; "
                f"convert the whole one of {vq.SOURCE}."
            )
        height, width = (count * self.pixels_per_code for count in self.grid)
        resized = ImageOps.fit(init_image, (width, height), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.asarray(resized) / 127.5 - 1).permute(2, 0, 1)[None]
        other = self.with_grid(self.grid)
        with torch.inference_mode():
            other.shown_codes = tuple(vq.encode_images(self.vq, pixels.to(self.device)).flatten().tolist())
        other.num_branches = 3
        return other

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        turn, unconditional = self.encode_turn(caption), (self.bos, self.boi)
        if not self.shown_codes:
            return GuidanceBranches(((*turn, self.boi), unconditional))
        image = self.boi, *(self.first_code_text_id + code for code in self.shown_codes), self.eoi
        return GuidanceBranches(((self.bos, *image, *turn[1:], self.boi), (self.bos, *image, self.boi), unconditional))

    def guidance_scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        """Return scales of three branches while an image is shown."""
        if not self.shown_codes:
            return None
        # A row without guidance has none for the image either.
        image_scale = torch.where(guidance_scale == 1, 1.0, IMAGE_GUIDANCE_SCALE)
        return torch.stack([guidance_scale, image_scale], 1)[..., None].expand(-1, -1, t.shape[1])
