"""Training time in seconds, without pauses of a stopped process.

clock = Clock()
while clock.spent() < budget:  # asked at every step
    …
"""

from __future__ import annotations

import time

LONGEST = 60.0  # seconds of a step; a longer time between two calls is a pause (`kill -STOP`)


class Clock:
    """Clock of a training run; `before` are the seconds of earlier runs."""

    def __init__(self, before: float = 0.0) -> None:
        self._spent, self._asked = before, time.monotonic()

    def spent(self) -> float:
        """Return the training seconds until now."""
        now = time.monotonic()
        if now - self._asked < LONGEST:
            self._spent += now - self._asked
        self._asked = now
        return self._spent
