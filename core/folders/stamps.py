"""Detect changes of model folders after they were loaded.

before = snapshot_folders(folder); …; has_changed = snapshot_folders(folder) != before
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from polydraft.core.folders.diagnosis import SETTINGS

# of every file: path, modification time, status change time, size and inode
FolderSnapshot: TypeAlias = "tuple[tuple[str, int, int, int, int], ...]"
MAX_DEPTH = 3  # of nested folders that belong to a model, such as that of a drafter's head
MAX_FILES = 10_000


def snapshot_folders(*folders: Path) -> FolderSnapshot:
    """Return the state of all files in model folders, which differs once a file was changed, added or removed.

    Folders without a model are ignored, links are followed. The status change time reveals a file that was replaced by
    one of the same size and modification time.
    """
    return tuple(state for folder in folders for state in sorted(_file_states(folder)))


def _file_states(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield path, modification time, status change time, size and inode of the files in a model's folder.

    Folders without any settings file hold no model and yield nothing. At most MAX_FILES files down to MAX_DEPTH folders
    are visited, so that a folder with much else in it does not take long.
    """
    if not any((folder / name).is_file() for name in SETTINGS):
        return
    patterns = ("/".join("*" * depth) for depth in range(1, MAX_DEPTH + 1))  # "*", "*/*", "*/*/*"
    for count, file in enumerate(path for pattern in patterns for path in folder.glob(pattern)):
        if count >= MAX_FILES:
            return
        try:
            stat = file.stat()
        except OSError:  # a link that leads nowhere
            continue
        if not file.is_dir():
            yield str(file), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
