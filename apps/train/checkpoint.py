"""What training leaves in a folder: weights in bf16, as they ship, their configuration, and the loss curve.

save(codec, folder)                      # a network with a dataclass for a configuration
save_pretrained(model, folder, curve)    # a model of transformers, or a drafter; known(folder) is its curve
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.training.shipping import aside, shipped
from polydraft.modalities.output import write_tensors, write_text

Curve = list[dict[str, float]]


def save(model: Any, folder: Path) -> None:
    """`model.config` and all weights, as config.json and safetensors; neither file is ever half written."""
    write_tensors(folder / "model.safetensors", shipped(model))
    write_text(folder / "config.json", json.dumps(asdict(model.config), indent=2) + "\n")


def save_pretrained(model: PreTrainedModel | FeatureNetwork, folder: Path, curve: Curve) -> None:
    """Configuration and weights, each once, and the loss curve; no file is ever half written."""
    with aside(folder) as made:
        model.save_pretrained(made, state_dict=shipped(model))
        save_curve(curve, made)


def save_curve(curve: Curve, folder: Path, name: str = "curve.json") -> None:
    """What `known` reads."""
    write_text(folder / name, json.dumps(curve))


def known(folder: Path, name: str = "curve.json") -> Curve:
    """The curve of runs that ended or were stopped in `folder`; empty where nothing was trained."""
    return json.loads((folder / name).read_text()) if (folder / name).exists() else []


def steps(curve: Curve) -> int:
    return int(curve[-1]["step"]) if curve else 0
