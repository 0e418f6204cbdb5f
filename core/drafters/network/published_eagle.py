"""EAGLE heads as their authors publish them: a linear layer, and one decoder layer without norms before and after it.

    if is_published_head(folder):
        settings, weights = load_published_head(folder, hidden_size)

Format of the checkpoints of Li et al. 2024 (github.com/SafeAILab/EAGLE, versions 1 and 2), from safetensors only; the
embeddings among them are the target's own and are not loaded. Heads that need more than these tensors are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from polydraft.core.errors import UnsupportedMethod
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.weight_files import open_tensors, read_tensors, tensor_shapes

WEIGHTS_FILE, PICKLE_FILE = "model.safetensors", "pytorch_model.bin"
RENAMED_PREFIXES = {"fc.": "fuse.", "layers.": "layer.layers."}  # published prefix: prefix in `EagleModel`
TARGET_WEIGHTS = ("embed_tokens.weight", "lm_head.weight")  # not loaded: the target's own are used
SHAPE_FIELDS = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")
FIELD_TYPES: dict[str, Any] = dict.fromkeys(SHAPE_FIELDS[:-1], (NumberRange(int, 1, 1 << 24), type(None)))
FIELD_TYPES |= {SHAPE_FIELDS[-1]: (NumberRange(float, 0, 1), type(None))}


def is_published_head(folder: Path) -> bool:
    """Return True if `folder` holds an EAGLE head in the format of its authors.

    Raises:
        UnsupportedMethod: The head is stored as a pickle.
    """
    if not (folder / WEIGHTS_FILE).is_file():
        if (folder / PICKLE_FILE).is_file():
            raise UnsupportedMethod(
                f"the drafter in {folder} is a pickle, which could run code; save its tensors as {WEIGHTS_FILE} "
                "(the hub converts repositories on request)."
            )
        return False
    with open_tensors(folder / WEIGHTS_FILE) as file:
        return "fc.weight" in file.keys()  # noqa: SIM118 (not a mapping)


def check_fits(folder: Path, hidden_size: int) -> None:
    """Check by the header of its file, without reading weights, that a head is for targets of `hidden_size`.

    Raises:
        UnsupportedMethod: The head is for targets of another hidden size.
    """
    if shape := tensor_shapes(folder / WEIGHTS_FILE).get("fc.weight"):
        check_shape(folder, shape, hidden_size)


def check_shape(folder: Path, shape: list[int], hidden_size: int) -> None:
    """Raise UnsupportedMethod where `shape`, that of the weight `fc`, is none for targets of `hidden_size`."""
    if shape != [hidden_size, 2 * hidden_size]:
        raise UnsupportedMethod(
            f"the EAGLE head in {folder} is for targets with {shape[0]} features and this one has {hidden_size}; "
            "use the head that was made for it."
        )


def load_published_head(folder: Path, hidden_size: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load an EAGLE head in the format of its authors.

    Args:
        folder (Path): Folder of the checkpoint.
        hidden_size (int): Hidden size of the target.

    Returns:
        tuple[dict[str, Any], dict[str, Tensor]]: arguments of `EagleModel`, and its weights.

    Raises:
        UnsupportedMethod: The head has another form, or belongs to a target of another hidden size.
    """
    tensors = {
        name: tensor for name, tensor in read_tensors(folder / WEIGHTS_FILE).items() if name not in TARGET_WEIGHTS
    }
    # EAGLE-1 and EAGLE-2 heads consist of the linear layer `fc` and one decoder layer, `layers.0`
    unknown_tensors = sorted(name for name in tensors if not name.startswith(("fc.", "layers.0.")))
    if unknown_tensors:
        raise UnsupportedMethod(
            f"the head in {folder} has {unknown_tensors[0]!r}, which EAGLE-1 and EAGLE-2 heads have not; use one of "
            "these, or train one with `polydraft train drafter --target MODEL --kind eagle --out FOLDER`."
        )
    check_shape(folder, list(tensors["fc.weight"].shape), hidden_size)
    stored = read_settings(folder / "config.json")
    check_fields(stored, FIELD_TYPES, folder / "config.json")
    # names of `EagleModel`'s arguments; published heads have no norms around the layer
    settings = {
        "pictures": stored.get("pictures", "features"), "bias": "fc.bias" in tensors, "normed": False,
        "shape": {name: stored[name] for name in SHAPE_FIELDS if stored.get(name) is not None},
    }  # fmt: skip
    return settings, {rename_weight(name): tensor for name, tensor in tensors.items()}


def rename_weight(name: str) -> str:
    """Return the parameter name in `EagleModel` for the name of a weight in a published checkpoint."""
    for published, prefix in RENAMED_PREFIXES.items():
        if name.startswith(published):
            return prefix + name.removeprefix(published)
    return name
