"""Lumina-mGPT (Alpha-VLLM/Lumina-mGPT-7B-768): pictures in multiples of 32 pixels, a code for each 16x16, row by row.

A prompt is `<bos> Generate an image of WxH according to the following prompt:\\n caption <end of turn>`. The model
answers with the beginning of a picture, its height and its width, which the prompt has said: they leave no choice, so
they are part of the prompt here, and guidance, which its makers let begin behind them, is everywhere. It leads away
from these three alone, which stand at positions of their own. What its makers do is in Alpha-VLLM/Lumina-mGPT,
lumina_mgpt/inference_solver.py: guidance 4 as its README says, the likeliest 2000 codes, temperature 1.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.modalities.image.families.chameleon.model import Chameleon
from polydraft.modalities.image.families.rows import EndedRows
from polydraft.modalities.image.family import Branches, Parts
from polydraft.modalities.loading import DeviceMap, ModelCard

END_OF_ROW, SIZE = "<reserved08799>", "<reserved{:05d}>"
PATCH = 2  # codes a side of what sizes are counted in
NO_PATCHES = 8800  # which reserved word means a size of none
TRAINED, USUAL = re.compile(r"-(512|768|1024)(?:-|$)"), 768  # pixels a side, as names say it
WITH_WORDS = "Alpha-VLLM/Lumina-mGPT-7B-768"
ASKED = "Generate an image of {} according to the following prompt:\n{}"


class LuminaMGPT(EndedRows, Chameleon):
    """A folder of Lumina-mGPT (not of 2.0, which has other codes) and the VQGAN of Chameleon beside it."""

    free = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.size += 1
        self.end = self.text.id(END_OF_ROW)
        named = TRAINED.search(self.card.name)
        across = (int(named[1]) if named else USUAL) // self.side
        self.grid = across, across

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        if not (card.target / "tokenizer.json").is_file():
            raise WeightsError(
                f"{card.name} is published without a tokenizer; put tokenizer.json and tokenizer_config.json of "
                f"{WITH_WORDS} into its folder."
            )
        return super().load(card, device, dtype, device_map)

    def grid_of(self, size: str) -> tuple[int, int]:
        grid = super().grid_of(size)
        if grid[0] % PATCH or grid[1] % PATCH:
            raise InvalidArgument(
                f"size={size} is not possible; {self.card.name} draws widths and heights that are multiples of "
                f"{PATCH * self.side}, such as {self.dimensions}."
            )
        return grid

    def prompt(self, caption: str, negative: str) -> Branches:
        sizes = (self.text.id(SIZE.format(NO_PATCHES + codes // PATCH)) for codes in self.grid)
        begun = self.boi, *sizes
        return Branches(((*self.told(ASKED.format(self.dimensions, caption)), *begun), begun))
