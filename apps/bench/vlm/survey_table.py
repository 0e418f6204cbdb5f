"""Tables of a survey: S over transformers' `generate` and over plain decoding, and τ, by model, method and set.

Both S are seconds a token of the baseline over those of the method, summed over the same answers; τ is tokens a target
pass. Answers shorter than asked for are not timed. Refused or truncated ones count as errors and are in no figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from polydraft.apps.bench.vlm import summary
from polydraft.apps.bench.vlm.summary import Line, Record, mean
from polydraft.apps.measure import report
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.apps.measure.table import PEER, PLAIN, sheet_of
from polydraft.apps.terminal.terminal import note, print_json

if TYPE_CHECKING:
    from polydraft.apps.bench.vlm.survey import Entry, ModelPlan, SurveyOptions

DASH = "–"
MEAN = "mean"  # over the sets
SIGNS = ("S/generate", "S/ar", "τ")
AVERAGED = ("score", "speedup", "tau", "tokens_per_second", "prefill_ms", "same")  # figures of a line
SUMMED = ("samples", "failed", "timed")


@dataclass(frozen=True)
class SurveyLine:
    """One contender's figures on one set, or on all of them on average."""

    temperature: float
    model: str
    over_generate: float | None  # S over transformers' `generate`
    line: Line  # its speed-up is S over plain decoding

    @property
    def cells(self) -> list[str]:
        """Return both S and τ."""
        return [figure(value) for value in (self.over_generate, self.line.speedup, self.line.tau)]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures in one record."""
        figures = asdict(self.line)
        names = {"task": figures.pop("task"), "method": figures.pop("method")}
        return {"temperature": self.temperature, "model": self.model} | names | {
            "over_generate": self.over_generate, "over_plain": figures.pop("speedup"), "tau": figures.pop("tau"),
        } | figures  # fmt: skip


def report_entries(entries: list[Entry], plans: list[ModelPlan], options: SurveyOptions, out: Path, json: bool) -> None:
    """Print and save the tables of all entries; a broken promise or a failed answer ends the command."""
    if not entries:
        note("there is nothing to ask: this part of the sets has no questions")
        return
    lines, errors, failed = [], [], 0
    for temperature in options.temperatures:
        for plan in plans:
            records = records_of(entries, plan, temperature)
            failed += sum("error" in record for record in records)
            errors += [f"{plan.model}, temperature {temperature:g}, {text}" for text in summary.errors(records)]
            lines += lines_of(records, plan, temperature, options.least)
    means = means_of(lines)
    notes = [legend(options), *(f"{reason}." for plan in plans for reason in plan.missing.values())]
    text = "\n\n".join([*errors, *tables(lines, means, plans, options), *notes]) + "\n"
    value = {
        "failed": failed, "errors": errors, "settings": asdict(options),
        "rows": [line.to_dict() for line in lines], "means": [line.to_dict() for line in means],
        "missing": {plan.model: plan.missing for plan in plans},
    }  # fmt: skip
    if json:
        print_json(value)
        for line in errors:
            note(line)
    else:
        typer.echo(text, nl=False)
    if lines:
        csv = summary.rows_as_csv([line.to_dict() for line in lines])
        report.save(out, "vlm", value, text, summary.panels([titled(line) for line in means]), csv)
    found = [line.line for line in lines]
    report.check_promises(
        (line.method for line in found if line.guarantee == "identical" and line.same not in (None, 1)),
        (line.method for line in found if line.speedup and line.tau and beyond(line.speedup / line.tau)),
    )
    if failed:
        raise SystemExit(1)


def records_of(entries: Iterable[Entry], plan: ModelPlan, temperature: float) -> list[Record]:
    """Return a record per question that all contenders of a model have answered at a temperature, or failed on."""
    by_question: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        place = entry["model"], entry["temperature"]
        if place == (plan.model, temperature) and entry["method"] in plan.contenders:
            by_question.setdefault(entry["question"], {})[entry["method"]] = entry
    found = []
    for question, by_method in by_question.items():
        if len(by_method) < len(plan.contenders):
            continue  # another shard, which is still at work
        record = {"id": question, "task": by_method[PLAIN]["task"]}
        error = next((entry["error"] for entry in by_method.values() if "error" in entry), None)
        if error is not None:
            found.append(record | {"error": error})
            continue
        digest = by_method[PLAIN]["answer"]["digest"]
        answers = {
            name: entry["answer"] | {"same": entry["answer"]["digest"] == digest} for name, entry in by_method.items()
        }
        found.append(record | {"answers": answers})
    return found


def lines_of(records: list[Record], plan: ModelPlan, temperature: float, least: int) -> list[SurveyLine]:
    """Return the lines of a model at a temperature, set by set."""
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record["task"], []).append(record)
    found = []
    for task, asked in sorted(by_task.items()):
        lines = [
            peer_line(task, asked, least) if name == PEER else summary.line_of(task, asked, name, least)
            for name in plan.contenders
        ]
        found += [SurveyLine(temperature, plan.model, speedup(asked, PEER, line.method, least), line) for line in lines]
    return found


def peer_line(task: str, records: list[Record], least: int) -> Line:
    """Return the line of transformers' `generate`, which has no passes and promises nothing."""
    pairs = timed(records, PLAIN, PEER, least)
    answers = [answer for _, answer in pairs]
    pace = summary.pace(answers)
    return Line(
        task=task, method=PEER, guarantee="", samples=len(records),
        failed=sum("error" in record for record in records), timed=len(pairs), score=None,
        speedup=speedup(records, PLAIN, PEER, least), tau=None, tokens_per_second=summary.ratio(1, pace),
        prefill_ms=None, same=None,
    )  # fmt: skip


