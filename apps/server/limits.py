"""How much is accepted: a bounded number of requests of each model, and a guess when there will be room again."""

from __future__ import annotations

import math
from collections import Counter

from polydraft.apps.server.errors import TooBusy

LARGEST_PICTURE = 24_000_000  # bytes of a picture's file, sent in Base64 or uploaded
LARGEST_BODY = 32 * 2**20  # bytes; such a picture in Base64, and the rest of a request
LONGEST_WAIT = 30  # seconds that a client is told to wait at most
RECENT = 0.2  # weight of the newest request in how long requests take


class Admission:
    """rows: how many prompts of a model are decoded together; queue: how many more may wait.

    A request of several prompts (n pictures) counts as many; one alone is never too large.
    """

    def __init__(self, rows: int, queue: int) -> None:
        self.rows, self.queue = rows, queue
        self.held: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}

    def admit(self, model: str, prompts: int) -> None:
        """Count a request in; raises TooBusy where there is no room."""
        held, most = self.held[model], self.rows + self.queue
        if held and held + prompts > most:
            raise TooBusy(
                f"{model} has {held} prompts under way or waiting and takes {most}; try again in a moment.",
                self.retry_after(model),
            )
        self.held[model] += prompts

    def release(self, model: str, prompts: int, seconds: float | None) -> None:
        """Count it out; seconds: how long it took, where it went well."""
        self.held[model] -= prompts
        if seconds is not None:
            usual = self.seconds.get(model, seconds)
            self.seconds[model] = usual + RECENT * (seconds - usual)

    def retry_after(self, model: str) -> int:
        """Whole seconds until there is likely room."""
        return max(1, min(LONGEST_WAIT, math.ceil(self.seconds.get(model, 1.0))))
