"""Read JSON files of model folders; errors name the file and what is wrong with it.

settings = read_json(folder / "config.json")        # {} if there is no such file
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import WeightsError

MAX_BYTES = 1 << 29  # tokenizers take some ten million
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file as a dictionary, an empty one if there is no such file.

    Raises:
        WeightsError: The file cannot be read, or holds something else.
    """
    value = read_json_value(file) if is_present(file) else {}
    if not isinstance(value, dict):
        raise WeightsError(f"{file} holds a list or a value where settings are expected; download it again.")
    return value


def read_settings(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file that must exist.

    Raises:
        WeightsError: The file is missing or cannot be read.
    """
    if not is_present(file):
        raise WeightsError(f"{file.parent} has no {file.name}; download it, or give the folder that holds it.")
    return read_json(file)


def read_json_value(file: Path) -> Any:
    """Return the value of any kind in a JSON file that must exist.

    Raises:
        WeightsError: The file cannot be read.
    """
    text = read_text(file)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise WeightsError(f"{file} is nested too deeply to be settings; download it again.") from error
    except ValueError as error:
        reason = "it is empty" if not text.strip() else f"{error!s:.80}"
        raise WeightsError(f"{file} cannot be read as JSON ({reason}); download it again.") from error


def read_text(file: Path) -> str:
    """Return the text of a settings file.

    Raises:
        WeightsError: It is no file, larger than any settings, or not UTF-8.
    """
    content = _read_bytes(file)
    if content.startswith(BYTE_ORDER_MARK):
        raise WeightsError(f"{file} begins with a byte-order mark, which JSON has not; save it as UTF-8 without one.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WeightsError(f"{file} cannot be read as JSON (it is not UTF-8); download it again.") from error


def _read_bytes(file: Path) -> bytes:
    """Return the bytes of a settings file; raises WeightsError if it is too large or cannot be read."""
    try:
        if (size := file.stat().st_size) > MAX_BYTES:
            raise WeightsError(f"{file} has {size} bytes, more than any settings; download it again.")
        return file.read_bytes()
    except OSError as error:
        raise system_error(error, f"{file} cannot be read") or WeightsError(
            f"{file} cannot be read ({error.strerror}); put the file itself there."
        ) from error


def is_present(file: Path) -> bool:
    """Return whether anything of this name exists, including a dangling link or a folder."""
    return file.is_symlink() or file.exists()
