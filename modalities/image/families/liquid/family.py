"""Liquid (Junfeng5/Liquid_V1_7B): 512x512 in 32x32 codes, by a Gemma whose vocabulary ends with Chameleon's codes.

A prompt is `<bos> caption Generate an image based on this description.<boi>`; guidance leads away from
`<bos><unconditional><boi>`. The settings are those of FoundationVision/Liquid, evaluation/inference_t2i.py: guidance 7,
temperature 0.99, top-p 0.96 of the likeliest 4096. Its makers sample from all ids and replace what is no code by the
nearest code; here only codes can be generated.
"""

from __future__ import annotations

from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.chameleon.model import SharedVocabularyFamily
from polydraft.modalities.image.family import GuidanceBranches, ImageFamilyParts

SIDE = 32  # codes per side
BOS, BOI, UNCONDITIONAL = "<bos>", "<boi>", "<unconditional>"
PROMPT_TEMPLATE = "{} Generate an image based on this description."


class Liquid(SharedVocabularyFamily):
    """Folder of a Gemma with codes behind its text ids, and Chameleon's VQGAN beside it."""

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.grid: tuple[int, int] = SIDE, SIDE
        self.bos: Any
        self.boi: Any
        self.bos, self.boi = self.prompt_tokenizer.id(BOS), self.prompt_tokenizer.id(BOI)

    def find_first_code(self) -> int:
        num_text_ids = len(self.prompt_tokenizer.tokenizer)
        if num_text_ids + self.vocab_size != self.prompt_vocab_size:
            raise WeightsError(
                f"{self.card.name} has {self.prompt_vocab_size} words, and its tokenizer and VQGAN have "
                f"{num_text_ids} and {self.vocab_size}; its parts are of several models, download it again."
            )
        return num_text_ids

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        prompt, unconditional = (
            self.prompt_tokenizer.ids(PROMPT_TEMPLATE.format(self.prompt_tokenizer.plain(caption))),
            self.prompt_tokenizer.ids(UNCONDITIONAL),
        )
        return GuidanceBranches(((self.bos, *prompt, self.boi), (self.bos, *unconditional, self.boi)))
