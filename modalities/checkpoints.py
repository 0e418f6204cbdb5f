"""Published checkpoints that are pickles, read without running them, and folders that are written atomically.

    weights = load_tensors(Path("checkpoint-last.pth"), "model_ema", "github.com/LTH14/mar")
    write_folder(Path("mar-base"), lambda folder: save_file(weights, folder / "model.safetensors"))

Only tensors and plain values are read: a file with code in it is refused.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import OutputUnwritable, PolydraftError, WeightsError


def load_tensors(
    checkpoint: Path, key: str | tuple[str, ...], source: str, bare: bool = False
) -> dict[str, Tensor]:  # fmt: skip
    """Load the tensors of a checkpoint.

    Args:
        checkpoint (Path): a file written by `torch.save`.
        key (str | tuple[str, ...]): the key of the state dict; of several the first that is present.
        source (str): where to get the checkpoint, for errors.
        bare (bool): whether the file may be the state dict itself.

    Raises:
        WeightsError: the file is missing, cannot be read, or has no tensors under the key.
    """
    keys = (key,) if isinstance(key, str) else key
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # training options are stored beside the weights
            is_zip = zipfile.is_zipfile(checkpoint)  # the format of torch since 1.6; older files cannot be mapped
            content: Any = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=is_zip)
    except FileNotFoundError as error:
        raise WeightsError(f"{checkpoint} is not there; give a checkpoint of {source}.") from error
    except (
        pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError, MemoryError,
    ) as error:  # fmt: skip
        raise system_error(error, f"{checkpoint} cannot be read") or WeightsError(
            f"{checkpoint} cannot be read as a checkpoint of tensors; download it again from {source}."
        ) from error
    entries = content if isinstance(content, Mapping) else {}
    tensors = next((entries[key] for key in keys if key in entries), entries if bare else None)
    is_mapping = isinstance(tensors, Mapping)
    if not tensors or not is_mapping or not all(isinstance(part, Tensor) for part in tensors.values()):
        raise WeightsError(f"{checkpoint} holds no weights under {keys[0]}; download it again from {source}.")
    return {str(name): tensor.detach() for name, tensor in tensors.items()}


def write_folder(out: Path, fill: Callable[[Path], object]) -> None:
    """Create a folder atomically: nothing is left if writing its files fails.

    Args:
        out (Path): the folder to create.
        fill (Callable): writes the files into the folder that it is given.

    Raises:
        OutputUnwritable: `out` exists, or cannot be written.
        PolydraftError: the error that `fill` raises.
    """
    if out.exists():
        raise OutputUnwritable(f"{out} is already there; give a folder that is not.")
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        fill(temporary)
        temporary.chmod(0o755)
        temporary.rename(out)
    except PolydraftError:
        raise
    except OSError as error:
        reason = error.strerror or f"{error!s:.80}"
        raise OutputUnwritable(f"{out} cannot be written ({reason}); give another folder.") from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def mismatched_tensors(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> list[str]:
    """Return the names that only one of two state dicts has, or that have different shapes."""
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (expected, actual)]
    return sorted(name for name in shapes[0].keys() | shapes[1].keys() if shapes[0].get(name) != shapes[1].get(name))
