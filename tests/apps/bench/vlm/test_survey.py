"""`polydraft batch vlm --models`: tables of S and τ, stopping and resuming, drafters that are missing, refusals."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polydraft.apps.batch.journal import Journal
from polydraft.apps.bench.vlm import sets, summary, survey, survey_table
from polydraft.apps.bench.vlm.survey import ModelPlan, registry_name
from polydraft.apps.measure.table import PEER
from polydraft.core.errors import InvalidArgument, UnsupportedMethod

from ...command_line import assert_refused, run

METHODS = "ar,spd,jacobi"
SHORT = ("--max-new-tokens", "5", "--min-new-tokens", "2", "--tasks", "emoji-qa:2")


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "WARM_UP", 1)


def table(out: Path, models: Any, *more: str | Path, methods: str = METHODS, temperatures: str = "0,1") -> Any:
    options = ["--methods", methods, "--temperatures", temperatures, *SHORT]
    return run("batch", "vlm", "--models", str(models), *options, "--out", out, *more)


def taus(done: Any) -> dict[tuple[float, str, str], float]:
    """Return τ by temperature, method and set."""
    return {
        (row["temperature"], row["method"], row["task"]): row["tau"]
        for row in json.loads(done.stdout)["rows"]
        if row["method"] != PEER
    }


def stop_after(count: int, patch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C once the journal has `count` entries."""
    add = Journal.add

    def stopping(log: Journal, value: dict[str, Any]) -> None:
        add(log, value)
        if len(log.done) == count:
            raise KeyboardInterrupt

    patch.setattr(Journal, "add", stopping)


def test_table_has_models_methods_and_means(random_model: Path, tmp_path: Path) -> None:
    done = table(tmp_path / "out", f"tiny-vlm,{random_model}", "--limit", "1", methods="ar,spd", temperatures="1")
    assert done.exit_code == 0, done.output
    assert "**temperature 1**" in done.stdout and "emoji-qa S/generate | emoji-qa S/ar" in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| tiny-vlm", "| /"))]
    assert len(rows) == 2 * 3
    assert [row[1] for row in rows[:4]] == ["ar", "spd", PEER, "ar"]
    assert rows[0][3] == "1.00" and rows[4][1:5] == ["spd", "–", "–", "–"], "the random model has no drafter"
    assert f"spd is not in the figures of {random_model}, which has no drafter of kind 'lm'." in done.stdout
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"entries.jsonl", "run.json", "vlm.json", "vlm.md", "vlm.csv", "vlm.png"}
    value = json.loads((tmp_path / "out" / "vlm.json").read_text())
    means = {(row["temperature"], row["model"], row["method"]): row for row in value["means"]}
    assert means[1.0, "tiny-vlm", "spd"]["tau"] > 1 and means[1.0, "tiny-vlm", "spd"]["same"] == 1
    assert len(list(csv.DictReader((tmp_path / "out" / "vlm.csv").open()))) == 3 + 2


