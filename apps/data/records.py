"""Records of user data: a folder, a file, or a set on the hub.

    for row in rows("photos", PICTURES): print(row.place, row.value)

A folder holds parquet, JSON lines or JSON, or else the plain files of a modality: images, sounds, or texts with one on
every line. An error is one sentence that names file and line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polydraft.core.checks.arguments import to_integer
from polydraft.core.checks.extras import pip_install
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import DataUnavailable, InvalidArgument, PolydraftError
from polydraft.modalities.hub import is_repository
from polydraft.modalities.pipeline import MAX_SEED

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
TEXTS = (".txt",)
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".webm", ".mp4", ".mkv", ".mov")
TABLES = (".parquet", ".jsonl", ".json")  # what is read of a folder, the first that is there


@dataclass(frozen=True)
class DataRecord:
    """Record of user data."""

    place: str  # file and line, for messages
    folder: Path  # that its paths are relative to
    value: dict[str, Any]  # fields

    def wrong(self, what: str, do: str) -> DataUnavailable:
        """Build the error that `what` is wrong in this record."""
        return DataUnavailable(f"{self.place} {what}; {do}.")

    def refused(self, what: str, error: PolydraftError) -> DataUnavailable:
        """Build the error that `what` cannot be used, with the reason and the advice of another error's sentence."""
        reason, _, advice = str(error).rstrip(".").rpartition("; ")
        return self.wrong(f"{what} ({reason})", advice) if reason else self.wrong(f"{what} ({advice})", "change it")

    def optional_text(self, name: str) -> str | None:
        """Return the string in a field, None where it is missing or null.

        Raises:
            DataUnavailable: It holds something else.
        """
        value = self.value.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"has the {name} {value!r:.40}", "write it as a string, or leave it out")
        return value

    def seed(self, default: int) -> int:
        """Return the field `seed`, or `default` where it is missing or null.

        Raises:
            DataUnavailable: It is no seed.
        """
        value = self.value.get("seed")
        try:
            return default if value is None else to_integer("seed", value, 0, MAX_SEED)
        except InvalidArgument as error:
            do = "write a whole number from 0 on, or leave it out"
            raise self.wrong(f"has the seed {value!r:.40}", do) from error


@dataclass(frozen=True)
class Later:
    """Image that stays in its table until it is used; `place` is its index in a list of images."""

    table: Any
    row: int
    column: str
    place: int | None = None

    def read(self) -> Any:
        """Return the value as the table stores it."""
        found = self.table[self.row][self.column]
        return found if self.place is None else found[self.place]


def rows(data: str, plain: tuple[str, ...]) -> Iterator[DataRecord]:
    """Yield all rows of `data` in order.

    Args:
        plain: Endings of files that are rows without fields.
    """
    place = Path(data)
    if place.is_dir():
        yield from of_folder(place, plain)
    elif place.is_file():
        yield from of_file(place, plain)
    elif is_repository(data) and place.suffix.lower() not in (*plain, *TABLES):
        yield from of_set(data, partial(from_hub, data), Path())
    else:
        raise DataUnavailable(f"there is no data at {data}; give a folder, a file, or organisation/set on the hub.")


def of_folder(folder: Path, plain: tuple[str, ...]) -> Iterator[DataRecord]:
    """Yield rows of files of the first format present, subfolders included; hidden files are skipped."""
    files = [
        file for file in sorted(folder.rglob("*"))
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]  # fmt: skip
    for endings in (*((ending,) for ending in TABLES), plain):
        found = [file for file in files if file.suffix.lower() in endings]
        if not found:
            continue
        if endings == (".parquet",):
            named = [file for file in found if "train" in file.name.lower()] or found
            yield from of_set(str(folder), partial(from_parquet, named), folder)
        for file in found if endings != (".parquet",) else ():
            yield from of_file(file, plain)
        return
    wanted = ", ".join((*plain, *TABLES))
    raise DataUnavailable(f"{folder} has no file to read ({wanted}); put some there, or name another folder.")


