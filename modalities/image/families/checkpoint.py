"""Published checkpoints that hold pickles, read once and written as folders of safetensors and JSON.

    said = tensors(Path("checkpoint.pt"), "download it again from …")
    with folder(Path("mar-base")) as made:
        save_file(..., made / "model.safetensors")

Only tensors and plain values are read: a file with code in it is refused.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from polydraft.core.errors import OutputUnwritable, WeightsError


def tensors(checkpoint: Path, again: str, allowed: Sequence[type] = ()) -> Any:
    """What a checkpoint holds. again: where to get it; allowed: classes of plain values it may hold."""
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise WeightsError(f"{checkpoint} is not there; {again}.") from error
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{checkpoint} cannot be read as a checkpoint of tensors; {again}.") from error


def check(checkpoint: Path, what: str, found: dict[str, torch.Size], wanted: dict[str, torch.Size], again: str) -> None:
    """Raise WeightsError unless names and shapes are those of `what`."""
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise WeightsError(f"{len(wrong)} tensors of {checkpoint} do not fit {what}, the first is {wrong[0]}; {again}.")


def vacant(out: Path) -> None:
    """Raise OutputUnwritable where `out` is already there."""
    if out.exists():
        raise OutputUnwritable(f"{out} is already there; give a folder that is not.")


@contextmanager
def folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when all went well, and goes when not."""
    made: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        yield made
        made.chmod(0o755)
        made.rename(out)
    except OSError as error:
        raise OutputUnwritable(
            f"{out} cannot be written ({error.strerror or error!s:.80}); give another folder."
        ) from error
    finally:
        if made is not None and made.exists():
            shutil.rmtree(made, ignore_errors=True)