def test_stopped_run_resumes_to_same_table(random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop in the middle of a question, then leave a partial line as a killed process does."""
    monkeypatch.setattr(summary, "panels", lambda lines: Image.new("RGB", (8, 8)))
    whole = table(tmp_path / "whole", random_model, "--json")
    with monkeypatch.context() as patch:
        stop_after(5, patch)
        stopped = table(tmp_path / "out", random_model, "--json")
    assert stopped.exit_code == 130 and not stopped.stdout
    assert "5 answers, and the same command goes on" in stopped.stderr
    with (tmp_path / "out" / "entries.jsonl").open("a") as file:
        file.write('{"id": "half')
    done = table(tmp_path / "out", random_model, "--json")
    assert done.exit_code == 0 and taus(done) == taus(whole) and len(taus(done)) == 4
    assert [row["temperature"] for row in json.loads(done.stdout)["means"]] == [0.0] * 3 + [1.0] * 3
    ids = [json.loads(line)["id"] for line in (tmp_path / "out" / "entries.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 2 * 2 * 3, "two questions, temperatures, and three contenders"
    monkeypatch.setattr(survey, "load", None)
    assert taus(table(tmp_path / "out", random_model, "--json")) == taus(whole), "nothing is left to load a model for"
    assert_refused(table(tmp_path / "out", random_model, temperatures="0"), "temperatures")


def test_contenders_that_are_refused_have_dashes(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ValueError("no such cache")

    def refuse(settings: Any, model: Any, method: str, *arguments: Any) -> Any:
        if method == "jacobi":
            raise UnsupportedMethod("its layers differ.")
        return ask(settings, model, method, *arguments)

    ask = sets.SetOptions.ask
    monkeypatch.setattr(sets.SetOptions, "ask", refuse)
    monkeypatch.setattr(survey, "generate", fail)
    monkeypatch.setattr(summary, "panels", lambda lines: Image.new("RGB", (8, 8)))
    done = table(tmp_path / "out", random_model, temperatures="0")
    assert done.exit_code == 0 and done.stderr.count("no such cache") == done.stderr.count("its layers differ)") == 1
    assert f"{PEER} is not in the figures of {random_model}" in done.stdout
    assert f"| {random_model} | jacobi | – |" in done.stdout
    assert table(tmp_path / "out", random_model, temperatures="0").stdout == done.stdout


@pytest.mark.parametrize(
    ("models", "more", "word"),
    [
        ("tiny-vlm", ("--methods", "ar,eagel"), "eagle"),
        ("tiny-vlm,tiny-vml", (), "tiny-vml"),
        (",", (), "names no model"),
        ("tiny-vlm", ("--temperatures", "0,x"), "0,x"),
        ("tiny-vlm", ("--temperatures", "-1"), "-1"),
        ("tiny-vlm", ("--tasks", "chartqq"), "chartqq"),
        ("tiny-vlm", ("--drafter", "nowhere"), "nowhere"),
        ("tiny-vlm", ("--reference", "nowhere.txt"), "nowhere.txt cannot be read"),
        ("tiny-vlm", ("--reference", "a.txt", "--reference", "b.txt"), "2 references"),
        ("tiny-vlm", ("--ray",), "--ray"),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(
    models: str, more: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    assert_refused(table(tmp_path / "out", models, *more), word)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "known"), [("spd", "draft"), ("spd(depth=4)+top-k", "draft(depth=4)+top-k"), ("spdx", "spdx")]
)
def test_published_names_are_known(name: str, known: str) -> None:
    assert registry_name(name) == known


def test_drafters_belong_to_their_models() -> None:
    build: Callable[..., survey.SurveyOptions] = survey.SurveyOptions
    options = build(["a", "b"], ["ar"], "latency", 0, [0.0], None, 1, ["b=runs/x", "a=y"])
    assert options.drafters_of("a") == ["y"] and options.drafters_of("b") == ["runs/x"]
    with pytest.raises(InvalidArgument, match="MODEL=FOLDER"):
        build(["a", "b"], ["ar"], "latency", 0, [0.0], None, 1, ["x"]).drafters_of("a")


def test_reference_reaches_its_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(survey, "load", lambda name, **loading: given.update({name: loading["reference"]}))
    build: Callable[..., survey.SurveyOptions] = survey.SurveyOptions
    options = build(["a", "b"], ["ar"], "latency", 0, [0.0], None, 1, [], ["b=terms.txt"])
    for model in options.models:
        _ = survey.ModelSession(survey.ModelPlan(model, ["ar"]), options, {}, "cpu", "auto").pipe
    assert given == {"a": None, "b": "terms.txt"} and options.of_model("b", 0.0).reference == "terms.txt"


def test_figures_over_generate_by_hand() -> None:
    def entry(question: str, method: str, tokens: int, seconds: float) -> dict[str, Any]:
        answer = {"tokens": tokens, "target_passes": 4, "decode_seconds": seconds, "prefill_seconds": 0.2,
                  "score": None, "guarantee": "identical", "digest": "x"}  # fmt: skip
        return {"model": "m", "temperature": 0.0, "task": "t", "question": question, "method": method,
                "answer": answer}  # fmt: skip

    entries = [
        entry("t/0", "ar", 8, 8.0), entry("t/0", "spd", 8, 2.0), entry("t/0", PEER, 7, 28.0),
        entry("t/1", "ar", 12, 12.0), entry("t/1", "spd", 12, 3.0), entry("t/1", PEER, 13, 26.0),
        entry("t/2", "ar", 7, 7.0), entry("t/2", "spd", 7, 99.0), entry("t/2", PEER, 6, 99.0),  # Too short.
        entry("t/3", "ar", 8, 8.0),  # Not answered by all yet.
    ]  # fmt: skip
    plan = ModelPlan("m", ["ar", "spd", PEER])
    records = survey_table.records_of(entries, plan, 0.0)
    plain, drafted, peer = survey_table.lines_of(records, plan, 0.0, least=8)
    assert (plain.over_generate, plain.line.speedup, plain.line.samples) == (2.7, 1, 3)
    assert (drafted.over_generate, drafted.line.speedup, drafted.line.tau) == (10.8, 4, 20 / 8)
    assert (peer.over_generate, peer.line.speedup, peer.line.tau) == (1, 1 / 2.7, None)
    other = survey_table.SurveyLine(0.0, "m", 1.2, drafted.line)
    (mean,) = survey_table.means_of([drafted, other])
    assert mean.over_generate == 6 and mean.line.samples == 6 and mean.line.tau == 20 / 8
