"""A network with a dataclass for a configuration, saved as an ordinary folder: config.json and bf16 safetensors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def save(model: Any, folder: Path) -> None:
    """`model.config` and all weights."""
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(model.config), indent=2) + "\n")
