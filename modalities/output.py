"""Results as files: refused before anything is touched, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from polydraft.core.errors import OutputUnwritable

if TYPE_CHECKING:
    from torch import Tensor


def writable(path: str | Path, endings: Collection[str], what: str) -> Path:
    """`path` if a file of `what` can be written there; raises OutputUnwritable, and touches nothing."""
    path = Path(path)
    if "\0" in str(path):
        raise OutputUnwritable(f"{str(path)!r} holds a NUL, which no file name can; give another name.")
    if path.suffix.lower() not in endings:
        raise OutputUnwritable(f"{path} has no {what} format; end the name in {', '.join(endings)}.")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputUnwritable(f"{path} cannot be written; give a file name in a folder that exists and is writable.")
    return path


@contextmanager
def whole(path: Path, *failures: type[Exception]) -> Iterator[IO[bytes]]:
    """A file beside `path` that takes its name when all went well; OSError and `failures` become OutputUnwritable."""
    caught: tuple[type[Exception], ...] = (OSError, *failures)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            yield file
        temporary.chmod(0o644)
        temporary.replace(path)
    except caught as error:
        raise OutputUnwritable(f"{path} cannot be written ({error}); choose another place.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`text` as the file `path`, whole or not at all; raises OutputUnwritable."""
    with whole(path) as file:
        file.write(text.encode())


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """`tensors` as a safetensors file, whole or not at all; raises OutputUnwritable."""
    from safetensors.torch import save_file

    with whole(path) as file:
        save_file(tensors, file.name)
