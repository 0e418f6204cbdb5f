"""Say why a folder could not be read: what is missing, which file is damaged, or which field is wrong.

A library's exception rarely tells which; once one was raised, the files themselves are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassError

from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.folders.sizes import CONFIG
from polydraft.core.folders.weight_files import shapes
from polydraft.core.system_errors import chain_of, system_error

TOKENIZER, SHARD_INDEX = "tokenizer.json", ".safetensors.index.json"
SETTINGS = (  # files of settings that libraries read beside the weights
    "polydraft.json", "model_index.json", CONFIG, "generation_config.json", "processor_config.json",
    "preprocessor_config.json", TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "scheduler_config.json",
)  # fmt: skip
PLACE = re.compile(r" at line 1 column \d+$")  # of a file that is one line, which says nothing to who reads it


def folder_error(error: Exception, what: str, folder: Path) -> PolydraftError:
    """Return the sentence for an exception that reading `what` in `folder` raised."""
    return (
        system_error(error, f"the {what} in {folder} cannot be loaded")
        or file_fault(folder)
        or field_fault(error, folder)
        or contradiction(error, what, folder)
    )


def file_fault(folder: Path) -> PolydraftError | None:
    """Return what is wrong with the first file of a folder that cannot be read at all, None if all can."""
    if folder.is_file():
        folder = folder.parent
    for file in settings_files(folder):
        if fault := fault_of(read_json, file) or (index_fault(file) if file.name.endswith(SHARD_INDEX) else None):
            return fault
    for file in [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*/*.safetensors"))]:
        if fault := fault_of(shapes, file):
            return fault
    return None


def fault_of(read: Callable[[Path], Any], file: Path) -> PolydraftError | None:
    """Return why `read` refuses a file as a file, None if it does not."""
    try:
        read(file)
    except PolydraftError as error:
        return error
    return None


def index_fault(file: Path) -> PolydraftError | None:
    """Return what is wrong with what an index of weights says, None if every file that it names is there."""
    where = read_json(file).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        return WeightsError(f"{file} has no weight_map that names a file for every tensor; download it again.")
    gone = sorted(name for name in set(where.values()) if not (file.parent / name).is_file())
    return WeightsError(f"{file.parent} has no {gone[0]}, which {file.name} names; download it.") if gone else None


def settings_files(folder: Path) -> Iterator[Path]:
    """Yield files of settings in a folder and the folders in it, whether they can be read or not."""
    places = [folder, *sorted(place for place in folder.glob("*") if place.is_dir())]
    for place in places:
        yield from (place / name for name in SETTINGS if is_present(place / name))
        yield from sorted(place.glob(f"*{SHARD_INDEX}"))


def field_fault(error: BaseException, folder: Path) -> PolydraftError | None:
    """Return the sentence for an exception that names a field or a file itself, None for any other."""
    for cause in chain_of(error):
        if isinstance(cause, PolydraftError):
            continue
        told = str(cause).strip().splitlines()
        reason = told[-1].strip().rstrip(".")[:200] if told else ""
        if isinstance(cause, StrictDataclassError):
            reason = reason.partition(": ")[2] or reason
            if isinstance(cause, StrictDataclassClassValidationError):
                return WeightsError(
                    f"{folder / CONFIG} contradicts itself ({reason}); correct it, or download it again."
                )
            return WeightsError(f"{folder / CONFIG} has a wrong field ({reason}); correct it, or download it again.")
        if type(cause) is Exception:  # as the tokenizers library raises
            return WeightsError(
                f"{folder / TOKENIZER} is no tokenizer that can be read ({PLACE.sub('', reason)}); download it again, "
                "or install the version of tokenizers that it was made with."
            )
        if isinstance(cause, RecursionError):
            return WeightsError(f"the files in {folder} are nested too deeply to be read; download them again.")
    return None


def contradiction(error: Exception, what: str, folder: Path) -> PolydraftError:
    """Return the sentence for files that can be read each and cannot be used together."""
    return WeightsError(
        f"the {what} in {folder} cannot be loaded ({first_line(error)}); a field of its settings is wrong or missing, "
        "or its files are of another model: correct it, or download the folder again."
    )


def first_line(error: BaseException) -> str:
    """Return what an error says, short, on one line and without a full stop; its type where that alone tells."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    told = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    text = " ".join(told).rstrip(".")[:200]
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) and text else text or type(error).__name__
