"""What of a model's files is still mapped into this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polydraft.core.model.mapped import MAPS, SUFFIX


def mapped_files(folder: Path) -> list[str]:
    """Return weight files below `folder` that this process has mapped; nothing where the system does not tell."""
    if not MAPS.exists():
        return []
    gc.collect()  # what only cycles of garbage hold is held by nobody
    paths = [line.split(maxsplit=5)[-1] for line in MAPS.read_text().splitlines() if SUFFIX in line]
    return sorted(path for path in paths if path.startswith(str(folder.resolve())))


@contextmanager
def maps_no_more(folder: Path) -> Iterator[None]:
    """Check that what is loaded inside the block stays mapped nowhere; the stock model of a test may be."""
    before = mapped_files(folder)
    yield
    assert len(mapped_files(folder)) <= len(before)
