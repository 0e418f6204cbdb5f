"""Temporary storage for uploads and audio of a session, bounded in number, bytes and age.

    kept = KeptBySession(Bounds(count=32, size=64 * 2**20, total_size=2**28, age=3600))
    kept.put("key", session, value, size=1000)
    kept.get("key")          # None once it had to go

A session loses its own oldest things at its own bounds. Where all sessions together hold too much, the one that holds
the most loses its oldest, so that nobody can push out what a modest neighbour keeps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Bounds of the storage."""

    count: int  # things of one session
    size: int  # bytes of one session
    total_count: int  # things of all sessions
    total_size: int  # bytes of all sessions
    age: float  # seconds since a thing was put or grew


@dataclass
class Entry(Generic[T]):
    """One thing that is kept."""

    session: str
    value: T
    size: int  # bytes
    at: float  # when it was put or grew


class KeptBySession(Generic[T]):
    """Values by key, each belonging to a session."""

    def __init__(
        self, bounds: Bounds, on_drop: Callable[[T], None] = lambda value: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.bounds: Bounds = bounds
        self.on_drop: Callable[[T], None] = on_drop
        self.clock: Callable[[], float] = clock
        self.entries: dict[str, Entry[T]] = {}  # oldest first

    def put(self, key: str, session: str, value: T, size: int = 0) -> None:
        """Keep `value`, and drop what is too old or too much."""
        self.entries[key] = Entry(session, value, size, self.clock())
        self.drop_excess(session)

    def grow(self, key: str, size: int) -> None:
        """Note that a value has `size` bytes more."""
        if entry := self.entries.get(key):
            entry.size, entry.at = entry.size + size, self.clock()
            self.drop_excess(entry.session)

    def get(self, key: str) -> T | None:
        """Return the value, or None where it is no longer kept."""
        self.drop_old()
        entry = self.entries.get(key)
        return entry.value if entry else None

    def drop_old(self) -> None:
        """Drop what has passed its age."""
        oldest = self.clock() - self.bounds.age
        for key in [key for key, entry in self.entries.items() if entry.at < oldest]:
            self.drop(key)

    def drop_excess(self, session: str) -> None:
        """Drop the oldest things of `session`, and of whoever holds the most, until all bounds hold."""
        self.drop_old()
        mine = [key for key, entry in self.entries.items() if entry.session == session]
        while len(mine) > 1 and (len(mine) > self.bounds.count or self.size(mine) > self.bounds.size):
            self.drop(mine.pop(0))
        while len(self.entries) > 1 and (
            len(self.entries) > self.bounds.total_count or self.size(self.entries) > self.bounds.total_size
        ):
            self.drop(self.oldest_of_largest())

    def oldest_of_largest(self) -> str:
        """Return the oldest key of the session that holds the most, counted in what is over its bound."""
        by_size = self.size(self.entries) > self.bounds.total_size
        held: Counter[str] = Counter()
        for entry in self.entries.values():
            held[entry.session] += entry.size if by_size else 1
        largest = held.most_common(1)[0][0]
        return next(key for key, entry in self.entries.items() if entry.session == largest)

    def size(self, keys: Iterable[str]) -> int:
        """Return the bytes of `keys` together."""
        return sum(self.entries[key].size for key in keys)

    def drop(self, key: str) -> None:
        """Forget a value."""
        self.on_drop(self.entries.pop(key).value)

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self.entries):
            self.drop(key)


def session_of(request: Any) -> str:
    """Return the session of a request, as the guards noted it; "" where nothing stands before the application."""
    return str(getattr(getattr(request, "state", None), "session", ""))
