"""Detect changes of model folders after they were loaded.

before = stamp_folders(folder); …; has_changed = stamp_folders(folder) != before
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from polydraft.core.folders.diagnosis import SETTINGS

Stamp: TypeAlias = "tuple[tuple[str, int, int, int, int], ...]"
MAX_DEPTH = 3  # of nested folders that belong to a model, such as that of a drafter's head
MAX_FILES = 10_000


def stamp_folders(*folders: Path) -> Stamp:
    """Return a value that differs once a file in these folders was changed, added or removed.

    Folders without a model are ignored, links are followed. A file that is replaced by one of the same size and
    modification time still has another time of status change.
    """
    return tuple(state for folder in folders for state in sorted(_file_states(folder)))


def _file_states(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield name, times, size and inode of every file in a model's folder."""
    if not any((folder / name).is_file() for name in SETTINGS):
        return
    patterns = ("/".join("*" * depth) for depth in range(1, MAX_DEPTH + 1))
    for count, file in enumerate(path for pattern in patterns for path in folder.glob(pattern)):
        if count >= MAX_FILES:
            return
        try:
            stat = file.stat()
        except OSError:  # a link that leads nowhere
            continue
        if not file.is_dir():
            yield str(file), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
