"""The cache folder: what is kept from process to process and may be lost.

    folder = cache_folder()        # None if nothing is to be kept

`POLYDRAFT_CACHE` names another folder; `POLYDRAFT_CACHE=off` keeps nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "POLYDRAFT_CACHE"  # environment variable
OFF = "off"


def cache_folder() -> Path | None:
    """Return the folder for what may be lost, or None if nothing is to be kept."""
    named = os.environ.get(CACHE)
    if named == OFF:
        return None
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polydraft"
