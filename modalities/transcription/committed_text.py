"""Text of a window as target passes commit its tokens: which pass committed which text, and between which times.

    text = WindowText(pipe.decode_text, num_text_ids=50257, first_timestamp=50364)
    text.push([50364, 634, 390], target_pass=1)
    text.runs(0, 3)                    # (CommittedText(1, 2, " He was"),)
    text.open_segments(offset=30.0)    # [OpenSegment(30.0, None, …)]: no timestamp has ended it yet
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from polydraft.modalities.transcription.segments import TIME_PRECISION

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from the bytes of an incomplete character


@dataclass(frozen=True)
class CommittedText:
    """Text that one target pass committed."""

    target_pass: int  # from 1, over all windows of the recording
    num_tokens: int  # without timestamps
    text: str  # with the space before it


@dataclass(frozen=True)
class OpenSegment:
    """Part of a window that is being decoded; it may still change."""

    start: float  # seconds from the start of the sound
    end: float | None  # seconds from the start of the sound; None while no timestamp has ended it
    runs: tuple[CommittedText, ...]

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


@dataclass
class WindowText:
    """Tokens of a window with their text, decoded once each."""

    decode_text: Callable[[Sequence[int]], str]
    num_text_ids: int  # ids below it are text
    first_timestamp: int  # ids from it on are timestamps
    num_tokens: int = 0
    # position of each run's first token, and the run; timestamps stand between runs
    committed: list[tuple[int, CommittedText]] = field(default_factory=list)
    timestamps: list[tuple[int, int]] = field(default_factory=list)  # position of each timestamp, and its id
    pending: list[int] = field(default_factory=list)  # ids at the end that are an incomplete character

    @property
    def text(self) -> str:
        """Return the text so far, without an incomplete character at its end."""
        return "".join(run.text for _, run in self.committed)

    def push(self, tokens: Sequence[int], target_pass: int) -> None:
        """Append the tokens that a target pass has committed."""
        for is_text, group in groupby(tokens, lambda token: token < self.num_text_ids):
            ids = list(group)
            if is_text:
                self._push_text(ids, target_pass)
            else:
                self._push_control(ids)
            self.num_tokens += len(ids)

    def runs(self, first: int, last: int) -> tuple[CommittedText, ...]:
        """Return the runs among the tokens from position `first` to `last` (exclusive), of which a segment is made."""
        return tuple(run for position, run in self.committed if first <= position < last)

    def open_segments(self, offset: float) -> list[OpenSegment]:
        """Return the segments so far.

        Args:
            offset (float): seconds of the window's start.
        """
        first = self.first_timestamp
        times = [(position, offset + (token - first) * TIME_PRECISION) for position, token in self.timestamps]
        segments, begin, start = list[OpenSegment](), 0, offset
        for position, time in [*times, (self.num_tokens, None)]:
            end = begin
            while end < len(self.committed) and self.committed[end][0] < position:
                end += 1
            if end > begin:
                segments.append(OpenSegment(start, time, tuple(run for _, run in self.committed[begin:end])))
            begin, start = end, start if time is None else time
        return segments

    def _push_text(self, ids: list[int], target_pass: int) -> None:
        """Append text; an incomplete character becomes text of the pass that completes it."""
        self.pending += ids
        text = self.decode_text(self.pending)
        if text.endswith(UNFINISHED):
            text = ""
        else:
            self.pending = []
        self.committed.append((self.num_tokens, CommittedText(target_pass, len(ids), text)))

    def _push_control(self, ids: list[int]) -> None:
        """Append timestamps and other control tokens, before which a character remains incomplete."""
        if self.pending:
            position, run = self.committed.pop()
            text = self.decode_text(self.pending)
            self.committed.append((position, CommittedText(run.target_pass, run.num_tokens, run.text + text)))
            self.pending = []
        timed = ((self.num_tokens + index, id_) for index, id_ in enumerate(ids))
        self.timestamps += [(position, id_) for position, id_ in timed if id_ >= self.first_timestamp]
