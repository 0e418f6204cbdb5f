"""Tokens to text while they are still being generated."""

from __future__ import annotations

from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what bytes look like before the last of their character is there


class Spelling:
    """The text of one row. Pieces joined are the whole text, and no piece ends inside a character."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.told = ""

    def text(self, ids: list[int]) -> str:
        """All of it, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def piece(self, ids: list[int], ended: bool) -> str:
        """What the ids generated so far say beyond what was told; at the end, whatever is left."""
        text = self.text(ids)
        ready = text if ended else text.rstrip(UNFINISHED)
        if not ready.startswith(self.told):  # the last characters may still change
            return ""
        piece, self.told = ready[len(self.told) :], ready
        return piece
