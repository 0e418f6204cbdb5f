"""Files that are complete or not there: written under another name, then renamed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from polydraft.core.errors import OutputUnwritable


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
