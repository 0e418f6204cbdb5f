"""Stream the text of an answer while its tokens are generated, and end it at stop strings.

detokenizer = StreamingDetokenizer(tokenizer, stops=["\n\n"])
length = detokenizer.push(ids)                      # number of ids up to a complete stop string, else None
print(detokenizer.next_piece(ended=length is not None), end="")
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from polydraft.modalities.vlm.detokenizer import IncrementalDetokenizer


class StreamingDetokenizer:
    """Text of one answer as pieces, which joined are the whole text; no piece ends inside a character.

    The text ends before the first stop string that is complete.

    Args:
        tokenizer (Any): the transformers tokenizer.
        stops (Sequence[str]): strings that end the text.
        min_tokens (int): number of tokens before which no stop string ends the text.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self.detokenizer: IncrementalDetokenizer = IncrementalDetokenizer(tokenizer)
        self.stops: Sequence[str] = stops
        self.min_tokens: int = min_tokens
        self.num_read: int = 0
        self.pieces: list[str] = []  # the text that has been emitted
        self.recent: str = ""  # settled text that is not in `pieces`, or in which a stop string may begin
        self.num_emitted: int = 0  # characters of `recent` that are in `pieces`
        self.final_text: str | None = None  # of `recent` and the open text, the part before the stop string

    @property
    def text(self) -> str:
        """Return the whole text, up to a stop string."""
        return "".join(self.pieces) + self.tail[self.num_emitted :]

    @property
    def tail(self) -> str:
        """Return the end of the text: `recent` and the open text."""
        if self.final_text is not None:
            return self.final_text
        return self.recent + self.detokenizer.open_text

    def push(self, ids: Sequence[int]) -> int | None:
        """Append ids, up to the one that completes a stop string.

        Args:
            ids (Sequence[int]): the next ids.

        Returns:
            int | None: number of ids up to and including the one that completed a stop string; None without one.
        """
        for token in ids:
            before = self.tail
            self.recent += self.detokenizer.push(token)
            self.num_read += 1
            if self.num_read > self.min_tokens and (start := self.stop_start(before, self.tail)) is not None:
                self.final_text = self.tail[:start]
                return self.num_read
        return None

    def stop_start(self, before: str, text: str) -> int | None:
        """Return the start of the first stop string in `text` that is not in `before`, None without one."""
        num_common = len(commonprefix([before, text]))
        starts = (text.find(stop, max(0, num_common - len(stop) + 1)) for stop in self.stops)
        return min((start for start in starts if start >= 0), default=None)

    def next_piece(self, ended: bool) -> str:
        """Emit the text after earlier pieces that no later id changes; at the end, all remaining text."""
        ready = self.tail if ended else self.without_partial_stop(self.recent + self.detokenizer.certain_open_text)
        piece = ready[self.num_emitted :]
        self.pieces.append(piece)
        self.num_emitted += len(piece)
        self.trim()
        return piece

    def without_partial_stop(self, text: str) -> str:
        """Return text without a suffix that may become one of `stops`."""
        partial = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return text[: len(text) - max(partial, default=0)]

    def trim(self) -> None:
        """Drop the part of `recent` that has been emitted and is too old for a stop string to begin in."""
        longest = max(map(len, self.stops), default=1) - 1
        if self.final_text is None and (excess := min(self.num_emitted, len(self.recent) - longest)) > 0:
            self.recent, self.num_emitted = self.recent[excess:], self.num_emitted - excess
