"""Rows of a question set: from a folder, or from the hub and its cache through `datasets` (pip install
'polydraft[bench]').

    rows = open_rows(task, Path("data"))     # data/chartqa/*.parquet, or data/*.parquet
    chosen(rows, count=200)                  # which of them are asked

A folder holds files as the set ships them: parquet (needs `datasets` too), TSV, JSON lines or JSON. It may be what
`huggingface-cli download` leaves: the repository in a folder of its own name (HuggingFaceM4/ChartQA, ChartQA) or of the
task's, or the hub's cache (datasets--HuggingFaceM4--ChartQA/snapshots/…), or any one of these itself.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polydraft.apps.bench.vlm.task import Row, Source, Task
from polydraft.core.checks.extras import pip_install
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import DataUnavailable, PolydraftError

ORDER_SEED = 2024  # everyone who asks 200 questions of a set asks the same ones
ENDINGS = (".parquet", ".tsv", ".jsonl", ".json")
SPLITS = {"train", "val", "valid", "validation", "dev", "test", "testmini"}
POINTER = b"version https://git-lfs"


def open_rows(task: Task, folder: Path | None) -> Sequence[Row]:
    """Return all rows of a set, read lazily where the format allows it."""
    if task.rows is not None:
        made: Sequence[Row] = task.rows()
        return made
    assert task.source is not None
    if folder is not None:
        return from_folder(task, folder)
    return from_hub(task.name, task.source)


def place_of(task: Task, folder: Path) -> Path:
    """Return the folder of the set's files: `folder` itself, or its subfolder named after the set."""
    names = [task.name]
    if task.source is not None:
        names += [
            task.source.hub,
            task.source.hub.rpartition("/")[2],
            f"datasets--{task.source.hub.replace('/', '--')}",
        ]
    wanted = {name.lower() for name in names}
    inside = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_dir())
    named = (path for path in inside if path.relative_to(folder).as_posix().lower() in wanted)
    return snapshot(next(named, folder))


def snapshot(folder: Path) -> Path:
    """Return the revision that a repository in the hub's cache names as main, or else the newest."""
    revisions = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    if not revisions:
        return folder
    main = folder / "refs" / "main"
    named = folder / "snapshots" / main.read_text().strip() if main.is_file() else None
    return named if named in revisions else max(revisions, key=lambda path: (path.stat().st_mtime, path.name))


def from_folder(task: Task, folder: Path) -> Sequence[Row]:
    """Return rows of the split's files, all of the first format present."""
    assert task.source is not None
    place, split = place_of(task, folder), task.source.split
    for ending in ENDINGS:
        files = sorted(path for path in place.rglob(f"*{ending}") if is_data(path.relative_to(place)))
        splits_by_file = {file: splits_of(file.relative_to(place)) for file in files}
        of_split = [file for file in files if split in splits_by_file[file]]
        if files and not of_split and all(splits_by_file.values()):
            raise DataUnavailable(
                f"{place} has files of {', '.join(sorted(set().union(*splits_by_file.values())))} and none of {split}, "
                f"which {task.name} asks; fetch those of {split} too."
            )
        if files:
            return read_files(task.name, ending, of_split or [file for file in files if not splits_by_file[file]])
    raise DataUnavailable(
        f"{place} has no file of {task.name} ({', '.join(ENDINGS)}); put the set's files there, or leave out --data to "
        f"fetch {task.source.hub}."
    )


def is_data(path: Path) -> bool:
    """Return whether a file may hold rows, which files in hidden folders and side files of tools do not."""
    return not any(part.startswith(".") for part in path.parts) and not path.name.startswith("dataset_info")


def splits_of(path: Path) -> set[str]:
    """Return the splits that a file's name or folders mention."""
    return set(re.split(r"[^a-z]+", path.as_posix().lower())) & SPLITS


def read_files(name: str, ending: str, files: list[Path]) -> Sequence[Row]:
    for file in files:
        if file.open("rb").read(len(POINTER)) == POINTER:
            raise DataUnavailable(
                f"{file} is a pointer of Git LFS and not the data; run `git lfs pull`, or fetch it with "
                "`huggingface-cli download`."
            )
    try:
        if ending == ".parquet":
            needed(name)
            from datasets import Dataset
            from datasets.exceptions import DatasetsError

            try:
                found: Sequence[Row] = Dataset.from_parquet([str(file) for file in files])
            except DatasetsError as error:
                raise ValueError(str(error.__cause__ or error)) from error
            return found
        return [row for file in files for row in parsed(file, ending)]
    except PolydraftError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise system_error(error, f"the files of {name} cannot be read") or DataUnavailable(
            f"the files of {name} in {files[0].parent} cannot be read ({one_line(error)}); fetch them again."
        ) from error


def parsed(file: Path, ending: str) -> list[Row]:
    """Parse the rows of a text file."""
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
    """Resolve image cells that hold the index of another row to that row's image."""
    images = {row["index"]: row["image"] for row in rows if "index" in row and "image" in row}
    return [row | {"image": images[row["image"]]} if row.get("image") in images else row for row in rows]


def from_hub(name: str, source: Source) -> Sequence[Row]:
    """Fetched once, then from the hub's cache."""
    try:
        found: Sequence[Row] = needed(name).load_dataset(source.hub, split=source.split)
        return found
    except PolydraftError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # of the connection, and of what came
        raise system_error(error, f"{name} cannot be fetched") or DataUnavailable(
            f"{name} ({source.hub}) is neither in the hub's cache nor to be fetched ({one_line(error)}); check the "
            "connection, or give a folder with --data."
        ) from error


def needed(name: str) -> Any:
    """Import the package `datasets`."""
    try:
        import datasets
    except ImportError as error:
        raise DataUnavailable(
            f"reading {name} needs the package datasets; install it with: {pip_install('bench')}."
        ) from error
    return datasets


def one_line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:120].rstrip(". ")


def choose_samples(rows: Sequence[Row], needs: str | None, count: int | None) -> list[int]:
    """Return indices of all rows, or the first `count` of one fixed shuffle, so that fewer are a subset of more."""
    places = having(rows, needs) if needs else list(range(len(rows)))
    if count is None or count >= len(places):
        return places
    order = np.random.default_rng(ORDER_SEED).permutation(len(places))
    return [places[place] for place in order[:count]]


def having(rows: Sequence[Row], column: str) -> list[int]:
    """Return indices of rows with a value in `column`, without decoding images of a `datasets` column."""
    data = getattr(rows, "data", None)
    if data is not None:
        filled = data.column(column).is_valid().to_pylist()
    else:
        filled = [row.get(column) not in (None, "") for row in rows]
    return [place for place, is_filled in enumerate(filled) if is_filled]
