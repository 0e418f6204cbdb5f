"""Timed blocks as results: printed, and saved with a plot; a broken promise ends the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.apps.bench.measure import plots, report, table
from polydraft.apps.commands.terminal import note, print_json, print_table


def tell(
    name: str, value: dict[str, Any], blocks: list[table.Block], notes: list[str], output: Path | None, json: bool
) -> None:
    """`value` for machines, `blocks` and `notes` for people; given a folder, files called `name`."""
    if json:
        print_json(value)
    else:
        for block in blocks:
            note(f"\n{block.title}")
            print_table(table.HEADERS, [row.cells() for row in block.rows])
        for line in notes:
            note(line)
    if output is not None:
        report.save(output, name, value, table.markdown(blocks) + "\n" + "\n".join([*notes, ""]), plots.bars(blocks))
    report.check_promises(broken for block in blocks for broken in block.broken)