def timed(records: Iterable[Record], baseline: str, method: str, least: int) -> list[tuple[Record, Record]]:
    """Return pairs of answers that both count: those of a baseline and of a method to the same questions.

    The first token of `generate` is no part of its time, so that its answers are one token shorter.
    """
    fewest = {name: max(1, least - (name == PEER)) for name in (baseline, method)}
    found = []
    for answers in (record["answers"] for record in records if "answers" in record):
        if all(name in answers and answers[name]["tokens"] >= fewest[name] for name in (baseline, method)):
            found.append((answers[baseline], answers[method]))
    return found


def speedup(records: Iterable[Record], baseline: str, method: str, least: int) -> float | None:
    """Return S of a method over a baseline, None where no answers of both are timed."""
    pairs = timed(records, baseline, method, least)
    return summary.ratio(summary.pace(slow for slow, _ in pairs), summary.pace(fast for _, fast in pairs))


def means_of(lines: list[SurveyLine]) -> list[SurveyLine]:
    """Return the mean over sets of every temperature, model and contender."""
    groups: dict[tuple[float, str, str], list[SurveyLine]] = {}
    for line in lines:
        groups.setdefault((line.temperature, line.model, line.line.method), []).append(line)
    return [mean_of(group) for group in groups.values()]


def mean_of(lines: list[SurveyLine]) -> SurveyLine:
    """Return the mean of one contender's lines; answers are summed."""
    parts = [line.line for line in lines]
    averaged: dict[str, Any] = {name: mean(getattr(part, name) for part in parts) for name in AVERAGED}
    summed: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in SUMMED}
    whole = replace(parts[0], task=MEAN, **averaged, **summed)
    return replace(lines[0], over_generate=mean(line.over_generate for line in lines), line=whole)


def tables(
    lines: list[SurveyLine], means: list[SurveyLine], plans: list[ModelPlan], options: SurveyOptions
) -> list[str]:
    """Return a markdown table per temperature: a row per model and contender, S and τ of every set and on average."""
    tasks = list(dict.fromkeys(line.line.task for line in lines))
    headers = ["model", "method", *(f"{task} {sign}" for task in [*tasks, MEAN] for sign in SIGNS)]
    by_place = {(line.temperature, line.model, line.line.method, line.line.task): line for line in [*lines, *means]}
    found = []
    for temperature in options.temperatures:
        rows = []
        for plan in plans:
            for name in [*options.methods, PEER]:
                there = (by_place.get((temperature, plan.model, name, task)) for task in [*tasks, MEAN])
                cells = [line.cells if line is not None else [DASH] * len(SIGNS) for line in there]
                rows.append([plan.model, name, *(cell for part in cells for cell in part)])
        found.append(f"**temperature {temperature:g}**\n\n{sheet_of(headers, rows)}")
    return found


def legend(options: SurveyOptions) -> str:
    """Return what the figures are and what was asked."""
    return (
        f"S/generate and S/ar: seconds a token of transformers' generate and of plain decoding over the method's, over "
        f"the same answers of at least {options.least} tokens, in turns in one process, prefill apart; τ: tokens a "
        f"target pass. Mode {options.mode}, seed {options.seed}."
    )


def titled(line: SurveyLine) -> Line:
    """Return a mean's line for the plot, whose panels are called by model and temperature."""
    return replace(line.line, task=f"{line.model}, temperature {line.temperature:g}, mean over sets")


def figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"
