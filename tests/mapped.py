"""What of a model's files is still mapped into this process."""

from __future__ import annotations

import gc
from pathlib import Path

from polydraft.core.model.mapped import MAPS, SUFFIX


def mapped_files(folder: Path) -> list[str]:
    """Return weight files below `folder` that this process has mapped; nothing where the system does not tell."""
    if not MAPS.exists():
        return []
    gc.collect()  # what only cycles of garbage hold is held by nobody
    paths = {line.split(maxsplit=5)[-1] for line in MAPS.read_text().splitlines() if SUFFIX in line}
    return sorted(path for path in paths if path.startswith(str(folder.resolve())))
