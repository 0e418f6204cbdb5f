"""Output files: checked before anything is written, and written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydraft.core.errors import OutputUnwritable
from polydraft.core.folders.atomic_files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

    from polydraft.core.stats import DecodeStats

MAX_QUOTED_LENGTH = 60  # characters of a text in the line that a result is shown as


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


def write_text(path: Path, text: str) -> None:
    """Write text to a file atomically; raise OutputUnwritable where that is not possible."""
    with atomic_file(path) as file:
        file.write(text.encode())


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors to a safetensors file atomically; raise OutputUnwritable where that is not possible."""
    from safetensors.torch import save_file

    with atomic_file(path) as file:
        save_file(tensors, file.name)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object to a file atomically; raise OutputUnwritable where that is not possible."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def format_result(name: str, content: str, model: str, stats: DecodeStats, finish_reason: str) -> str:
    """Return the one line that a result is shown as, without tensors and samples.

    Args:
        name (str): the result's class.
        content (str): what it holds, such as "2 images of 128x128".
        model (str): the model's name.
        stats (DecodeStats): statistics over all rows.
        finish_reason (str): why generation ended.
    """
    return (
        f"<{name}: {content}; {model}, {stats.method} ({stats.guarantee}), {stats.tokens} tokens in "
        f"{stats.target_passes} passes, τ {stats.mean_accepted_length:.2f}, finish_reason {finish_reason!r}>"
    )


def quote_beginning(text: str) -> str:
    """Return the beginning of a text in quotes, on one line."""
    return repr(text if len(text) <= MAX_QUOTED_LENGTH else text[: MAX_QUOTED_LENGTH - 1] + "…")
