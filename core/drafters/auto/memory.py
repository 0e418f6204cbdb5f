"""Memory of which drafters were fast, kept in the cache folder from process to process.

    memory = SpeedMemory.for_model(("tiny-image", "cpu", "bfloat16"))
    selector.load_json(memory.load())
    memory.save(selector.to_json())

It is small, and a hint only: whatever cannot be read or written is ignored.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polydraft.core.errors import OutputUnwritable, WeightsError
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.core.folders.cache import cache_folder
from polydraft.core.folders.json_files import read_json


@dataclass
class SpeedMemory:
    """File of one model on one kind of machine."""

    file: Path | None  # None: nothing is kept
    saved: Any = None  # what the file holds, as far as this process knows

    @classmethod
    def for_model(cls, parts: Sequence[str]) -> SpeedMemory:
        """Return the memory of a model, which `parts` and the processor tell apart from all others."""
        folder = cache_folder()
        key = hashlib.sha256("\n".join([*parts, platform.machine(), platform.processor()]).encode()).hexdigest()[:24]
        return cls(None if folder is None else folder / "speeds" / f"{key}.json")

    def load(self) -> dict[str, Any]:
        """Return what an earlier process saved, or {}."""
        try:
            self.saved = {} if self.file is None else read_json(self.file)
        except (WeightsError, OSError):
            self.saved = {}
        return dict(self.saved)

    def save(self, speeds: dict[str, Any]) -> None:
        """Replace the file at once, so that nobody reads half of it; does nothing if nothing is new."""
        if self.file is None or speeds == self.saved:
            return
        self.saved = speeds
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.file) as file:
                file.write(json.dumps(speeds).encode())
        except (OSError, OutputUnwritable):  # a full or read-only disk; the next process measures again
            return
