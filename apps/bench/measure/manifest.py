"""What benches measure of a model and its methods are fitted to, kept in its manifest.

store(folder / MANIFEST, {"loudness": table})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polydraft.core.errors import OutputUnwritable


def store(path: Path, changes: Mapping[str, Any]) -> None:
    """Only these keys of the manifest as it is on disk now change; written beside it first, then renamed."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8")) | changes
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written ({error}); leave --write out or copy the model.") from error
