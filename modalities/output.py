"""Output files: checked before anything is written, and written atomically."""

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


def check_writable(path: str | Path, suffixes: Collection[str], what: str) -> Path:
    """Check that a file can be written, without touching anything, and return its path.

    Args:
        path (str | Path): the file.
        suffixes (Collection[str]): the suffixes of the formats that can be written.
        what (str): what errors call the content, such as "image".

    Raises:
        OutputUnwritable: the suffix is of no known format, or the folder is missing or not writable.
    """
    path = Path(path)
    if "\0" in str(path):
        raise OutputUnwritable(f"{str(path)!r} holds a NUL, which no file name can; give another name.")
    if path.suffix.lower() not in suffixes:
        raise OutputUnwritable(f"{path} has no {what} format; end the name in {', '.join(suffixes)}.")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputUnwritable(f"{path} cannot be written; give a file name in a folder that exists and is writable.")
    return path


@contextmanager
def atomic_file(path: Path, *failures: type[Exception]) -> Iterator[IO[bytes]]:
    """Open a temporary file that is renamed to `path` on success.

    Args:
        path (Path): the file to write.
        failures (type[Exception]): exceptions that mean, like OSError, that the file cannot be written.

    Raises:
        OutputUnwritable: the file cannot be written; nothing is left of it.
    """
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
    """Write text to a file atomically; raise OutputUnwritable where that is not possible."""
    with atomic_file(path) as file:
        file.write(text.encode())


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors to a safetensors file atomically; raise OutputUnwritable where that is not possible."""
    from safetensors.torch import save_file

    with atomic_file(path) as file:
        save_file(tensors, file.name)
