"""Seconds that a training has had, without those for which its process was stopped to let something else be timed.

clock = Clock()
while clock.spent() < budget:  # asked at every step
    …
"""

from __future__ import annotations

import time

LONGEST = 60.0  # seconds of a step; more between two questions are a stop (`kill -STOP`)


class Clock:
    """before: seconds of earlier runs."""

    def __init__(self, before: float = 0.0) -> None:
        self._spent, self._asked = before, time.monotonic()

    def spent(self) -> float:
        """Seconds until now."""
        now = time.monotonic()
        if now - self._asked < LONGEST:
            self._spent += now - self._asked
        self._asked = now
        return self._spent
