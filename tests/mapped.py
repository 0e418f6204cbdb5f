"""Weight files that are mapped into this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polydraft.core.model.mapped_files import MAPS, SUFFIX


def mapped_files(folder: Path) -> list[str]:
    """Return the weight files below `folder` that this process has mapped; empty if the system does not report them."""
    if not MAPS.exists():
        return []
    gc.collect()  # Objects that only reference cycles keep alive do not count.
    paths = [line.split(maxsplit=5)[-1] for line in MAPS.read_text().splitlines() if SUFFIX in line]
    return sorted(path for path in paths if path.startswith(str(folder.resolve())))


@contextmanager
def no_new_mapped_files(folder: Path) -> Iterator[None]:
    """Check that the block leaves no further weight files mapped."""
    before = mapped_files(folder)
    yield
    assert len(mapped_files(folder)) <= len(before)
