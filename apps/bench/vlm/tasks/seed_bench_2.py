"""SEED-Bench-2: four options, one or many pictures, some of them the options (test, 24,371).

Prompt and score as in lmms-eval (tasks/seedbench_2): the first character that is not a space is the answer. Pictures
go before the text here, so where an option is a picture the prompt says which one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from polydraft.apps.bench.vlm.task import DIRECTLY, Row, Sample, Source, Task, explained, lettered

PICTURES = ("jpg", "png")


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    images = pictures(row["image"])
    options = [str(row[f"choice_{letter}"]) for letter in "abcd"]
    shown = [option for option in options if any(ending in option for ending in PICTURES)]
    first = len(images) - len(shown) + 1  # those of the options come last
    named = [f"picture {first + shown.index(option)}" if option in shown else option for option in options]
    question = f"{row['question'].replace('<img>', 'the picture')}\n{lettered(named, '.')}"
    return Sample(
        str(row.get("question_id", row["place"])), images, f"{question}\n{DIRECTLY}", explained(question),
        row["answer"], row.get("data_type", ""),
    )  # fmt: skip


def score(gold: str, answer: str) -> float:
    return float(answer.strip()[:1] == gold)


TASK = Task("seed-bench-2", Source("lmms-lab/SEED-Bench-2", "test"), read, score, longest=16)
