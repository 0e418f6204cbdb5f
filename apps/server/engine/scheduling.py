"""Fair scheduling by time used, so that a long image does not starve a short sentence.

scheduler = FairScheduler()
key = scheduler.next(ready)          # of the keys that have work
scheduler.spent(key, seconds)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairScheduler(Generic[T]):
    """Scheduler by seconds used per key; idle keys gain no credit."""

    def __init__(self) -> None:
        self.used: dict[T, float] = {}
        self.before: set[T] = set()

    def next(self, ready: Collection[T]) -> T | None:
        """Return the ready key that has used least time, the first of equals, or None if none is ready."""
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
