"""Measured values of a model that its methods are tuned to, kept in its manifest.

store(folder / MANIFEST, {"loudness": table})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polydraft.core.errors import OutputUnwritable
from polydraft.modalities.output import write_text


def store(path: Path, changes: Mapping[str, Any]) -> None:
    """Only these keys of the manifest as it is on disk now change; the file is written whole or not at all."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8")) | changes
        write_text(path, json.dumps(manifest, indent=2) + "\n")
    except OSError as error:
        reason = error.__cause__ or error
        raise OutputUnwritable(f"{path} cannot be written ({reason}); leave --write out or copy the model.") from error
