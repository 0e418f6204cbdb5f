"""A network with a dataclass for a configuration, saved as an ordinary folder: config.json and bf16 safetensors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from polydraft.core.training.shipping import shipped


def save(model: Any, folder: Path) -> None:
    """`model.config` and all weights."""
    save_file(shipped(model), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(model.config), indent=2) + "\n")
