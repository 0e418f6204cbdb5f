"""Paths of weight files that a model's folder names: safetensors inside the folder, never pickles.

files = tensor_files(folder)        # {"model.embed_tokens.weight": folder / "model-00001-of-00002.safetensors", …}
refuse_pickles(folder)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.weight_files import open_tensors

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
SHARD_INDEX = "model.safetensors.index.json"  # maps tensor names to files
SHARD_INDEX_SUFFIX = ".safetensors.index.json"  # ends the name of any such index


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor in a folder of safetensors, by the tensor's name.

    Raises:
        WeightsError: the index names a file that may not be opened.
    """
    index = read_json(folder / SHARD_INDEX).get("weight_map")
    if isinstance(index, dict):
        return {str(name): resolve_weight_file(folder, file) for name, file in index.items()}
    names: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with open_tensors(file) as opened:
            names |= dict.fromkeys(opened.keys(), file)
    return names


def resolve_weight_file(folder: Path, name: Any, suffixes: tuple[str, ...] = (".safetensors",)) -> Path:
    """Return the path of a weight file that an index or a configuration names.

    Args:
        folder (Path): the folder of the index, which the file must lie in.
        name (Any): the name in the index.
        suffixes (tuple[str, ...]): the suffixes of files that may be opened.

    Raises:
        WeightsError: it is no safetensors file, or lies outside the folder.
    """
    named = Path(str(name))
    if not named.name.endswith(suffixes):
        raise WeightsError(
            f"{folder} names {str(name)!r:.80} as a file of weights, which is no safetensors file and is never opened; "
            "get the model as safetensors."
        )
    if leads_outside(named) or not is_inside(folder / named, folder):
        raise WeightsError(
            f"{folder} names {str(name)!r:.80} as a file of weights, which lies elsewhere; put the file itself into "
            "the folder, and name it without a path."
        )
    return folder / named


def leads_outside(path: Path) -> bool:
    """Return whether a path in a configuration is absolute or goes upwards."""
    return path.is_absolute() or ".." in path.parts


def is_inside(file: Path, folder: Path) -> bool:
    """Return whether a file lies in a folder once links are followed; the hub's cache links into its blob store."""
    snapshots = next((parent for parent in folder.absolute().parents if parent.name == "snapshots"), None)
    roots = [folder.resolve()] + ([] if snapshots is None else [(snapshots.parent / "blobs").resolve()])
    return any(file.resolve().is_relative_to(root) for root in roots)


def refuse_pickles(path: Path) -> None:
    """Check that loading weights from a file or a folder opens safetensors of that folder only.

    Raises:
        WeightsError: it holds only pickles, or an index or a configuration names a pickle or a file elsewhere.
    """
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    pickles = [file for file in files if file.suffix in PICKLE_SUFFIXES]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise pickle_error(pickles[0])
    names = {file.name for file in files}
    if {"adapter_config.json", "adapter_model.bin"} <= names and "adapter_model.safetensors" not in names:
        raise pickle_error(path / "adapter_model.bin")
    for index in (file for file in files if file.name.endswith(SHARD_INDEX_SUFFIX)):
        for name in sorted(shard_names(index)):
            resolve_weight_file(path, name)
    if path.is_dir() and (named := read_json(path / "config.json").get("transformers_weights")) is not None:
        resolve_weight_file(path, named, (".safetensors", SHARD_INDEX_SUFFIX))


def shard_names(index: Path) -> set[str]:
    """Return the file names in an index of weights.

    Raises:
        WeightsError: it has no `weight_map`.
    """
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise WeightsError(f"{index} has no weight_map, which names a file for every tensor; download it again.")
    return {str(name) for name in shards.values()}


def pickle_error(file: Path) -> WeightsError:
    """Return the error for a file that is a pickle."""
    return WeightsError(
        f"{file} is a pickle, which could run code and is never opened; get the model as safetensors, or "
        "make them with `polydraft convert` where that knows it."
    )
