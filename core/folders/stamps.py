"""Whether a folder is still the one that was read.

    before = stamp_of(folder); …; changed = stamp_of(folder) != before
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from polydraft.core.folders.faults import SETTINGS

Stamp: TypeAlias = "tuple[tuple[str, int, int, int, int], ...]"
DEPTH = 3  # folders in folders that a model may lie in: a drafter's head is one
MOST = 10_000  # files


def stamp_of(*folders: Path) -> Stamp:
    """Return another value whenever a file of these folders was changed, added or removed; only models' are looked at.

    Links are followed. A file that was replaced by one of the same size and time has another time of its own change.
    """
    return tuple(state for folder in folders for state in sorted(_states(folder)))


def _states(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield name, times, size and number of every file of a model's folder."""
    if not any((folder / name).is_file() for name in SETTINGS):
        return
    patterns = ("/".join("*" * depth) for depth in range(1, DEPTH + 1))
    for count, file in enumerate(path for pattern in patterns for path in folder.glob(pattern)):
        if count >= MOST:
            return
        try:
            about = file.stat()
        except OSError:  # a link that leads nowhere
            continue
        if not file.is_dir():
            yield str(file), about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino
