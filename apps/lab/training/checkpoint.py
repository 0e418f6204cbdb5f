"""Checkpoints of training: weights in bf16, as they ship, their configuration, and the loss curve.

save(codec, folder)                      # a network with a dataclass for a configuration
save_pretrained(model, folder, curve)    # a model of transformers, or a drafter; load_curve(folder) is its curve
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from polydraft.core.distillation.export import atomic_dir, export_state_dict
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.modalities.output import write_tensors, write_text

Curve = list[dict[str, float]]


def save(model: Any, folder: Path) -> None:
    """Save `model.config` and all weights as config.json and safetensors, each file atomically."""
    write_tensors(folder / "model.safetensors", export_state_dict(model))
    write_text(folder / "config.json", json.dumps(asdict(model.config), indent=2) + "\n")


def save_pretrained(model: PreTrainedModel | DrafterModel, folder: Path, curve: Curve) -> None:
    """Save configuration, weights without duplicates, and the loss curve, each file atomically."""
    with atomic_dir(folder) as made:
        model.save_pretrained(made, state_dict=export_state_dict(model))
        save_curve(curve, made)


def save_curve(curve: Curve, folder: Path, name: str = "curve.json") -> None:
    """Save a loss curve for `load_curve`."""
    write_text(folder / name, json.dumps(curve))


def load_curve(folder: Path, name: str = "curve.json") -> Curve:
    """Return the curve of earlier runs in `folder`; empty where nothing was trained."""
    return json.loads((folder / name).read_text()) if (folder / name).exists() else []


def num_steps(curve: Curve) -> int:
    return int(curve[-1]["step"]) if curve else 0
