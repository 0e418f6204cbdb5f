"""MathVista: mathematics with pictures (testmini, 1,000).

Score: as in the set's own evaluation (lupantech/MathVista, extract_answer.py and calculate_score.py): the answer is
extracted, brought to the type of the question (an option by its letter or, failing that, by edit distance; a whole
number; a number rounded to the asked places; a list) and must then be equal. The official extraction of free text asks
a language model; here rules do it: the number right behind "answer is", else the last one that is no aside in
parentheses; an option that is named; every number of a text that should be a list. They get the examples of the
official prompt right and can only miss some: published figures may be a little higher.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from PIL import Image

from polydraft.apps.bench.vlm.task import Row, Sample, Source, Task, explained

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<![\w.])-?\.\d+")
CONCLUDED = re.compile(
    r"(?i:answer)(?i:\s+is|\s*[:=])(?i:\s+(?:about|approximately|roughly))?[\s:*$£€(\[\"']*(?=[-.\d])"
)
ASIDE = re.compile(r"\([^()]*\)")
CONCLUSION = re.compile(r"(?i:answer|option|choice)(?i:\s+is|\s*:)?\s*\W*([A-Z])\b")


@dataclass(frozen=True)
class MathVistaGold:
    """Reference answer of kind "text", "integer", "float" or "list"; open questions have no choices."""

    answer: str
    kind: str
    places: int = 0
    unit: str = ""
    choices: list[str] = field(default_factory=list)


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    choices = row.get("choices") or []
    gold = MathVistaGold(
        str(row["answer"]), row["answer_type"], int(float(row.get("precision") or 0)), row.get("unit") or "",
        list(ast.literal_eval(choices) if isinstance(choices, str) else choices),
    )  # fmt: skip
    shown = row.get("decoded_image") or row["image"]
    return Sample(
        str(row["pid"]), pictures(shown), row["query"], explained(row["question"]), gold, row.get("question_type", "")
    )


def score(gold: MathVistaGold, answer: str) -> float:
    answered = extracted(gold, answer.strip())
    return float(answered is not None and answered == normalised(gold, gold.answer))


def extracted(gold: MathVistaGold, answer: str) -> str | None:
    """Extract the answer in the question's type; None if the text has none."""
    quoted = re.search(r'The answer is "(.*)"\.', answer)
    if quoted:
        answer = quoted[1]
    if not answer:
        return None
    if gold.choices:
        return option(gold.choices, answer)
    if gold.kind == "list":
        lists = re.findall(r"\[[^\[\]]*\]", answer)
        answered = ", ".join(match[0].replace(",", "") for match in numbers(answer))
        return normalised(gold, lists[-1] if lists else f"[{answered}]")
    return normalised(gold, last_number(answer, gold.unit))


def normalised(gold: MathVistaGold, answer: str | None) -> str | None:
    """Normalise equal answers to one spelling; None if the type does not fit."""
    if answer is None:
        return None
    try:
        if gold.kind == "integer":
            return str(int(float(answer)))
        if gold.kind == "float":
            return str(round(float(answer), gold.places))
        if gold.kind == "list":
            return str(ast.literal_eval(answer))
    except (ValueError, SyntaxError):
        return None
    return answer.strip()


def numbers(answer: str) -> list[re.Match[str]]:
    """Return numbers of a text in order, without those in parentheses unless there are no others; "1,200" is one."""
    asides = [aside.span() for aside in ASIDE.finditer(answer)]
    found = list(NUMBER.finditer(answer))
    outside = [match for match in found if not any(first < match.start() < last for first, last in asides)]
    return outside or found


def last_number(answer: str, unit: str) -> str | None:
    """Return the number an answer states, or else ends on, of those with the unit if any has it."""
    found = numbers(answer)
    with_unit = [
        match for match in found
        if unit and (answer[match.end() :].lstrip().startswith(unit) or answer[: match.start()].rstrip().endswith(unit))
    ]  # fmt: skip
    ends = [concluded.end() for concluded in CONCLUDED.finditer(answer)]
    stated = [
        match for match in NUMBER.finditer(answer)
        if match.start() in ends and not re.match(r"\s*[-+*/×÷^=]", answer[match.end() :])  # a term of a sum
    ]  # fmt: skip
    chosen = (with_unit or stated or found)[-1:]
    return chosen[0].group().replace(",", "") if chosen else None


def option(choices: list[str], answer: str) -> str:
    """Return the option an answer names: the text, a letter, the only text that occurs, else the most similar one."""
    letters = ascii_uppercase[: len(choices)]
    if answer in choices:
        return choices[choices.index(answer)]
    named = re.findall(r"\(([a-zA-Z])\)", answer) or re.findall(r"^([A-Z])(?:[.:)]|$)", answer)
    named = named or CONCLUSION.findall(answer)
    if named and named[-1].upper() in letters:
        return choices[letters.index(named[-1].upper())]
    there = [choice for choice in choices if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", answer)]
    if len(there) == 1:
        return there[0]
    return min(choices, key=lambda choice: distance(answer, choice))


def distance(first: str, second: str) -> int:
    """Return the edit distance (insert, delete, replace) of two texts."""
    row = list(range(len(second) + 1))
    for line, one in enumerate(first, 1):
        corner, row[0] = row[0], line
        for place, other in enumerate(second, 1):
            corner, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, corner + (one != other))
    return row[-1]


TASK = Task("mathvista", Source("AI4Math/MathVista", "testmini"), read, score, longest=1024)
