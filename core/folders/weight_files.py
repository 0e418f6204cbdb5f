"""Weight files: safetensors only, read so that every failure becomes a precise error.

weights = read_tensors(folder / "model.safetensors")
with open_tensors(file) as opened: names = opened.keys()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.json_files import is_present


def read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Return all tensors of a file, by name.

    Raises:
        WeightsError: The file is missing or damaged.
    """
    check_weight_file(file)
    with _translate_errors(file):
        return load_file(file, device)


@contextmanager
def open_tensors(file: Path) -> Iterator[Any]:
    """Open a file to read some of its tensors, as `safetensors.safe_open` does.

    Raises:
        WeightsError: The file is missing or damaged.
    """
    check_weight_file(file)
    with _translate_errors(file), safe_open(file, "pt") as opened:
        yield opened


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a safetensors file, by name; only its header is read."""
    with open_tensors(file) as opened:
        return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118 (it is no mapping)


def count_parameters(folder: Path) -> tuple[int, int]:
    """Return how many tensors, and how many numbers in all, the safetensors files of a folder hold."""
    all_shapes = [shape for file in sorted(folder.glob("*.safetensors")) for shape in tensor_shapes(file).values()]
    return len(all_shapes), sum(prod(shape) for shape in all_shapes)


def check_weights(folder: Path) -> None:
    """Check that a folder exists and has safetensors files, or an index of them.

    Raises:
        WeightsError: It has none, or is no folder.
    """
    if not folder.is_dir():
        raise WeightsError(f"{folder} is no folder; give the one that holds the model.")
    if not any(file.name.endswith((".safetensors", ".safetensors.index.json")) for file in folder.iterdir()):
        raise WeightsError(f"{folder} has no files of weights (*.safetensors); download them into it.")


def check_weight_file(file: Path) -> None:
    """Check that a weight file exists.

    Raises:
        WeightsError: It does not, or is no file.
    """
    if not is_present(file):
        raise WeightsError(f"{file.parent} has no {file.name}; download it, or give the folder that holds it.")
    if not file.is_file():
        raise WeightsError(f"{file} is no file; put the file of weights itself there.")


@contextmanager
def _translate_errors(file: Path) -> Iterator[None]:
    """Convert exceptions of safetensors raised inside the block to WeightsErrors that name the file."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, PolydraftError):
            raise
        # messages of safetensors begin with "Error while deserializing header: "; the rest of their first line is kept
        reason = str(error).strip().rpartition("header: ")[2].partition("\n")[0].rstrip(".")[:120]
        raise system_error(error, f"{file} cannot be read") or WeightsError(
            f"{file} cannot be read as safetensors ({reason or type(error).__name__}); it is damaged or was cut short, "
            "download it again."
        ) from error
