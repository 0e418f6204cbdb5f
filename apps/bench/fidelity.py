"""`polydraft bench fidelity`: how many pictures show what was asked, by the matcher, on compositions never trained on.

polydraft bench fidelity --n 200 -o runs/bench
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from polydraft.apps.bench import report
from polydraft.apps.bench.environment import environment
from polydraft.apps.bench.prompts import held_out
from polydraft.apps.commands.terminal import note, print_json, print_table
from polydraft.core.sampling import Sampling
from polydraft.modalities.loading import load
from polydraft.modalities.world.matcher import Verdict, fidelity

PARTS = ("ok", "objects", "count", "relation", "background", "clean")
TOGETHER, SHOWN, SHEET_COLUMNS = 8, 32, 8


def run(
    *, n: int, method: str | None, model: str, temperature: float | None, top_p: float | None,
    guidance_scale: float | None, seed: int, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Draw, judge, print and, given a folder, save figures and a sheet of the first pictures."""
    output = None if output is None else report.check_folder(output)
    pipe = load(model)
    asked: dict = {
        "method": method, "temperature": temperature, "top_p": top_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    captions, compositions = held_out(n)
    taken_on = environment(str(pipe.device), str(pipe.dtype).removeprefix("torch."))
    pictures: list[Image.Image] = []
    verdicts: list[Verdict] = []
    for first in range(0, n, TOGETHER):
        drawn = pipe(captions[first : first + TOGETHER], seed=seed + first, **asked)
        pictures += drawn.images
        together = zip(drawn.images, compositions[first : first + TOGETHER], strict=True)
        verdicts += [fidelity(np.asarray(picture), wanted) for picture, wanted in together]
        right = sum(verdict.ok for verdict in verdicts)
        note(f"{len(verdicts)}/{n} pictures, {right / len(verdicts):.3f} show what was asked")
    shares = {part: sum(getattr(verdict, part) for verdict in verdicts) / n for part in PARTS}
    defaults = {name: value for name, value in pipe.defaults.items() if name in asked or name in asdict(Sampling())}
    missed = [caption for caption, verdict in zip(captions, verdicts, strict=True) if not verdict.ok]
    value = {
        "model": pipe.card.name, "n": n, "seed": seed, "shares": shares,
        "settings": defaults | {name: value for name, value in asked.items() if value is not None},
        "environment": taken_on, "missed": missed,
    }  # fmt: skip
    rows = [[part, f"{share:.3f}"] for part, share in shares.items()]
    if json:
        print_json(value)
    else:
        print_table(["of what was asked", "share right"], rows)
    if output is not None:
        text = "".join(f"| {part} | {share} |\n" for part, share in [["part", "share right"], ["---", "---"], *rows])
        text += "\nMissed:\n\n" + "".join(f"- {caption}\n" for caption in missed) if missed else ""
        report.save(output, "fidelity", value, text, sheet(pictures[:SHOWN], [verdict.ok for verdict in verdicts]))


def sheet(pictures: list[Image.Image], right: list[bool]) -> Image.Image:
    """Pictures in rows; those that miss stand in a red frame."""
    side, edge = pictures[0].width + 8, 4
    rows = -(-len(pictures) // SHEET_COLUMNS)
    canvas = Image.new("RGB", (min(len(pictures), SHEET_COLUMNS) * side, rows * side), "white")
    for index, picture in enumerate(pictures):
        row, column = divmod(index, SHEET_COLUMNS)
        if not right[index]:
            canvas.paste((220, 60, 50), (column * side, row * side, (column + 1) * side, (row + 1) * side))
        canvas.paste(picture, (column * side + edge, row * side + edge))
    return canvas
