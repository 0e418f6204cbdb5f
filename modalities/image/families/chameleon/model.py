"""What Anole and Lumina-mGPT share: transformers' Chameleon; and Liquid with both: codes of its VQGAN among words.

The loop's ids are the codes, and whatever else a family draws behind them; of the head's rows only the codes' are kept
(of 65,536 8,192). transformers' forward of Chameleon rules codes out behind the head, which is asked here without it.
The VQGAN is read apart from the language model: some checkpoints hold all of it, some its encoder, some nothing (`vq`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.chameleon import vq
from polydraft.modalities.image.families.text import Words
from polydraft.modalities.image.family import Parts, PictureFamily, rows_of
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import DeviceMap, ModelCard, pretrained

DIGITS = str.maketrans("0123456789", "ABCDEFGHIJ")  # as words of codes are written
BOS, BOI, EOI, END_OF_TURN = "<s>", "<racm3:break>", "<eoss>", "<reserved08706>"


class Speaker(ChameleonForConditionalGeneration):
    """A Chameleon without its VQGAN."""

    _keys_to_ignore_on_load_unexpected = [r"\.vqmodel\."]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.model.vqmodel


class CodesAmongWords(PictureFamily):
    """A language model with a block of words for codes of the VQGAN in its folder or beside it.

    sees: whether pictures can be shown to it. first_word: the word that is code 0.
    """

    sees = False
    first_word: int

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.text = Words(parts.card.target, parts.card.name, self.words)
        self.vq = vq.load(parts.card.codec, parts.device, parts.model.dtype, encoder=self.sees)
        self.side, self.size = vq.side(self.vq), len(self.vectors)
        self.first_word = self.block()
        self.model.lm_head = rows_of(self.model.lm_head, self.first_word, self.size)

    @abstractmethod
    def block(self) -> int:
        """The word that is code 0; raises WeightsError where codes are not one block of words."""

    @property
    def vectors(self) -> Tensor:
        weight: Tensor = self.vq.quantize.embedding.weight
        return weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.read(ids + self.first_word)

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        return vq.pixels(self.vq, codes)


class Chameleon(CodesAmongWords):
    """A folder of transformers' Chameleon, with or without a VQGAN."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.bos, self.boi, self.end_of_turn = (self.text.id(word) for word in (BOS, BOI, END_OF_TURN))

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        return pretrained(Speaker, card.target, device, dtype, device_map)

    def block(self) -> int:
        first = self.text.id(code_word(0))
        if self.text.id(code_word(self.size - 1)) != first + self.size - 1:
            raise WeightsError(
                f"the VQGAN of {self.card.name} has {self.size} codes, which are not one block of its {self.words} "
                "words; its parts are of several models, download it again."
            )
        return first

    def told(self, text: str) -> tuple[int, ...]:
        """Ids of what is asked for, up to the end of the turn."""
        return self.bos, *self.text.ids(self.text.plain(text)), self.end_of_turn


def code_word(code: int) -> str:
    """What a code is called among the words."""
    return f"IMGIMG{str(code).translate(DIGITS)}Z"
