"""Emu3-Gen (BAAI/Emu3-Gen-hf): pictures of any size in multiples of 8 pixels, a code for each 8x8, a row at a time.

A prompt is `<bos> caption <boi>h*w<img>`, h and w in codes; guidance leads away from the same with a negative prompt. A
row of w codes is followed by the end of a row, which costs no pass; what would follow the last code (the end of its
row, and three ids that end the picture) is never drawn. Codes are words of the text's vocabulary: the loop's ids are
the codes and, behind them, the end of a row, so that of the head's 184,622 rows only the codes' are kept. What its
makers do is in baaivision/Emu3, image_generation.py: guidance 3, the likeliest 2048, and words they add to captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.rows import EndedRows
from polydraft.modalities.image.families.text import Words
from polydraft.modalities.image.family import Branches, Parts, PictureFamily, rows_of
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import DeviceMap, ModelCard, pretrained

BOS, BOI, IMAGE, END_OF_ROW = "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"
CODE = "<|visual token {:06d}|>"
USUAL = 90  # rows and columns
PRAISE = " masterpiece, film grained, best quality."
BLAME = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Emu3(EndedRows, PictureFamily):
    """A folder of transformers' `Emu3ForConditionalGeneration`."""

    free = True
    negative = BLAME

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.text = Words(parts.card.target, parts.card.name, self.words)
        codes = len(self.vectors)
        self.end, first = self.text.id(END_OF_ROW), self.text.id(CODE.format(0))
        if self.text.id(CODE.format(codes - 1)) != first + codes - 1 or first + codes > self.words:
            raise WeightsError(
                f"the {codes} codes of {self.card.name} are not one block of its {self.words} ids; its parts are of "
                "several models, download it again."
            )
        self.size, self.first_word = codes + 1, first
        self.grid, self.side = (USUAL, USUAL), 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)
        self.model.lm_head = rows_of(self.model.lm_head, first, codes)

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import Emu3ForConditionalGeneration

        model: Any = pretrained(Emu3ForConditionalGeneration, card.target, device, dtype, device_map)
        model.model.vqmodel.encoder = nn.Identity()
        return model

    @property
    def vectors(self) -> Tensor:
        weight: Tensor = self.model.model.vqmodel.quantize.embedding.weight
        return weight

    def prompt(self, caption: str, negative: str) -> Branches:
        return Branches((self.told(caption + PRAISE), self.told(negative)))

    def told(self, text: str) -> tuple[int, ...]:
        """Ids of a text, and how large the picture will be."""
        high, wide = self.grid
        return tuple(self.text.ids(f"{BOS}{self.text.plain(text)}{BOI}{high}*{wide}{IMAGE}"))

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        drawn: Tensor = self.model.model.vqmodel.decode(codes)
        return drawn
