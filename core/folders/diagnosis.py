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
    "scheduler_config.json", "adapter_config.json",
)  # fmt: skip
JSON_POSITION = re.compile(r" at line 1 column \d+$")  # left out of messages: no help in a file of one long line


def folder_error(error: Exception, noun: str, folder: Path) -> PolydraftError:
    """Return the error that tells a user why a folder could not be loaded.

    Causes are looked for in this order: the system (memory, permissions), a file that cannot be read, a wrong field,
    and last files that contradict each other.

    Args:
        error (Exception): Exception that the library raised while loading.
        noun (str): Kind of thing that was loaded, such as "tokenizer".
        folder (Path): Where it is.
    """
    return (
        system_error(error, f"the {noun} in {folder} cannot be loaded")
        or unreadable_file_error(folder)
        or field_error(error, folder)
        or contradiction_error(error, noun, folder)
    )


def unreadable_file_error(folder: Path) -> PolydraftError | None:
    """Return the error for the first settings, index or weight file of a folder that cannot be read, or None."""
    if folder.is_file():
        folder = folder.parent
    for file in settings_files(folder):
        error = catch_read_error(read_json, file)
        if error is None and file.name.endswith(SHARD_INDEX):
            error = weight_index_error(file)
        if error is not None:
            return error
    for file in [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*/*.safetensors"))]:
        if error := catch_read_error(tensor_shapes, file):
            return error
    return None


def catch_read_error(read: Callable[[Path], Any], file: Path) -> PolydraftError | None:
    """Return the PolydraftError that `read(file)` raises, or None if it succeeds."""
    try:
        read(file)
    except PolydraftError as error:
        return error
    return None


def weight_index_error(file: Path) -> PolydraftError | None:
    """Return the error for an index of weight shards that is malformed or names a missing file, or None."""
    weight_map = read_json(file).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        return WeightsError(f"{file} has no weight_map that names a file for every tensor; download it again.")
    missing = sorted(name for name in set(weight_map.values()) if not (file.parent / name).is_file())
    if not missing:
        return None
    return WeightsError(f"{file.parent} has no {missing[0]}, which {file.name} names; download it.")


def settings_files(folder: Path) -> Iterator[Path]:
    """Yield the settings files and weight indices in a folder and its direct subfolders, readable or not."""
    for parent in [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]:
        yield from (parent / name for name in SETTINGS if is_present(parent / name))
        yield from sorted(parent.glob(f"*{SHARD_INDEX}"))


def field_error(error: BaseException, folder: Path) -> PolydraftError | None:
    """Return the error for an exception whose own message says which field or file is wrong, else None.

    Those are validation errors of configurations, exceptions of the tokenizers library, and too deep nesting.
    """
    for cause in exception_chain(error):
        if isinstance(cause, PolydraftError):
            continue
        lines = str(cause).strip().splitlines()
        reason = lines[-1].strip().rstrip(".")[:200] if lines else ""
        if isinstance(cause, StrictDataclassError):  # a validation error of a configuration class
            reason = reason.partition(": ")[2] or reason  # the last line is "<type of the cause>: <its message>"
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


def contradiction_error(error: Exception, noun: str, folder: Path) -> PolydraftError:
    """Return the error for files that can each be read but not be loaded together; `noun` says what they are."""
    return WeightsError(
        f"the {noun} in {folder} cannot be loaded ({first_line(error)}); a field of its settings is wrong or missing, "
        "or its files are of another model: correct it, or download the folder again."
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, at most 200 characters and without a full stop.

    A line that ends with a colon is joined with the next. Without a message it is the name of the exception's type.
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    used_lines = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    text = " ".join(used_lines).rstrip(".")[:200]
    # the message of a KeyError is the key alone, which means nothing without the type
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) and text else text or type(error).__name__
