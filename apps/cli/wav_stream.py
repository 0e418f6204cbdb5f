"""A WAV written while it is made: a pipe gets a header without a length, a regular file its true sizes at the end.

with sized_wav(sys.stdout.buffer, 16_000) as out:
    out.write(pcm(audio))
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from polydraft.modalities.speech.result import wav_header


@contextmanager
def sized_wav(out: BinaryIO, sample_rate: int) -> Iterator[BinaryIO]:
    """Write a header, then what the block writes; correct the header's sizes where `out` can be rewritten.

    A block that is left by an error, such as Ctrl-C, leaves a file that says how long it is as well.
    """
    start = rewritable_position(out)
    header = wav_header(sample_rate)
    out.write(header)
    try:
        yield out
    finally:
        if start is not None:
            end = out.tell()
            out.seek(start)
            out.write(wav_header(sample_rate, end - start - len(header)))
            out.seek(end)
            out.flush()


def rewritable_position(out: BinaryIO) -> int | None:
    """Return where in a regular file `out` stands; None for pipes, terminals and files opened to append."""
    try:
        descriptor = out.fileno()
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return out.tell() if is_file and not appends(descriptor) else None
    except OSError:  # io.UnsupportedOperation is one
        return None


def appends(descriptor: int) -> bool:
    """Return whether every write goes to the file's end, as behind the shell's >>."""
    try:
        import fcntl
    except ImportError:  # Windows, where >> only begins at the end
        return False
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)
