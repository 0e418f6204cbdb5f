"""Text of an answer while its tokens are still being generated, and the strings that end it."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from polydraft.modalities.vlm.detokenizer import IncrementalDetokenizer


class Spelling:
    """The text of one row. Pieces joined are the whole text, and no piece ends inside a character.

    stops: strings that end it; the first that is complete is left out, with all behind it. least: tokens that come
    before the end whatever they say: a stop string ends the text if a later token completes it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = (), least: int = 0) -> None:
        self.detokenizer = IncrementalDetokenizer(tokenizer)
        self.stops, self.least = stops, least
        self.num_read = 0
        self.pieces: list[str] = []
        self.recent = ""  # settled text that is not in `pieces`, or that a stop string may begin in
        self.num_told = 0  # characters of `recent` that are in `pieces`
        self.stopped_text: str | None = None  # what of `recent` and the open text is before a stop string

    @property
    def text(self) -> str:
        """Return all that is said before a stop string."""
        return "".join(self.pieces) + self.latest[self.num_told :]

    @property
    def latest(self) -> str:
        """Return the end of the text: `recent` and what is open."""
        if self.stopped_text is not None:
            return self.stopped_text
        return self.recent + self.detokenizer.open_text

    def read(self, ids: Sequence[int]) -> int | None:
        """Read ids up to the one that completes a stop string.

        Returns:
            int | None: how many ids the text has then, from its beginning; None where no stop string is complete.
        """
        for token in ids:
            before = self.latest
            self.recent += self.detokenizer.push(token)
            self.num_read += 1
            if self.num_read > self.least and (start := self.stop_start(before, self.latest)) is not None:
                self.stopped_text = self.latest[:start]
                return self.num_read
        return None

    def stop_start(self, before: str, text: str) -> int | None:
        """Return where the first stop string begins that is in `text` and was not in `before`."""
        same = len(commonprefix([before, text]))
        starts = (text.find(stop, max(0, same - len(stop) + 1)) for stop in self.stops)
        return min((start for start in starts if start >= 0), default=None)

    def piece(self, ended: bool) -> str:
        """Return what is certain beyond earlier pieces; at the end, whatever is left."""
        ready = self.latest if ended else self.without_begun_stop(self.recent + self.detokenizer.certain_open_text)
        piece = ready[self.num_told :]
        self.pieces.append(piece)
        self.num_told += len(piece)
        self.forget()
        return piece

    def without_begun_stop(self, text: str) -> str:
        """Return text without an end that may become one of `stops`."""
        begun = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return text[: len(text) - max(begun, default=0)]

    def forget(self) -> None:
        """Drop of `recent` what has been told and is too far back for a stop string to begin in."""
        reach = max(map(len, self.stops), default=1) - 1
        if self.stopped_text is None and (far := min(self.num_told, len(self.recent) - reach)) > 0:
            self.recent, self.num_told = self.recent[far:], self.num_told - far
