"""EAGLE heads as their authors publish them: a linear layer, and one decoder layer without a norm before or behind it.

    if found(folder):
        settings, weights = read(folder, hidden_size)

Format of the checkpoints of Li et al. 2024 (github.com/SafeAILab/EAGLE, versions 1 and 2), from safetensors only; the
embeddings among them are the target's own and are not read. Heads that need more than these tensors are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from polydraft.core.errors import UnsupportedMethod
from polydraft.core.folders.fields import Range, check_fields
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.weight_files import open_tensors, read_tensors

FILE, PICKLE = "model.safetensors", "pytorch_model.bin"
NAMES = {"fc.": "fuse.", "layers.": "layer.layers."}  # theirs: ours
OURS = ("embed_tokens.weight", "lm_head.weight")  # what the target lends
SHAPE = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")
HINTS: dict[str, Any] = dict.fromkeys(SHAPE[:-1], (Range(int, 1, 1 << 24), type(None)))
HINTS |= {SHAPE[-1]: (Range(float, 0, 1), type(None))}


def found(folder: Path) -> bool:
    """Whether `folder` holds such a head."""
    if not (folder / FILE).is_file():
        if (folder / PICKLE).is_file():
            raise UnsupportedMethod(
                f"the drafter in {folder} is a pickle, which could run code; save its tensors as {FILE} "
                "(the hub converts repositories on request)."
            )
        return False
    with open_tensors(folder / FILE) as file:
        return "fc.weight" in file.keys()  # noqa: SIM118 (it is no mapping)


def read(folder: Path, hidden_size: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `EagleNetwork` is made with, and its weights; raises UnsupportedMethod for heads of another form."""
    tensors = {name: tensor for name, tensor in read_tensors(folder / FILE).items() if name not in OURS}
    other = sorted(name for name in tensors if not name.startswith(("fc.", "layers.0.")))
    if other:
        raise UnsupportedMethod(
            f"the head in {folder} has {other[0]!r}, which EAGLE-1 and EAGLE-2 heads have not; use one of these, or "
            "train one with `polydraft train drafter --target MODEL --kind eagle --out FOLDER`."
        )
    wanted, shape = [hidden_size, 2 * hidden_size], list(tensors["fc.weight"].shape)
    if shape != wanted:
        raise UnsupportedMethod(
            f"the EAGLE head in {folder} is for targets with {shape[0]} features and this one has {hidden_size}; "
            "use the head that was made for it."
        )
    stored = read_settings(folder / "config.json")
    check_fields(stored, HINTS, folder / "config.json")
    settings = {
        "pictures": stored.get("pictures", "features"), "bias": "fc.bias" in tensors, "normed": False,
        "shape": {name: stored[name] for name in SHAPE if stored.get(name) is not None},
    }  # fmt: skip
    return settings, {renamed(name): tensor for name, tensor in tensors.items()}


def renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name
