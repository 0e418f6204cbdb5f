"""ScienceQA: school science, multiple choice; the test questions that have a picture (2,017).

Prompt and score as in lmms-eval (tasks/scienceqa): the answer is the letter itself, or begins with the letter and a
full stop; a letter inside a sentence does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_uppercase
from typing import Any

from PIL import Image

from polydraft.apps.bench.vlm.task import DIRECTLY, Row, Sample, Source, Task, explained, lettered


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    context = f"Context: {row['hint']}\n" if row.get("hint") else ""
    question = f"{context}{row['question']}\n{lettered(row['choices'], '.')}"
    return Sample(
        str(row.get("id", row["place"])), pictures(row["image"]), f"{question}\n{DIRECTLY}", explained(question),
        ascii_uppercase[int(row["answer"])], row.get("subject", ""),
    )  # fmt: skip


def score(gold: str, answer: str) -> float:
    answer = answer.strip()
    return float(answer == gold or answer.startswith(f"{gold}."))


TASK = Task("scienceqa", Source("derek-thomas/ScienceQA", "test", needs="image"), read, score, longest=16)
