"""Liquid (Junfeng5/Liquid_V1_7B): 512x512 in 32x32 codes, by a Gemma whose vocabulary ends with Chameleon's codes.

A prompt is `<bos> caption Generate an image based on this description.<boi>`; guidance leads away from
`<bos><unconditional><boi>`. What its makers do is in FoundationVision/Liquid, evaluation/inference_t2i.py: guidance 7,
temperature 0.99, top-p 0.96 of the likeliest 4096. They draw from all words and take what is no code for the nearest
one; here only codes can be drawn.
"""

from __future__ import annotations

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.chameleon.model import CodesAmongWords
from polydraft.modalities.image.family import Branches, Parts

ACROSS = 32  # codes
BOS, BOI, NOTHING = "<bos>", "<boi>", "<unconditional>"
ASKED = "{} Generate an image based on this description."


class Liquid(CodesAmongWords):
    """A folder of a Gemma with codes behind its words, and Chameleon's VQGAN beside it."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.grid = ACROSS, ACROSS
        self.bos, self.boi = self.text.id(BOS), self.text.id(BOI)

    def block(self) -> int:
        known = len(self.text.tokenizer)
        if known + self.size != self.words:
            raise WeightsError(
                f"{self.card.name} has {self.words} words, and its tokenizer and VQGAN have {known} and {self.size}; "
                "its parts are of several models, download it again."
            )
        return known

    def prompt(self, caption: str, negative: str) -> Branches:
        asked, nothing = self.text.ids(ASKED.format(self.text.plain(caption))), self.text.ids(NOTHING)
        return Branches(((self.bos, *asked, self.boi), (self.bos, *nothing, self.boi)))
