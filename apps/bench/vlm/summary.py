"""Summary of a run's samples: score, S and τ by set and method, as surveys print them.

S is plain decoding's seconds a token over the method's, both summed over the same answers; τ is tokens a target pass.
Answers shorter than asked for are not timed. Refused or truncated ones count as errors and are in no other figure.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.measure import plots
from polydraft.apps.measure.table import PLAIN, figure, sheet_of

Record = dict[str, Any]
HEADERS = [
    "task",
    "method",
    "guarantee",
    "samples",
    "errors",
    "score",
    "S",
    "τ",
    "tokens/s",
    "prefill ms",
    "timed",
    "same",
]


@dataclass(frozen=True)
class Line:
    """One method on one set. failed: samples without an answer; score: 0 to 1 of the others, None where answers were
    free. same: share with plain decoding's tokens. timed: answers that count for S and τ."""

    task: str
    method: str
    guarantee: str
    samples: int
    failed: int
    timed: int
    score: float | None
    speedup: float | None
    tau: float | None
    tokens_per_second: float | None
    prefill_ms: float | None
    same: float | None

    def cells(self) -> list[str]:
        score = "" if self.score is None else f"{100 * self.score:.1f}"
        rate = "" if self.tokens_per_second is None else f"{self.tokens_per_second:.0f}"
        prefill = "" if self.prefill_ms is None else f"{self.prefill_ms:.0f}"
        same = "" if self.same is None else f"{100 * self.same:.0f} %"
        return [
            self.task, self.method, self.guarantee, str(self.samples), str(self.failed), score, figure(self.speedup),
            figure(self.tau), rate, prefill, str(self.timed), same,
        ]  # fmt: skip


def lines(records: Iterable[Record], methods: list[str], least: int) -> list[Line]:
    """Return a line for every set and method.

    Args:
        least: Tokens an answer must have to be timed.
    """
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(record["task"], []).append(record)
    return [line_of(task, found, method, least) for task, found in sorted(tasks.items()) for method in methods]


def line_of(task: str, records: list[Record], method: str, least: int) -> Line:
    answered = [record["answers"] for record in records if "answers" in record]
    ours = [answers[method] for answers in answered]
    pairs = [(answers[PLAIN], answers[method]) for answers in answered]
    timed = [
        (plain, method_answer)
        for plain, method_answer in pairs
        if min(plain["tokens"], method_answer["tokens"]) >= max(1, least)
    ]
    scores = [method_answer["score"] for method_answer in ours if method_answer["score"] is not None]
    return Line(
        task=task, method=method, guarantee=ours[0]["guarantee"] if ours else "", samples=len(records),
        failed=len(records) - len(answered), timed=len(timed), score=mean(scores),
        speedup=ratio(pace(plain for plain, _ in timed), pace(method_answer for _, method_answer in timed)),
        tau=ratio(total(timed, "tokens"), total(timed, "target_passes")),
        tokens_per_second=ratio(total(timed, "tokens"), total(timed, "decode_seconds")),
        prefill_ms=1000 * statistics.median(answer["prefill_seconds"] for answer in ours) if ours else None,
        same=sum(method_answer["same"] for method_answer in ours) / len(ours) if ours else None,
    )  # fmt: skip


def total(timed: list[tuple[Record, Record]], name: str) -> float:
    return sum(method_answer[name] for _, method_answer in timed)


def pace(answers: Iterable[Record]) -> float:
    """Return seconds per token."""
    seconds, tokens = 0.0, 0
    for answer in answers:
        seconds, tokens = seconds + answer["decode_seconds"], tokens + answer["tokens"]
    return seconds / tokens if tokens else 0.0


def ratio(first: float, second: float) -> float | None:
    return first / second if second else None


def mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def errors(records: Iterable[Record]) -> list[str]:
    """Return a sentence per set on refused or truncated answers: why, and how often."""
    reasons: dict[str, dict[str, list[str]]] = {}
    asked: Counter[str] = Counter()
    for record in records:
        asked[record["task"]] += 1
        if "error" in record:
            message = record["error"]["message"].rstrip(".")
            alike = re.sub(r"\d+", "N", message)  # one reason, whatever the figures in it
            reasons.setdefault(record["task"], {}).setdefault(alike, []).append(message)
    return [
        f"{task}: {sum(map(len, found.values()))} of {asked[task]} samples are errors and in no figure: "
        + "; ".join(
            message[0] + (f" (and {len(message) - 1} like it)" if len(message) > 1 else "")
            for message in found.values()
        )
        + "."
        for task, found in sorted(reasons.items())
    ]


def survey(found: list[Line]) -> str:
    """Build a markdown table with a row a method and S and τ of every set, and of all on average."""
    tasks = list(dict.fromkeys(line.task for line in found))
    headers = ["method", *(f"{task} {sign}" for task in tasks for sign in ("S", "τ")), "mean S", "mean τ"]
    rows = []
    for method in dict.fromkeys(line.method for line in found):
        by_task = {line.task: line for line in found if line.method == method}
        figures = [value for task in tasks for value in (by_task[task].speedup, by_task[task].tau)]
        means = [mean(figures[0::2]), mean(figures[1::2])]
        rows.append([method, *map(figure, [*figures, *means])])
    return sheet_of(headers, rows)


def markdown(found: list[Line], top: list[str], notes: list[str]) -> str:
    """top: what must be read before any figure."""
    tables = [survey(found), sheet_of(HEADERS, [line.cells() for line in found])]
    return "\n\n".join([*top, *tables, *notes]) + "\n"


def as_csv(found: list[Line]) -> str:
    """Return every figure as CSV, a line per set and method."""
    return rows_as_csv([asdict(line) for line in found])


def rows_as_csv(rows: list[Record]) -> str:
    """Return rows of the same fields, at least one, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def panels(found: list[Line]) -> Image.Image:
    """Plot S inside τ, a panel per set and a bar per method."""
    tasks = list(dict.fromkeys(line.task for line in found))
    methods = len({line.method for line in found})
    drawing = Figure(figsize=(7, len(tasks) * (0.8 + 0.36 * methods) + 0.5), layout="constrained")
    for axes, task in zip(drawing.subplots(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        lines = [line for line in found if line.task == task]
        names = [line.method for line in lines]
        axes.barh(names, [line.tau or 0 for line in lines], 0.75, color=plots.COLOURS["tau"], label="τ, tokens a pass")
        axes.barh(names, [line.speedup or 0 for line in lines], 0.4, color=plots.COLOURS["S"], label="S, times plain")
        axes.axvline(1, color="#8a8f98", linewidth=1)
        axes.set_title(task, loc="left")
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
    return plots.rendered(drawing)
