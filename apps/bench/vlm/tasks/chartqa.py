"""ChartQA: questions about charts (test, 2,500; half of them by people, half by machine).

Score: relaxed accuracy as defined at the end of section 5.1 of arXiv 2203.10244 and coded in Qwen-VL and lmms-eval
(tasks/chartqa): |said - target| / |target| may be 0.05, "%" divides by 100, anything else, and a target of 0, must be
equal but for case. Right if it agrees with one of the labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from polydraft.apps.bench.vlm.task import Row, Sample, Source, Task, explained

TOLERANCE = 0.05


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    question = row.get("query") or row["question"]
    labels = row["label"] if "label" in row else row["answer"]
    asker: Any = row.get("human_or_machine", row.get("type", ""))
    return Sample(
        str(row.get("id", row["place"])), pictures(row["image"]),
        f"{question}\nAnswer the question using a single word or phrase.", explained(question),
        labels if isinstance(labels, list) else [labels],
        {0: "human", 1: "machine"}.get(asker, str(asker)),
    )  # fmt: skip


def score(gold: list[str], answer: str) -> float:
    return float(any(agrees(answer.strip(), str(label)) for label in gold))


def agrees(answer: str, label: str) -> bool:
    answered, wanted = number(answer), number(label)
    if answered is None or not wanted:
        return answer.lower() == label.lower()
    return abs(answered - wanted) / abs(wanted) <= TOLERANCE  # as a ratio: a product rounds otherwise at the edge


def number(text: str) -> float | None:
    """Parse a number, or a percentage as a fraction."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


TASK = Task("chartqa", Source("HuggingFaceM4/ChartQA", "test"), read, score, longest=16)
