"""Who computes next: whoever has used least time, so that a long picture does not starve a sentence.

turns = Turns()
who = turns.next(ready)          # of those with something to do
turns.spent(who, seconds)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Seconds used by each; who was idle gets no credit for it."""

    def __init__(self) -> None:
        self.used: dict[T, float] = {}
        self.before: set[T] = set()

    def next(self, ready: Collection[T]) -> T | None:
        """Whose turn it is; of equals the first."""
        if not ready:
            self.before = set()
            return None
        staying = [self.used[who] for who in ready if who in self.before]
        level = min(staying, default=max(self.used.values(), default=0.0))
        for who in ready:
            if who not in self.before:
                self.used[who] = max(self.used.get(who, 0.0), level)
        self.before = set(ready)
        return min(ready, key=self.used.__getitem__)

    def spent(self, who: T, seconds: float) -> None:
        self.used[who] = self.used.get(who, 0.0) + seconds

    def forget(self, who: T) -> None:
        self.used.pop(who, None)
        self.before.discard(who)
