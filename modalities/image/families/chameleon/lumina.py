"""Lumina-mGPT (Alpha-VLLM/Lumina-mGPT-7B-768): images in multiples of 32 pixels, a code for each 16x16, row by row.

A prompt is `<bos> Generate an image of WxH according to the following prompt:\\n caption <end of turn>`. The model
answers with the beginning of an image, its height and its width, which the prompt has said: they leave no choice, so
they are part of the prompt here, and guidance, which its makers let begin behind them, is everywhere. It leads away
from these three alone, which stand at positions of their own. The settings are those of Alpha-VLLM/Lumina-mGPT,
lumina_mgpt/inference_solver.py: guidance 4 as its README says, the likeliest 2000 codes, temperature 1.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.families.chameleon.model import Chameleon
from polydraft.modalities.image.families.rows import RowDelimiterFamily
from polydraft.modalities.image.family import GuidanceBranches, ImageFamilyParts
from polydraft.modalities.model_card import ModelCard

END_OF_ROW, SIZE = "<reserved08799>", "<reserved{:05d}>"
PATCH = 2  # codes per side of the unit of sizes
NO_PATCHES = 8800  # number of the reserved token that stands for size 0
TRAINED_SIZE, DEFAULT_SIZE = re.compile(r"-(512|768|1024)(?:-|$)"), 768  # pixels per side, as in names of checkpoints
TOKENIZER_SOURCE = "Alpha-VLLM/Lumina-mGPT-7B-768"
PROMPT_TEMPLATE = "Generate an image of {} according to the following prompt:\n{}"


class LuminaMGPT(RowDelimiterFamily, Chameleon):
    """Lumina-mGPT (not 2.0, which has other codes) with Chameleon's VQGAN beside it."""

    supports_any_size = True

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.vocab_size: int = self.vocab_size + 1
        self.row_end_text_id: int = self.prompt_tokenizer.id(END_OF_ROW)
        match = TRAINED_SIZE.search(self.card.name)
        side = (int(match[1]) if match else DEFAULT_SIZE) // self.pixels_per_code
        self.grid: tuple[int, int] = side, side

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        if not (card.target / "tokenizer.json").is_file():
            raise WeightsError(
                f"{card.name} is published without a tokenizer; put tokenizer.json and tokenizer_config.json of "
                f"{TOKENIZER_SOURCE} into its folder."
            )
        return super().load(card, device, dtype, device_map)

    def parse_size(self, size: str) -> tuple[int, int]:
        grid = super().parse_size(size)
        if grid[0] % PATCH or grid[1] % PATCH:
            raise InvalidArgument(
                f"size={size} is not possible; {self.card.name} generates widths and heights that are multiples of "
                f"{PATCH * self.pixels_per_code}, such as {self.dimensions}."
            )
        return grid

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        sizes = (self.prompt_tokenizer.id(SIZE.format(NO_PATCHES + codes // PATCH)) for codes in self.grid)
        image_start = self.boi, *sizes
        return GuidanceBranches(
            ((*self.encode_turn(PROMPT_TEMPLATE.format(self.dimensions, caption)), *image_start), image_start)
        )
