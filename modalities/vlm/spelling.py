"""Tokens to text while they are still being generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what bytes look like before the last of their character is there


class Spelling:
    """The text of one row. Pieces joined are the whole text, and no piece ends inside a character.

    stops: strings that end it; the first that is said is left out, with all behind it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops, self.told = tokenizer, stops, ""

    def spelt(self, ids: list[int]) -> str:
        """What ids say, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def stops_in(self, text: str) -> list[int]:
        """Where strings that end the text begin."""
        return [at for stop in self.stops if (at := text.find(stop)) >= 0]

    def text(self, ids: list[int]) -> str:
        """What is told of ids, all of it."""
        text = self.spelt(ids)
        return text[: min(self.stops_in(text), default=len(text))]

    def end(self, ids: list[int]) -> int | None:
        """How many of ids there are when a string that ends the text is complete; None if none is."""
        if not self.stops or not self.stops_in(self.spelt(ids)):
            return None
        return next(count for count in range(1, len(ids) + 1) if self.stops_in(self.spelt(ids[:count])))

    def piece(self, ids: list[int], ended: bool) -> str:
        """What the ids generated so far say beyond what was told; at the end, whatever is left."""
        text = self.text(ids)
        ready = text if ended else self.certain(text.rstrip(UNFINISHED))
        if not ready.startswith(self.told):  # the last characters may still change
            return ""
        piece, self.told = ready[len(self.told) :], ready
        return piece

    def certain(self, text: str) -> str:
        """Without what may become one of `stops`."""
        begun = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return text[: len(text) - max(begun, default=0)]