def of_file(file: Path, plain: tuple[str, ...]) -> Iterator[DataRecord]:
    ending = file.suffix.lower()
    if ending == ".parquet":
        return of_set(str(file), partial(from_parquet, [file]), file.parent)
    if ending == ".jsonl":
        return of_lines(file)
    if ending == ".json":
        return of_list(file)
    if ending not in plain:
        wanted = ", ".join((*plain, *TABLES))
        raise DataUnavailable(f"{file} is no data to read; name a file that ends in {wanted}, or a folder.")
    if plain == TEXTS:
        return (
            DataRecord(f"line {number} of {file}", file.parent, {"text": line.strip()})
            for number, line in enumerate(text_of(file).splitlines(), 1) if line.strip()
        )  # fmt: skip
    return iter([DataRecord(str(file), file.parent, {"audio" if plain == SOUNDS else "image": file.name})])


def of_lines(file: Path) -> Iterator[DataRecord]:
    """Yield rows of JSON lines."""
    for number, line in enumerate(text_of(file).split("\n"), 1):
        if line.strip():
            place = f"line {number} of {file}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataUnavailable(f"{place} is no JSON ({error}); mend or remove it.") from error
            yield row_of(place, file.parent, value)


def of_list(file: Path) -> Iterator[DataRecord]:
    """Yield rows of a JSON file that is a list, as LLaVA's are."""
    text = text_of(file)
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise DataUnavailable(f"{file} is no JSON ({error}); mend it.") from error
    if not isinstance(whole, list):
        raise DataUnavailable(f"{file} holds no list of examples; write it as [{{…}}, {{…}}], or as JSON lines.")
    for number, value in enumerate(whole, 1):
        yield row_of(f"entry {number} of {file}", file.parent, value)


def row_of(place: str, folder: Path, value: Any) -> DataRecord:
    if not isinstance(value, dict):
        raise DataUnavailable(f"{place} is no object with fields; write it as {{…}}.")
    return DataRecord(place, folder, value)


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise system_error(error, f"{file} cannot be read") or DataUnavailable(
            f"{file} cannot be read ({error}); give a file of text in UTF-8."
        ) from error


def of_set(name: str, read: Callable[[], Any], folder: Path) -> Iterator[DataRecord]:
    """Yield rows of a table, images as bytes: decoding waits until one is used."""
    try:
        table, pictured = undecoded(read())
        for number, value in enumerate(table):
            for column in pictured:
                if isinstance(value[column], list):
                    value[column] = [Later(table, number, column, place) for place in range(len(value[column]))]
                elif value[column] is not None:
                    value[column] = Later(table, number, column)
            yield DataRecord(f"row {number + 1} of {name}", folder, value)
    except DataUnavailable:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # of the connection, and of what came
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:160] or type(error).__name__
        raise system_error(error, f"the set {name} cannot be read") or DataUnavailable(
            f"the set {name} cannot be read ({reason}); check its name and the connection, or give a folder."
        ) from error


def undecoded(found: Any) -> tuple[Any, list[str]]:
    """Return the set with images left as stored, and the columns that hold them."""
    from datasets import Image

    pictured = []
    for name, kind in (found.features or {}).items():
        if isinstance(kind, Image):
            found = found.cast_column(name, Image(decode=False))
            pictured.append(name)
        elif isinstance(getattr(kind, "feature", None), Image):
            found = found.cast_column(name, type(kind)(Image(decode=False)))
            pictured.append(name)
    return found, pictured


def from_hub(name: str) -> Any:
    return needed().load_dataset(name, split="train")


def from_parquet(files: list[Path]) -> Any:
    return needed().Dataset.from_parquet([str(file) for file in files])


def needed() -> Any:
    """Import the package `datasets`."""
    try:
        import datasets
    except ImportError as error:
        raise DataUnavailable(
            f"reading this set needs the package datasets; install it with: {pip_install('bench')}."
        ) from error
    datasets.utils.logging.disable_progress_bar()
    return datasets
