"""Diagnose why a model folder could not be loaded: a missing or damaged file, or a wrong field.

A library's exception rarely says which. Once one was raised, the files themselves are checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassError

from polydraft.core.checks.system_errors import exception_chain, system_error
from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.folders.sizes import CONFIG
from polydraft.core.folders.weight_files import tensor_shapes

TOKENIZER, SHARD_INDEX = "tokenizer.json", ".safetensors.index.json"
SETTINGS = (  # settings files that libraries read in addition to the weights
    "polydraft.json", "model_index.json", CONFIG, "generation_config.json", "processor_config.json",
    "preprocessor_config.json", TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "scheduler_config.json",
)  # fmt: skip
JSON_POSITION = re.compile(r" at line 1 column \d+$")  # is no help in a file of one long line


def folder_error(error: Exception, what: str, folder: Path) -> PolydraftError:
    """Return the error for an exception that loading `what` from `folder` raised."""
    return (
        system_error(error, f"the {what} in {folder} cannot be loaded")
        or unreadable_file_error(folder)
        or field_error(error, folder)
        or contradiction_error(error, what, folder)
    )


def unreadable_file_error(folder: Path) -> PolydraftError | None:
    """Return the error for the first file of a folder that cannot be read, or None."""
    if folder.is_file():
        folder = folder.parent
    for file in settings_files(folder):
        error = read_error(read_json, file)
        if error is None and file.name.endswith(SHARD_INDEX):
            error = weight_index_error(file)
        if error is not None:
            return error
    for file in [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*/*.safetensors"))]:
        if error := read_error(tensor_shapes, file):
            return error
    return None


def read_error(read: Callable[[Path], Any], file: Path) -> PolydraftError | None:
    """Return the error that `read` raises for a file, or None."""
    try:
        read(file)
    except PolydraftError as error:
        return error
    return None


def weight_index_error(file: Path) -> PolydraftError | None:
    """Return the error for a weight index that is malformed or names a missing file, or None."""
    weight_map = read_json(file).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        return WeightsError(f"{file} has no weight_map that names a file for every tensor; download it again.")
    missing = sorted(name for name in set(weight_map.values()) if not (file.parent / name).is_file())
    if not missing:
        return None
    return WeightsError(f"{file.parent} has no {missing[0]}, which {file.name} names; download it.")


def settings_files(folder: Path) -> Iterator[Path]:
    """Yield the settings files in a folder and its subfolders, whether they can be read or not."""
    for parent in [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]:
        yield from (parent / name for name in SETTINGS if is_present(parent / name))
        yield from sorted(parent.glob(f"*{SHARD_INDEX}"))


def field_error(error: BaseException, folder: Path) -> PolydraftError | None:
    """Return the error for an exception that itself names a field or a file, None for any other."""
    for cause in exception_chain(error):
        if isinstance(cause, PolydraftError):
            continue
        lines = str(cause).strip().splitlines()
        reason = lines[-1].strip().rstrip(".")[:200] if lines else ""
        if isinstance(cause, StrictDataclassError):
            reason = reason.partition(": ")[2] or reason
            if isinstance(cause, StrictDataclassClassValidationError):
                return WeightsError(
                    f"{folder / CONFIG} contradicts itself ({reason}); correct it, or download it again."
                )
            return WeightsError(f"{folder / CONFIG} has a wrong field ({reason}); correct it, or download it again.")
        if type(cause) is Exception:  # as the tokenizers library raises
            return WeightsError(
                f"{folder / TOKENIZER} is no tokenizer that can be read ({JSON_POSITION.sub('', reason)}); download it "
                "again, or install the version of tokenizers that it was made with."
            )
        if isinstance(cause, RecursionError):
            return WeightsError(f"the files in {folder} are nested too deeply to be read; download them again.")
    return None


def contradiction_error(error: Exception, what: str, folder: Path) -> PolydraftError:
    """Return the error for files that can each be read but not be used together."""
    return WeightsError(
        f"the {what} in {folder} cannot be loaded ({first_line(error)}); a field of its settings is wrong or missing, "
        "or its files are of another model: correct it, or download the folder again."
    )


def first_line(error: BaseException) -> str:
    """Return an exception's message, short, on one line and without a full stop; its type if it has none."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    first = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    text = " ".join(first).rstrip(".")[:200]
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) and text else text or type(error).__name__
