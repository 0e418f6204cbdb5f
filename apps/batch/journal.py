"""A file of JSON lines, one for every finished piece of work, so that a stopped run can go on.

    journal = Journal(folder / "results.jsonl")
    if "a" not in journal.done: journal.add({"id": "a", …})

Every line is on disk before `add` returns. A line without its end, written when the power went, is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from polydraft.core.errors import OutputUnwritable


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Whole lines by their id, the last of each."""
    if not path.exists():
        return {}
    whole = path.read_bytes()
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(whole[: whole.rfind(b"\n") + 1].splitlines(), 1):
        try:
            value = json.loads(line)
            found[value["id"]] = value
        except (ValueError, KeyError, TypeError) as error:
            raise OutputUnwritable(
                f"line {number} of {path} is no result, so the run cannot go on from it; use another folder."
            ) from error
    return found


class Journal:
    """Journal of finished items: values by id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, dict[str, Any]] = read(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file: BinaryIO = path.open("ab")
            self.file.truncate(path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise OutputUnwritable(f"{path} cannot be written ({error}); give another folder.") from error

    def add(self, value: dict[str, Any]) -> None:
        """Write `value`, which has an id, now."""
        self.done[value["id"]] = value
        try:
            self.file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OutputUnwritable(
                f"{self.path} cannot be written ({error}); free some space and run again."
            ) from error

    def close(self) -> None:
        self.file.close()
