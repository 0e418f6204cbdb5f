"""OCRBench: reading text of every sort (test, 1,000; published totals are the percentage here times ten).

Score: as in the set's own example.py (Yuliang-Liu/MultimodalOCR): one of the answers occurs in what was said, case and
line breaks apart; formulas (HME100k) without any spaces, and there case counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from polydraft.apps.bench.vlm.task import Row, Sample, Source, Task, explained

FORMULAS = "HME100k"


@dataclass(frozen=True)
class OCRBenchGold:
    answers: list[str]
    formula: bool


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    question = row["question"].strip()
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    gold = OCRBenchGold([str(answer) for answer in answers], row["dataset"] == FORMULAS)
    return Sample(
        str(row.get("id", row["place"])), pictures(row["image"]), question, explained(question), gold,
        row.get("question_type", ""),
    )  # fmt: skip


def score(gold: OCRBenchGold, answer: str) -> float:
    clean = without_spaces if gold.formula else lowered
    return float(any(clean(wanted) in clean(answer) for wanted in gold.answers))


def without_spaces(text: str) -> str:
    return text.strip().replace("\n", " ").replace(" ", "")


def lowered(text: str) -> str:
    return text.lower().strip().replace("\n", " ")


TASK = Task("ocrbench", Source("echo840/OCRBench", "test"), read, score, longest=128)
