"""Rounds in which contenders take turns piece by piece, and what they may know before a piece.

rounds = time_rounds(contenders, counting, warming, repeats=3, cold=False)
rounds["auto"][0][2]      # run of the third piece of work in the first round
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from polydraft.apps.measure.timing import rotated

CACHE = "POLYDRAFT_CACHE"  # environment variable that names the cache folder, or turns it off
Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(frozen=True)
class RoundContender(Generic[Work, Result]):
    """Method or engine that decodes one piece of work after the other."""

    name: str
    decode: Callable[[Work], Result]
    renew: Callable[[], None] = lambda: None  # forgets what earlier pieces have taught
    learns: bool = False  # whether earlier pieces may change how fast it is


def time_rounds(
    contenders: Sequence[RoundContender[Work, Result]], counting: Sequence[Work], warming: Sequence[Work],
    repeats: int, cold: bool,
) -> dict[str, list[list[Result]]]:  # fmt: skip
    """Return the results of every round and piece of work, by contender.

    Args:
        contenders (Sequence[RoundContender]): Another one begins with each piece.
        counting (Sequence[Work]): Pieces that count.
        warming (Sequence[Work]): Pieces that every round begins with for contenders that learn; for all others, and if
            all is forgotten, the first of them comes before the first round.
        repeats (int): Number of rounds.
        cold (bool): Whether contenders forget everything before every piece.
    """
    rounds: dict[str, list[list[Result]]] = {contender.name: [] for contender in contenders}
    for turn in range(repeats):
        for contender in contenders:
            contender.renew()
            rounds[contender.name].append([])
        for number, piece in enumerate(warming):
            for contender in contenders:
                if (turn, number) == (0, 0) or (contender.learns and not cold):
                    contender.decode(piece)
        for place, piece in enumerate(counting):
            for contender in rotated(contenders, turn + place):
                if cold:
                    contender.renew()
                rounds[contender.name][turn].append(contender.decode(piece))
    return rounds


@contextmanager
def no_cache_folder() -> Iterator[None]:
    """Turn the cache folder off, so that no method knows or keeps the speeds of drafters."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = before
