"""Read published checkpoints that are pickles without running them, and write folders whole or not at all.

    weights = tensors(Path("checkpoint-last.pth"), "model_ema", "github.com/LTH14/mar")
    write(Path("mar-base"), lambda folder: save_file(weights, folder / "model.safetensors"))

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

from polydraft.core.errors import OutputUnwritable, WeightsError
from polydraft.core.system_errors import system_error


def tensors(
    checkpoint: Path, key: str | tuple[str, ...], source: str, bare: bool = False
) -> dict[str, Tensor]:  # fmt: skip
    """What the file holds under `key`; if that is not there and it may be `bare`, what it holds. Raises WeightsError.

    key: or the first of several that is there; source: where to get another one.
    """
    keys = (key,) if isinstance(key, str) else key
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # the options it was trained with
            zipped = zipfile.is_zipfile(checkpoint)  # as torch writes them since 1.6; others cannot be mapped
            said: Any = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=zipped)
    except FileNotFoundError as error:
        raise WeightsError(f"{checkpoint} is not there; give a checkpoint of {source}.") from error
    except (
        pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError, MemoryError,
    ) as error:  # fmt: skip
        raise system_error(error, f"{checkpoint} cannot be read") or WeightsError(
            f"{checkpoint} cannot be read as a checkpoint of tensors; download it again from {source}."
        ) from error
    named = said if isinstance(said, Mapping) else {}
    found = next((named[key] for key in keys if key in named), named if bare else None)
    if not found or not isinstance(found, Mapping) or not all(isinstance(part, Tensor) for part in found.values()):
        raise WeightsError(f"{checkpoint} holds no weights under {keys[0]}; download it again from {source}.")
    return {str(name): tensor.detach() for name, tensor in found.items()}


def write(out: Path, fill: Callable[[Path], object]) -> None:
    """Make the folder `out` and let `fill` put files there; nothing is left if that fails. Raises OutputUnwritable."""
    if out.exists():
        raise OutputUnwritable(f"{out} is already there; give a folder that is not.")
    made: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        fill(made)
        made.chmod(0o755)
        made.rename(out)
    except OSError as error:
        reason = error.strerror or f"{error!s:.80}"
        raise OutputUnwritable(f"{out} cannot be written ({reason}); give another folder.") from error
    finally:
        if made is not None and made.exists():
            shutil.rmtree(made, ignore_errors=True)


def misfits(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Names that only one of them has, or with another shape."""
    shapes = [{name: tensor.shape for name, tensor in part.items()} for part in (wanted, found)]
    return sorted(name for name in shapes[0].keys() | shapes[1].keys() if shapes[0].get(name) != shapes[1].get(name))
