"""Standard streams whose reader may go away, stall, or have no room: what is said there never ends the work itself.

protect()                  # at the start of a command: notes on standard error are dropped where they cannot be written
protect_results()          # of work that goes on after its first line of standard output: the same there
never_wait()               # of a server: a reader that stalls is not waited for either
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

PATIENCE = 100  # milliseconds that a stalled reader gets, once a stall
PIECE = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512  # bytes that a pipe with room takes without waiting


class ForgivingFile(io.FileIO):
    """A file descriptor that takes everything and drops what cannot be written.

    Errors are hidden here, below all buffers: one that was raised further up would leave its bytes in a buffer, whose
    last flush fails again and turns the exit status into 120.
    """

    waits = True  # for a reader that stalls
    _stalled = False

    def write(self, data: Any) -> int:
        """Write `data`, or drop it; return its length."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and (self.waits or self._has_room()):
                written = super().write(left if self.waits else left[:PIECE])
                if not written:  # the descriptor does not block, and is full
                    break
                left = left[written:]
        except OSError:
            pass
        return size

    def _has_room(self) -> bool:
        """Return whether a write would not wait; a stall is waited for once."""
        ready = select.poll()
        ready.register(self.fileno(), select.POLLOUT)
        self._stalled = not ready.poll(0 if self._stalled else PATIENCE)
        return not self._stalled


def protect() -> None:
    """Let standard error forgive, and open what the parent process closed, so that no socket gets its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = forgiving(2)


def protect_results() -> None:
    """Let standard output forgive as well."""
    if sys.stdout is None or (sys.stdout is sys.__stdout__ and not is_captured(sys.stdout)):
        sys.stdout = forgiving(1)


def never_wait() -> None:
    """Let the streams that forgive drop what their reader does not take at once."""
    for stream in (sys.stdout, sys.stderr):
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if isinstance(raw, ForgivingFile):
            raw.waits = not hasattr(select, "poll")


def is_captured(stream: io.TextIOBase | Any) -> bool:
    """Return whether a stream is no plain file descriptor, as where a test reads it."""
    return type(stream) is not io.TextIOWrapper


def forgiving(descriptor: int) -> io.TextIOWrapper:
    """Return a text stream on a descriptor that drops what cannot be written, characters included."""
    raw = ForgivingFile(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)
