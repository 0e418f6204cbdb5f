"""Rows of a question set: from a folder, or from the hub and its cache through `datasets` (pip install
'polydraft[bench]').

    rows = open_rows(task, Path("data"))     # data/chartqa/*.parquet, or data/*.parquet
    chosen(rows, count=200)                  # which of them are asked

A folder holds files as the set ships them: parquet (needs `datasets` too), TSV, JSON lines or JSON.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polydraft.apps.bench.vlm.task import Row, Source, Task
from polydraft.core.errors import DataUnavailable, PolydraftError

ORDER_SEED = 2024  # everyone who asks 200 questions of a set asks the same ones
ENDINGS = (".parquet", ".tsv", ".jsonl", ".json")


def open_rows(task: Task, folder: Path | None) -> Sequence[Row]:
    """All rows of a set, read when first looked at where the format allows it."""
    if task.rows is not None:
        made: Sequence[Row] = task.rows()
        return made
    assert task.source is not None
    if folder is not None:
        return from_folder(task.name, task.source, folder)
    return from_hub(task.name, task.source)


def place_of(name: str, folder: Path) -> Path:
    """A set's own subfolder if there is one."""
    return folder / name if (folder / name).is_dir() else folder


def from_folder(name: str, source: Source, folder: Path) -> Sequence[Row]:
    """The files of the set's split, all of the first format that is there."""
    place = place_of(name, folder)
    for ending in ENDINGS:
        files = sorted(place.rglob(f"*{ending}")) if place.is_dir() else []
        files = [file for file in files if source.split in file.name.lower()] or files
        if files:
            return read_files(name, ending, files)
    raise DataUnavailable(
        f"{place} has no file of {name} ({', '.join(ENDINGS)}); put the set's files there, or leave out --data to "
        f"fetch {source.hub}."
    )


def read_files(name: str, ending: str, files: list[Path]) -> Sequence[Row]:
    try:
        if ending == ".parquet":
            found: Sequence[Row] = needed(name).Dataset.from_parquet([str(file) for file in files])
            return found
        return [row for file in files for row in parsed(file, ending)]
    except PolydraftError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise DataUnavailable(
            f"the files of {name} in {files[0].parent} cannot be read ({one_line(error)}); fetch them again."
        ) from error


def parsed(file: Path, ending: str) -> list[Row]:
    """Rows of a text file."""
    if ending == ".tsv":
        csv.field_size_limit(sys.maxsize)  # pictures stand in cells, as base64
        with file.open(encoding="utf-8", newline="") as lines:
            return shared(list(csv.DictReader(lines, delimiter="\t")))
    text = file.read_text(encoding="utf-8")
    if ending == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    whole = json.loads(text)  # a list, or rows by name
    return [{"key": key} | row for key, row in whole.items()] if isinstance(whole, dict) else whole


def shared(rows: list[Row]) -> list[Row]:
    """Rows with their pictures: where a cell holds the index of another row, that row's picture is meant."""
    images = {row["index"]: row["image"] for row in rows if "index" in row and "image" in row}
    return [row | {"image": images[row["image"]]} if row.get("image") in images else row for row in rows]


def from_hub(name: str, source: Source) -> Sequence[Row]:
    """Fetched once, then from the hub's cache."""
    try:
        if source.file is not None:
            from huggingface_hub import hf_hub_download

            return parsed(Path(hf_hub_download(source.hub, source.file, repo_type="dataset")), ".tsv")
        found: Sequence[Row] = needed(name).load_dataset(source.hub, split=source.split)
        return found
    except PolydraftError:
        raise
    except (OSError, ValueError, RuntimeError, csv.Error) as error:  # of the connection, and of what came
        raise DataUnavailable(
            f"{name} ({source.hub}) is neither in the hub's cache nor to be fetched ({one_line(error)}); check the "
            "connection, or give a folder with --data."
        ) from error


def needed(name: str) -> Any:
    """The package `datasets`."""
    try:
        import datasets
    except ImportError as error:
        raise DataUnavailable(
            f"reading {name} needs the package datasets; install it with: pip install 'polydraft[bench]'."
        ) from error
    return datasets


def one_line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:120].rstrip(". ")


def chosen(rows: Sequence[Row], needs: str | None, count: int | None) -> list[int]:
    """Which rows are asked: all, or the first `count` of one fixed shuffle, so that fewer are a part of more."""
    places = having(rows, needs) if needs else list(range(len(rows)))
    if count is None or count >= len(places):
        return places
    order = np.random.default_rng(ORDER_SEED).permutation(len(places))
    return [places[place] for place in order[:count]]


def having(rows: Sequence[Row], column: str) -> list[int]:
    """Places of rows with a value in `column`; of a `datasets` one without decoding a picture."""
    data = getattr(rows, "data", None)
    if data is not None:
        filled = data.column(column).is_valid().to_pylist()
    else:
        filled = [row.get(column) not in (None, "") for row in rows]
    return [place for place, is_filled in enumerate(filled) if is_filled]
