"""`polydraft bench descriptions`: share of correct descriptions of held-out scenes.

polydraft bench descriptions --n 200 -o runs/bench
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.measure import report, shares
from polydraft.apps.measure.environment import environment
from polydraft.apps.terminal.terminal import note
from polydraft.modalities.loading import load
from polydraft.modalities.world.words.scoring import DescriptionScore, grade_description


def run(
    *, n: int, method: str | None, model: str, temperature: float | None, seed: int, output: Path | None, json: bool
) -> None:
    """Describe, judge, print and, given a folder, save figures, misses and a sheet of the first scenes."""
    report.check_folder(output)
    pipe, rows = load(model, modality="vlm"), Rows()
    taken_on = environment(pipe.device, pipe.dtype)
    pictures: list[Image.Image] = []
    texts: list[str] = []
    verdicts: list[DescriptionScore] = []
    for first in range(0, n, shares.TOGETHER):
        asked = [rows[place] for place in range(first, min(first + shares.TOGETHER, n))]
        shown = [row["image"] for row in asked]
        answers = pipe(shown, [DESCRIBE] * len(shown), seed=seed + first, method=method, temperature=temperature).texts
        pictures, texts = pictures + shown, texts + answers
        verdicts += [
            grade_description(text, row["gold"].composition, row["gold"].scene)
            for text, row in zip(answers, asked, strict=True)
        ]
        right = sum(verdict.ok for verdict in verdicts)
        note(f"{len(verdicts)}/{n} descriptions, {right / len(verdicts):.3f} say what is there")
    value = {
        "model": pipe.card.name, "n": n, "seed": seed, "environment": taken_on, "temperature": temperature,
    }  # fmt: skip
    parts = [{"ok": verdict.ok} | vars(verdict) for verdict in verdicts]
    shares.tell("descriptions", value, parts, texts, pictures, output, json)
