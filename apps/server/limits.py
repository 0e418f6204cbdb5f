"""Admission control: a bounded number of prompts per model, and an estimate when there will be room again."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from PIL import Image

from polydraft.apps.server.errors import TooBusy

LARGEST_PICTURE = 24_000_000  # bytes of an image file, sent in Base64 or uploaded
LARGEST_BODY = 32 * 2**20  # bytes; such an image in Base64, and the rest of a request
LARGEST_UPLOAD = 100 * 2**20  # bytes of a sound file, which goes to disk and not to memory
LONGEST_SOUND = 7200.0  # seconds; a small file may hold days of silence
LONGEST_WAIT = 30  # largest `retry-after` in seconds
MAX_PIXELS = 2**29  # of the decoded images of all requests: 2 GB, or forty photographs of a phone
RECENT = 0.2  # weight of the newest request in how long requests take


@dataclass(frozen=True)
class SoundLimits:
    """Limits of an uploaded sound."""

    max_bytes: int = LARGEST_UPLOAD  # of the file
    max_seconds: float = LONGEST_SOUND


class Admission:
    """Admission to one model: `rows` prompts decode together, `queue` more may wait.

    A request of several prompts (n images) counts as many; a request alone is never too large.
    """

    def __init__(self, rows: int, queue: int) -> None:
        self.rows: int = rows
        self.queue: int = queue
        self.held: Counter[str] = Counter()
        self.pixels: int = 0
        self.seconds: dict[str, float] = {}

    def admit(self, model: str, prompts: int, pixels: int = 0) -> None:
        """Count a request in.

        Args:
            model: name of the model.
            prompts: number of its prompts.
            pixels: pixels of all its decoded images.

        Raises:
            TooBusy: there is no room.
        """
        held, most = self.held[model], self.rows + self.queue
        if held and held + prompts > most:
            raise TooBusy(
                f"{model} has {held} prompts under way or waiting and takes {most}; try again in a moment.",
                self.retry_after(model),
            )
        if pixels and self.pixels and self.pixels + pixels > MAX_PIXELS:
            raise TooBusy(
                f"pictures of {self.pixels:,} pixels are under way or waiting and at most {MAX_PIXELS:,} are held; "
                "try again in a moment.",
                self.retry_after(model),
            )
        self.held[model] += prompts
        self.pixels += pixels

    def release(self, model: str, prompts: int, seconds: float | None, pixels: int = 0) -> None:
        """Count it out; seconds: how long it took, where it went well."""
        self.held[model] -= prompts
        self.pixels -= pixels
        if seconds is not None:
            usual = self.seconds.get(model, seconds)
            self.seconds[model] = usual + RECENT * (seconds - usual)

    def retry_after(self, model: str) -> int:
        """Return the estimated whole seconds until there is room."""
        return max(1, min(LONGEST_WAIT, math.ceil(self.seconds.get(model, 1.0))))


def decoded_pixels(arguments: Any) -> int:
    """Return the number of pixels of all images in a request's arguments, at any depth."""
    if isinstance(arguments, Image.Image):
        return arguments.width * arguments.height
    if isinstance(arguments, dict):
        return sum(map(decoded_pixels, arguments.values()))
    return sum(map(decoded_pixels, arguments)) if isinstance(arguments, (list, tuple)) else 0
