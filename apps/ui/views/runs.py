"""Runs: stretches of tokens that one target pass committed, and the colours they have everywhere on the page."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

SHADES = 7  # colours in turns, --run-0 … of page.css; neighbours differ in hue and in lightness


class TokenRun(NamedTuple):
    """Tokens `start` to `end` (exclusive), committed by target pass `number` (from 1)."""

    number: int
    start: int
    end: int

    @property
    def shade(self) -> int:
        return (self.number - 1) % SHADES

    def __str__(self) -> str:
        tokens = self.end - self.start
        return f"pass {self.number}: {tokens} token{'s' if tokens != 1 else ''}"


def runs(passes: Iterable[int]) -> list[TokenRun]:
    """Return the runs of tokens with equal passes; pass 0 marks tokens that are not committed yet."""
    found = []
    for number, tokens in groupby(enumerate(passes), lambda item: item[1]):
        places = [place for place, _ in tokens]
        if number > 0:
            found.append(TokenRun(number, places[0], places[-1] + 1))
    return found
