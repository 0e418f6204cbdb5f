"""Results, printed and on disk: JSON for machines, tables and a plot for people; files are written atomically.

save(folder, "image", value, markdown, picture)    # folder/image.json, image.md, image.png; with csv image.csv
"""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from polydraft.apps.measure import plots, table
from polydraft.apps.terminal.terminal import note, print_json, print_table
from polydraft.core.errors import OutputUnwritable
from polydraft.modalities.image.result import write_image
from polydraft.modalities.output import write_text

Sheet = tuple[list[str], list[list[str]]]  # headers and rows


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that results cannot be written to, before anything is measured."""
    if folder is None:
        return
    ancestor = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise OutputUnwritable(f"{folder} cannot be written; give a folder that is writable or can be made.")


def tell(
    name: str, value: dict[str, Any], sheets: Sequence[Sheet], notes: Sequence[str],
    picture: Callable[[], Image.Image], output: Path | None, json: bool,
) -> None:  # fmt: skip
    """`value` for machines, `sheets` and `notes` for people; given a folder, files called `name`."""
    if json:
        print_json(value)
    else:
        for headers, rows in sheets:
            print_table(headers, rows)
        for line in notes:
            note(line)
    if output is not None:
        text = "\n\n".join([*(table.sheet_of(headers, rows) for headers, rows in sheets), *notes])
        save(output, name, value, text + "\n", picture())


def tell_titled(
    name: str, value: dict[str, Any], sheets: Mapping[str, Sheet], notes: Sequence[str],
    picture: Callable[[], Image.Image], output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Report `value` to machines, or tables by title and notes to people; given a folder, write files called `name`."""
    if json:
        print_json(value)
    else:
        print_titled(sheets, notes)
    if output is not None:
        save(output, name, value, "\n".join([*map(titled_sheet, sheets, sheets.values()), *notes, ""]), picture())


def print_titled(sheets: Mapping[str, Sheet], notes: Sequence[str]) -> None:
    """Print tables under their titles, then notes."""
    for title, (headers, rows) in sheets.items():
        note(f"\n{title}")
        print_table(headers, rows)
    for line in notes:
        note(line)


def titled_sheet(title: str, sheet: Sheet) -> str:
    """Return a markdown table under its title in bold."""
    return f"**{title}**\n\n{table.sheet_of(*sheet)}\n"


def tell_blocks(
    name: str, value: dict[str, Any], blocks: list[table.ResultBlock], notes: list[str], output: Path | None,
    json: bool, beside: Mapping[str, Sheet] | None = None,
) -> None:  # fmt: skip
    """Timed blocks likewise, with a plot; a broken promise or a slow baseline ends the command.

    beside: other tables, by title.
    """
    others = dict(beside or {})
    if json:
        print_json(value)
    else:
        for block in blocks:
            note(f"\n{block.title}")
            print_table(table.HEADERS, [row.cells() for row in block.rows])
        print_titled(others, notes)
    if output is not None:
        titled = map(titled_sheet, others, others.values())
        save(output, name, value, "\n".join([table.markdown(blocks), *titled, *notes, ""]), plots.bars(blocks))
    check_promises(
        (name for block in blocks for name in block.broken), (name for block in blocks for name in block.faulty)
    )


def save(
    folder: Path, name: str, value: dict[str, Any], markdown: str, picture: Image.Image, csv: str | None = None
) -> None:
    """Write files called `name`: three, and a table for other programs if there is one."""
    write(folder, f"{name}.json", json_format.dumps(value, indent=2, ensure_ascii=False) + "\n")
    write(folder, f"{name}.md", markdown)
    if csv is not None:
        write(folder, f"{name}.csv", csv)
    write_image(picture, folder / f"{name}.png", {"software": "polydraft"})


def write(folder: Path, name: str, text: str) -> None:
    """Write one file atomically; the folder is created if needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputUnwritable(f"{folder} cannot be made ({error}); give another folder.") from error
    write_text(folder / name, text)


def check_promises(broken: Iterable[str], faulty: Iterable[str] = ()) -> None:
    """End the command if methods promised identical tokens and gave others, or gained more than they accepted."""
    failures = []
    if names := sorted(set(broken)):
        failures.append(f"{', '.join(names)} promised identical tokens and gave others; please report the command line")
    if names := sorted(set(faulty)):
        failures.append(
            f"baseline fault: S is more than τ of {', '.join(names)}, so plain decoding was slower than it can be; "
            "measure again on an idle machine and, if it stays, report the command line"
        )
    for line in failures:
        note(line)
    if failures:
        raise SystemExit(1)
