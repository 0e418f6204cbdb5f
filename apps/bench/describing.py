"""`polydraft bench descriptions`: how many descriptions say what is there, on scenes that no model was trained on.

polydraft bench descriptions --n 200 -o runs/bench
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from polydraft.apps.bench import report
from polydraft.apps.bench.environment import environment
from polydraft.apps.bench.fidelity import SHOWN, TOGETHER, sheet
from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.commands.terminal import note, print_json, print_table
from polydraft.modalities.loading import load
from polydraft.modalities.world.told import Told, judged


def run(
    *, n: int, method: str | None, model: str, temperature: float | None, seed: int, output: Path | None, json: bool
) -> None:
    """Describe, judge, print and, given a folder, save figures, misses and a sheet of the first scenes."""
    output = None if output is None else report.check_folder(output)
    pipe, rows = load(model, modality="vlm"), Rows()
    taken_on = environment(str(pipe.device), str(pipe.dtype).removeprefix("torch."))
    pictures: list[Image.Image] = []
    texts: list[str] = []
    verdicts: list[Told] = []
    for first in range(0, n, TOGETHER):
        asked = [rows[place] for place in range(first, min(first + TOGETHER, n))]
        shown = [row["image"] for row in asked]
        answers = pipe(shown, [DESCRIBE] * len(shown), seed=seed + first, method=method, temperature=temperature).texts
        pictures, texts = pictures + shown, texts + answers
        verdicts += [
            judged(text, row["gold"].composition, row["gold"].scene) for text, row in zip(answers, asked, strict=True)
        ]
        right = sum(verdict.ok for verdict in verdicts)
        note(f"{len(verdicts)}/{n} descriptions, {right / len(verdicts):.3f} say what is there")
    shares = {"ok": sum(verdict.ok for verdict in verdicts) / n} | {
        part: sum(getattr(verdict, part) for verdict in verdicts) / n for part in vars(verdicts[0])
    }
    missed: list[dict[str, Any]] = [
        {"scene": place, "text": text, "wrong": [part for part, right in vars(verdict).items() if not right]}
        for place, (text, verdict) in enumerate(zip(texts, verdicts, strict=True)) if not verdict.ok
    ]  # fmt: skip
    value = {
        "model": pipe.card.name, "n": n, "seed": seed, "temperature": temperature, "shares": shares,
        "environment": taken_on, "missed": missed,
    }  # fmt: skip
    table = [[part, f"{share:.3f}"] for part, share in shares.items()]
    if json:
        print_json(value)
    else:
        print_table(["of what is there", "share right"], table)
    if output is not None:
        text = "".join(f"| {part} | {share} |\n" for part, share in [["part", "share right"], ["---", "---"], *table])
        text += "".join(f"\n- {one['scene']}, {', '.join(one['wrong'])}: {one['text']}" for one in missed) + "\n"
        framed = sheet(pictures[:SHOWN], [verdict.ok for verdict in verdicts])
        report.save(output, "descriptions", value, text, framed)
