"""Anole (leloy/Anole-7b-v0.1-hf): 512x512 in 32x32 codes, by the Chameleon whose head was taught to draw.

A prompt is `<bos> caption <end of turn> <boi>`; guidance leads away from `<bos> <boi>`. Where a picture is shown with
the caption there are three branches (Brooks et al. 2023, InstructPix2Pix, arXiv 2211.09800): everything, the picture
alone, neither; from neither it goes 1.2 times the way to the picture, and from there `guidance_scale` times the way to
everything. Without a picture the last two are one. What its makers do is in GAIR-NLP/anole,
chameleon/inference/chameleon.py: guidance 3, temperature 0.7, top-p 0.9. The end of a picture is never drawn.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.chameleon import vq
from polydraft.modalities.image.families.chameleon.model import EOI, Chameleon
from polydraft.modalities.image.family import Branches, Parts

TO_PICTURE = 1.2  # how far guidance goes from nothing to the picture that is shown


class Anole(Chameleon):
    """shown: codes of the picture that is shown with captions."""

    sees = True
    shown: tuple[int, ...] = ()

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.eoi = self.text.id(EOI)
        across = self.model.config.vq_config.resolution // self.side
        self.grid = across, across

    def begun(self, picture: Image.Image) -> Self:
        """The same with the RGB `picture` shown to it, its shorter side filled."""
        if not hasattr(self.vq.encoder, "conv_in"):
            raise WeightsError(
                f"the VQGAN of {self.card.name} has no encoder, so that no picture can be shown to it; "
                f"convert the whole one of {vq.SOURCE}."
            )
        high, wide = (count * self.side for count in self.grid)
        small = ImageOps.fit(picture, (wide, high), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.asarray(small) / 127.5 - 1).permute(2, 0, 1)[None]
        other = self.at(self.grid)
        with torch.inference_mode():
            other.shown = tuple(vq.codes_of(self.vq, pixels.to(self.device)).flatten().tolist())
        other.branches = 3
        return other

    def prompt(self, caption: str, negative: str) -> Branches:
        told, nothing = self.told(caption), (self.bos, self.boi)
        if not self.shown:
            return Branches(((*told, self.boi), nothing))
        picture = self.boi, *(self.first_word + code for code in self.shown), self.eoi
        return Branches(((self.bos, *picture, *told[1:], self.boi), (self.bos, *picture, self.boi), nothing))

    def scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        if not self.shown:
            return None
        first = torch.where(guidance_scale == 1, 1.0, TO_PICTURE)  # a row without guidance has none at all
        return torch.stack([guidance_scale, first], 1)[..., None].expand(-1, -1, t.shape[1])
