"""Emu3-Gen (BAAI/Emu3-Gen-hf): images of any size in multiples of 8 pixels, a code for each 8x8, a row at a time.

A prompt is `<bos> caption <boi>h*w<img>`, h and w in codes; guidance leads away from the same with a negative prompt. A
row of w codes is followed by the end of a row, which costs no pass; what would follow the last code (the end of its
row, and three ids that end the image) is never generated. Codes are tokens of the text vocabulary: the loop's ids are
the codes and, behind them, the end of a row, so that of the head's 184,622 rows only the codes' are kept. The settings
are those of baaivision/Emu3, image_generation.py: guidance 3, the likeliest 2048, and words that are added to captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.image.families.rows import RowDelimiterFamily
from polydraft.modalities.image.family import GuidanceBranches, ImageFamily, ImageFamilyParts, slice_output_rows
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import load_pretrained

BOS, BOI, IMAGE, END_OF_ROW = "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"
CODE = "<|visual token {:06d}|>"
DEFAULT_SIDE = 90  # rows and columns of codes
POSITIVE_SUFFIX = " masterpiece, film grained, best quality."
NEGATIVE_PROMPT = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Emu3(RowDelimiterFamily, ImageFamily):
    """Folder of transformers' `Emu3ForConditionalGeneration`."""

    supports_any_size = True
    default_negative_prompt: ClassVar[str] = NEGATIVE_PROMPT

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.prompt_tokenizer: Any = PromptTokenizer(parts.card.target, parts.card.name, self.prompt_vocab_size)
        codes = len(self.codebook_embeddings)
        self.row_end_text_id: int
        self.row_end_text_id, first = self.prompt_tokenizer.id(END_OF_ROW), self.prompt_tokenizer.id(CODE.format(0))
        if (
            self.prompt_tokenizer.id(CODE.format(codes - 1)) != first + codes - 1
            or first + codes > self.prompt_vocab_size
        ):
            raise WeightsError(
                f"the {codes} codes of {self.card.name} are not one block of its {self.prompt_vocab_size} ids; "
                "its parts are of several models, download it again."
            )
        self.vocab_size: int = codes + 1
        self.first_code_text_id: int = first
        self.grid: tuple[int, int] = DEFAULT_SIDE, DEFAULT_SIDE
        self.pixels_per_code: int = 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)
        self.model.lm_head = slice_output_rows(self.model.lm_head, first, codes)

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import Emu3ForConditionalGeneration

        model: Any = load_pretrained(Emu3ForConditionalGeneration, card.target, device, dtype, device_map)
        model.model.vqmodel.encoder = nn.Identity()
        return model

    @property
    def codebook_embeddings(self) -> Tensor:
        weight: Tensor = self.model.model.vqmodel.quantize.embedding.weight
        return weight

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        return GuidanceBranches((self.encode_text(caption + POSITIVE_SUFFIX), self.encode_text(negative)))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Encode a text and the size of the image."""
        height, width = self.grid
        return tuple(self.prompt_tokenizer.ids(f"{BOS}{self.prompt_tokenizer.plain(text)}{BOI}{height}*{width}{IMAGE}"))

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        pixels: Tensor = self.model.model.vqmodel.decode(codes)
        return pixels
