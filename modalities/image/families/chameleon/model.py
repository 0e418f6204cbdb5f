"""Base classes of Anole, Lumina-mGPT (transformers' Chameleon) and Liquid: codes of Chameleon's VQGAN among text ids.

The loop's ids are the codes, and whatever else a family generates behind them; of the head's rows only the codes' are
kept (8,192 of 65,536). transformers' forward of Chameleon masks codes behind the head, which is called without it here.
The VQGAN is loaded apart from the language model: some checkpoints hold all of it, some its encoder, some none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration

from polydraft.core.errors import WeightsError
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.families.chameleon import vq
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.image.family import ImageFamily, ImageFamilyParts, slice_output_rows
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import load_pretrained

DIGITS = str.maketrans("0123456789", "ABCDEFGHIJ")  # as tokens of codes are spelt
BOS, BOI, EOI, END_OF_TURN = "<s>", "<racm3:break>", "<eoss>", "<reserved08706>"


class ChameleonLanguageModel(ChameleonForConditionalGeneration):
    """Chameleon without its VQGAN."""

    _keys_to_ignore_on_load_unexpected = [r"\.vqmodel\."]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.model.vqmodel


class SharedVocabularyFamily(ImageFamily):
    """Language model with a block of text ids for the codes of a VQGAN in its folder or beside it."""

    reads_images = False  # whether images can be shown to it
    first_code_text_id: int  # the text vocabulary's id of code 0

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.prompt_tokenizer: Any = PromptTokenizer(parts.card.target, parts.card.name, self.prompt_vocab_size)
        self.vq: Any = vq.load(parts.card.codec, parts.device, parts.model.dtype, encoder=self.reads_images)
        self.pixels_per_code: int = vq.pixels_per_code(self.vq)
        self.vocab_size: int = len(self.codebook_embeddings)
        self.first_code_text_id = self.find_first_code()
        self.model.lm_head = slice_output_rows(self.model.lm_head, self.first_code_text_id, self.vocab_size)

    @abstractmethod
    def find_first_code(self) -> int:
        """Return the text id of code 0.

        Raises:
            WeightsError: the codes are not one block of text ids.
        """

    @property
    def codebook_embeddings(self) -> Tensor:
        weight: Tensor = self.vq.quantize.embedding.weight
        return weight

    def embed_generated(self, ids: Tensor) -> Tensor:
        return self.embed_prompt(ids + self.first_code_text_id)

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        return vq.decode_codes(self.vq, codes)


class Chameleon(SharedVocabularyFamily):
    """Folder of transformers' Chameleon, with or without a VQGAN."""

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.bos: Any
        self.boi: Any
        self.end_of_turn: Any
        self.bos, self.boi, self.end_of_turn = (self.prompt_tokenizer.id(word) for word in (BOS, BOI, END_OF_TURN))

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        return load_pretrained(ChameleonLanguageModel, card.target, device, dtype, device_map)

    def find_first_code(self) -> int:
        first = self.prompt_tokenizer.id(code_token(0))
        if self.prompt_tokenizer.id(code_token(self.vocab_size - 1)) != first + self.vocab_size - 1:
            raise WeightsError(
                f"the VQGAN of {self.card.name} has {self.vocab_size} codes, which are not one block of its "
                f"{self.prompt_vocab_size} words; its parts are of several models, download it again."
            )
        return first

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Return the ids of a request, up to the end of the turn."""
        return self.bos, *self.prompt_tokenizer.ids(self.prompt_tokenizer.plain(text)), self.end_of_turn


def code_token(code: int) -> str:
    """Return the token of a code."""
    return f"IMGIMG{str(code).translate(DIGITS)}Z"
