"""MMT-Bench: 32 sorts of multiple-choice tasks with up to nine options, about one picture or several (val, 3,127).

Rows are those of lmms-lab/MMT-Benchmark, whose `image` is a list, or of the set's own TSV in a folder. Prompt and score
as in lmms-eval (tasks/mmt): a letter in parentheses, else one that stands alone, else one before a full stop; of
several the last. Where it finds none lmms-eval draws one by lot; here that is wrong, so that the same answers have the
same score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from polydraft.apps.bench.vlm.task import Row, Sample, Source, Task, explained, lettered

LETTERS = "ABCDEFGHI"
PLACE = "<image>"  # where a picture stands; pictures go before the text here
MARKS = ",.!?;:'"


@dataclass(frozen=True)
class MMTBenchGold:
    letter: str
    letters: str  # those that can be chosen


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    options = [str(row[letter]).strip() for letter in LETTERS if str(row.get(letter) or "").strip() not in ("", "nan")]
    asked = row["question"].replace(PLACE, "").strip()
    question = f"Question: {asked}\n{lettered(options, ':')}"
    return Sample(
        str(row.get("index", row["place"])), pictures(row["image"]),
        f"{question}\nAnswer the question using a single character from the given options.", explained(question),
        MMTBenchGold(row["answer"].strip(), LETTERS[: len(options)]), row.get("l2-category", ""),
    )  # fmt: skip


def score(gold: MMTBenchGold, answer: str) -> float:
    return float(chosen_letter(answer, gold.letters) == gold.letter)


def chosen_letter(answer: str, letters: Sequence[str]) -> str | None:
    """Return the option an answer names; None if it names none."""
    answered = answer.strip()
    for mark in MARKS:
        answered = answered.strip(mark)
    answered = f" {answered} "
    for form in ("({})", " {} ", "{}."):
        found = [letter for letter in letters if form.format(letter) in answered]
        if found:
            return max(found, key=lambda letter: answered.rfind(f" {letter} "))
    return None


TASK = Task("mmt-bench", Source("lmms-lab/MMT-Benchmark", "val"), read, score, longest=8)
