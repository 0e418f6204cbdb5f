"""Shares of correct results: printed, and saved with the failures and a contact sheet of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from polydraft.apps.measure import report, table
from polydraft.apps.terminal.terminal import print_json, print_table

HEADERS = ["part", "share right"]
TOGETHER = 8  # asked for in one batch
SHOWN, SHEET_COLUMNS = 32, 8


def tell(
    name: str, value: dict[str, Any], verdicts: list[dict[str, bool]], texts: list[str], pictures: list[Image.Image],
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Print `value` with the shares and, given a folder, save files called `name`.

    verdicts: of each of `texts`, whether it is "ok" and which of its parts are.
    """
    shares = {part: sum(verdict[part] for verdict in verdicts) / len(verdicts) for part in verdicts[0]}
    missed = [
        {"text": text, "wrong": [part for part, right in verdict.items() if not right and part != "ok"]}
        for text, verdict in zip(texts, verdicts, strict=True) if not verdict["ok"]
    ]  # fmt: skip
    value = value | {"shares": shares, "missed": missed}
    rows = [[part, f"{share:.3f}"] for part, share in shares.items()]
    if json:
        print_json(value)
    else:
        print_table(HEADERS, rows)
    if output is not None:
        text = table.sheet_of(HEADERS, rows) + "\n"
        text += "\nMissed:\n\n" + "".join(f"- {', '.join(one['wrong'])}: {one['text']}\n" for one in missed)
        report.save(output, name, value, text, sheet(pictures[:SHOWN], [verdict["ok"] for verdict in verdicts]))


def sheet(pictures: list[Image.Image], right: list[bool]) -> Image.Image:
    """Arrange images in rows; those that miss get a red frame."""
    side, edge = pictures[0].width + 8, 4
    rows = -(-len(pictures) // SHEET_COLUMNS)
    canvas = Image.new("RGB", (min(len(pictures), SHEET_COLUMNS) * side, rows * side), "white")
    for index, picture in enumerate(pictures):
        row, column = divmod(index, SHEET_COLUMNS)
        if not right[index]:
            canvas.paste((220, 60, 50), (column * side, row * side, (column + 1) * side, (row + 1) * side))
        canvas.paste(picture, (column * side + edge, row * side + edge))
    return canvas
