"""`polydraft batch vlm` with a stand-in model: questions, records, S and τ by hand, resuming, shards, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from polydraft.apps.batch import journal
from polydraft.apps.bench.vlm import sets
from polydraft.apps.bench.vlm.sets import read_shard
from polydraft.apps.bench.vlm.summary import lines
from polydraft.core.errors import InvalidArgument, OutputUnwritable
from polydraft.modalities.model_card import embedded_models_dir

from ...command_line import assert_refused, run
from .stand_in import StandIn

ROWS = [
    ("How many?", "3"), ("Which one?", "blue"), ("How much?", "50%"), ("Is it?", "Yes"), ("And now?", "7"),
    ("What else?", "nothing"),
]  # fmt: skip
FREE = "one two three four five six seven eight nine ten eleven twelve"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write small sets with an image each into one folder; one of them has rows of another."""
    from PIL import Image

    for task in ("chartqa", "ocrbench", "scienceqa"):
        place = tmp_path / "data" / task
        place.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(place / "a.png")
        rows = [{"query": text, "label": [label], "image": "a.png", "question": text, "answer": [label],
                 "dataset": "svt", "question_type": "t"} for text, label in ROWS]  # fmt: skip
        (place / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Return a model that answers everything but "What else?" correctly."""
    right = dict(ROWS[:-1])
    made = StandIn(lambda question: FREE if "explain" in question else right.get(question.split("\n")[0], "hm"))
    monkeypatch.setattr(sets, "load", lambda name, **options: made)
    return made


def batch(folder: Path, *more: str, tasks: str = "chartqa", out: str = "out", methods: str = "ar,eagle2") -> Any:
    arguments = ["--tasks", tasks, "--methods", methods, "--data", folder / "data", "--out", folder / out]
    return run("batch", "vlm", *arguments, "--json", *more)


def records(folder: Path, name: str = "samples.jsonl", out: str = "out") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / out / name).read_text().splitlines()]


def test_accuracy_uses_and_scores_the_benchmark_prompt(folder: Path, model: StandIn) -> None:
    done = batch(folder, tasks="chartqa,ocrbench:2")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    chart = {row["method"]: row for row in value["rows"] if row["task"] == "chartqa"}
    assert chart["ar"]["samples"] == 6 and chart["ar"]["score"] == pytest.approx(5 / 6)
    assert chart["eagle2"]["same"] == 1 and chart["eagle2"]["guarantee"] == "identical"
    asked = [question for question in model.asked[2:] if "phrase" in question["question"]]
    assert {question["max_new_tokens"] for question in asked} == {16}
    assert {question["temperature"] for question in asked} == {0.0} and len({q["seed"] for q in asked}) == 6
    assert [question["method"] for question in model.asked[:6]] == ["ar", "eagle2"] * 2 + ["eagle2", "ar"]  # warm-up
    assert {record["id"] for record in records(folder)} == {f"chartqa/{i}" for i in range(6)} | {
        record["id"] for record in records(folder) if record["task"] == "ocrbench"
    }
    files = {path.name for path in (folder / "out").iterdir()}
    assert files == {"samples.jsonl", "run.json", "vlm.json", "vlm.md", "vlm.csv", "vlm.png"}
    report = json.loads((folder / "out" / "run.json").read_text())
    assert report["settings"]["methods"] == ["ar", "eagle2"] and report["sessions"][0]["torch"]
    table = list(csv.DictReader((folder / "out" / "vlm.csv").open()))
    assert [row["task"] for row in table] == ["chartqa", "chartqa", "ocrbench", "ocrbench"]
    assert "| method | chartqa S | chartqa τ | ocrbench S |" in (folder / "out" / "vlm.md").read_text()


def test_latency_asks_open_questions_times_long_answers(folder: Path, model: StandIn) -> None:
    done = batch(folder, "--mode", "latency", "--min-new-tokens", "12", "--max-new-tokens", "20")
    row = {row["method"]: row for row in json.loads(done.stdout)["rows"]}["eagle2"]
    # 12 tokens: 12 passes of 10 ms, drafted 3
    assert row["speedup"] == pytest.approx(4) and row["tau"] == pytest.approx(4) and row["timed"] == 6
    assert row["score"] is None and row["prefill_ms"] == pytest.approx(100)
    assert row["tokens_per_second"] == pytest.approx(400)
    assert all("explain" in question["question"] for question in model.asked)
    assert model.asked[-1]["max_new_tokens"] == 20
    short = batch(folder, "--mode", "latency", "--min-new-tokens", "13", "--max-new-tokens", "20", out="short")
    assert {(row["timed"], row["speedup"]) for row in json.loads(short.stdout)["rows"]} == {(0, None)}


def test_figures_by_hand() -> None:
    def answer(tokens: int, passes: int, seconds: float, score: float) -> dict[str, Any]:
        return {"tokens": tokens, "target_passes": passes, "decode_seconds": seconds, "prefill_seconds": 0.2,
                "score": score, "same": True, "guarantee": "identical"}  # fmt: skip

    samples = [
        {"id": "t/0", "task": "t", "answers": {"ar": answer(10, 10, 1.0, 1), "m": answer(10, 4, 0.5, 1)}},
        {"id": "t/1", "task": "t", "answers": {"ar": answer(30, 30, 3.0, 0), "m": answer(30, 6, 0.5, 1)}},
        {"id": "t/2", "task": "t", "answers": {"ar": answer(2, 2, 9.0, 1), "m": answer(2, 1, 0.1, 0)}},  # Too short.
        {"id": "t/3", "task": "t", "error": {"type": "PromptError", "message": "…"}},  # Not part of any figure.
    ]
    plain, method = lines(samples, ["ar", "m"], least=5)
    assert (plain.speedup, plain.tau, plain.score, plain.samples) == (1, 1, 2 / 3, 4)
    assert (method.speedup, method.tau, method.score) == (4, 4, 2 / 3)
    assert (method.tokens_per_second, method.timed, method.failed, method.prefill_ms) == (40, 2, 1, 200)


def test_stopped_run_resumes(folder: Path, model: StandIn) -> None:
    model.stop_after = 2 + 2 * 2 + 1  # in the middle of the third sample
    assert batch(folder).exit_code == 130
    assert len(records(folder)) == 2
    with (folder / "out" / "samples.jsonl").open("a") as file:
        file.write('{"id": "chartqa/2", "task": "chart')
    model.stop_after, before = None, len(model.asked)
    done = batch(folder)
    assert done.exit_code == 0 and "2 of 6" in done.stderr
    assert len(model.asked) - before == 2 + 4 * 2 and len(records(folder)) == 6
    assert len(json.loads((folder / "out" / "run.json").read_text())["sessions"]) == 2
    assert batch(folder).exit_code == 0 and len(model.asked) - before == 2 + 4 * 2
    assert batch(folder, "--limit", "3").exit_code == 0 and len(records(folder)) == 6


def test_shards_partition_samples_and_last_reports_all(folder: Path, model: StandIn) -> None:
    first = batch(folder, "--shard", "1/2")
    second = batch(folder, "--shard", "2/2")
    names = [f"samples-{part}-of-2.jsonl" for part in (1, 2)]
    ids = [{record["id"] for record in records(folder, name)} for name in names]
    assert not ids[0] & ids[1] and len(ids[0] | ids[1]) == 6
    assert json.loads(first.stdout)["rows"][0]["samples"] == 3
    assert json.loads(second.stdout)["rows"][0]["samples"] == 6


def test_other_settings_are_not_mixed(folder: Path, model: StandIn) -> None:
    assert batch(folder, "--limit", "1").exit_code == 0
    assert_refused(batch(folder, "--limit", "1", "--seed", "3"), "seed")
    assert_refused(batch(folder, "--limit", "1", "--mode", "latency", "--shard", "1/2"), "mode")
    assert_refused(batch(folder, "--limit", "1", methods="ar,top-k"), "methods")
    assert batch(folder, "--limit", "2").exit_code == 0 and len(records(folder)) == 2


def test_violated_guarantee_fails_the_run(folder: Path, model: StandIn) -> None:
    model.broken = "eagle2"
    done = batch(folder, methods="eagle2,top-k")
    assert done.exit_code == 1 and "eagle2 promised" in done.stderr and "top-k promised" not in done.stderr
    rows = {row["method"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["eagle2"]["same"] == rows["top-k"]["same"] == 0 and rows["ar"]["same"] == 1


def test_failing_sample_is_recorded_and_retried(folder: Path, model: StandIn) -> None:
    model.fails_on = "How much"
    done = batch(folder)
    assert done.exit_code == 1 and json.loads(done.stdout)["failed"] == 1
    (failed,) = [record for record in records(folder) if "error" in record]
    assert failed["error"] == {"type": "PromptError", "message": "the question is too long; ask a shorter one."}
    value, table = json.loads(done.stdout), (folder / "out" / "vlm.md").read_text()
    assert value["rows"][0]["score"] == pytest.approx(4 / 5) and value["rows"][0]["failed"] == 1, "an error is no zero"
    report = "chartqa: 1 of 6 samples are errors and in no figure: the question is too long; ask a shorter one."
    assert value["errors"] == [report] and report in done.stderr and table.startswith(report)
    assert list(value)[:2] == ["failed", "errors"]
    model.fails_on = "\0"
    again = batch(folder)
    assert again.exit_code == 0 and json.loads(again.stdout)["rows"][0]["score"] == pytest.approx(5 / 6)
    assert len(records(folder)) == 7


def test_truncated_answer_is_an_error(folder: Path, model: StandIn) -> None:
    """Count context overflow as an error; an answer at the set's token limit is scored."""
    model.room = 6
    model.answer = lambda question: FREE
    done = batch(folder, tasks="chartqa,ocrbench")
    value = json.loads(done.stdout)
    assert done.exit_code == 1 and {row["failed"] for row in value["rows"]} == {6}
    assert {row["score"] for row in value["rows"]} == {None} and "left room for 6 of 16 tokens" in value["errors"][0]
    assert value["errors"][0].endswith("with more positions (and 5 like it).")
    model.room = None
    whole = batch(folder, "--max-new-tokens", "5", out="whole")
    assert whole.exit_code == 0 and json.loads(whole.stdout)["rows"][0]["score"] == 0


def test_rows_of_another_benchmark_are_reported(folder: Path, model: StandIn) -> None:
    """Check that every row fails with a reason, and that a shard without questions is no error."""
    done = batch(folder, tasks="scienceqa")
    assert done.exit_code == 1 and not model.asked
    assert {record["error"]["type"] for record in records(folder)} == {"DataUnavailable"}
    assert "'choices'" in records(folder)[0]["error"]["message"]
    empty = batch(folder, "--limit", "1", "--shard", "2/2", out="none")
    assert empty.exit_code == 0 and "nothing to ask" in empty.stderr


def test_emoji_questions_run_offline_and_print_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = StandIn(lambda question: "Yes." if question.startswith(("Is", "Can")) else "No.")
    monkeypatch.setattr(sets, "load", lambda name, **options: made)
    monkeypatch.setattr(sets, "check_model", lambda name, **options: None)
    done = run("batch", "vlm", "--tasks", "emoji-qa:12", "--methods", "fast(k=2,l=3),eagle2", "--out", folder / "emoji")
    assert done.exit_code == 0, done.output
    assert "fast(k=2,l=3)" in done.stdout and "emoji-qa" in done.stdout
    assert made.asked[0]["image"].size == (128, 128)
    value = json.loads((folder / "emoji" / "vlm.json").read_text())
    assert value["rows"][0]["samples"] == 12 and 0 <= value["rows"][0]["score"] < 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--mode", "speed"], "speed"),
        (["--shard", "3/2"], "3/2"),
        (["--shard", "2"], "2"),
        (["--max-new-tokens", "8", "--min-new-tokens", "9"], "--min-new-tokens"),
        (["--methods", "warp"], "warp"),
        (["--tasks", "chartqq"], "chartqq"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_invalid_arguments_leave_no_files(folder: Path, model: StandIn, arguments: list[str], word: str) -> None:
    assert_refused(batch(folder, *arguments), word)
    assert not (folder / "out").exists() and not model.asked


def test_shards_are_read() -> None:
    assert [read_shard(text) for text in (None, "1/1", "2/4")] == [(1, 1), (1, 1), (2, 4)]
    for text in ("", "0/2", "5/4", "a/b", "1/", "-1/2"):
        with pytest.raises(InvalidArgument):
            read_shard(text or "/")


# --- the journal


def test_journal_drops_partial_lines_and_keeps_last_record(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    log = journal.Journal(path)
    log.add({"id": "a", "n": 1})
    log.add({"id": "é", "n": 2})
    assert path.read_text().count("\n") == 2  # Written to disk before it is closed.
    log.add({"id": "a", "n": 3})
    log.close()
    with path.open("ab") as file:
        file.write(b'{"id": "half')
    log = journal.Journal(path)
    assert log.done == {"a": {"id": "a", "n": 3}, "é": {"id": "é", "n": 2}}
    log.add({"id": "b"})
    log.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a", "é", "a", "b"]


@pytest.mark.parametrize("line", ["half", "3", '{"n": 1}', "[]"])
def test_corrupt_journal_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"id": "a"}}\n{line}\n')
    with pytest.raises(OutputUnwritable, match="line 2"):
        journal.Journal(tmp_path / "log.jsonl")


def test_planted_bug_partial_journal_line_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that keeping a partial line would join it with the next one, which the test before this one detects."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"id": "a"}\n{"id": "half')
    file = path.open("ab")
    file.write(b'{"id": "b"}\n')
    file.close()
    with pytest.raises(OutputUnwritable, match="line 2"):
        journal.read(path)


def test_resumed_run_needs_the_same_drafters(folder: Path, model: StandIn) -> None:
    drafters = [embedded_models_dir() / "tiny-vlm" / f"drafter-{kind}" for kind in ("eagle", "hydra")]
    given = [word for drafter in drafters for word in ("--drafter", str(drafter))]
    assert batch(folder, *given, "--limit", "1").exit_code == 0
    report = json.loads((folder / "out" / "run.json").read_text())
    assert report["settings"]["drafter"] == list(map(str, drafters))
    assert_refused(batch(folder), "other drafter")
    assert_refused(batch(folder, *given[:2], *given[:2], out="new"), "given twice")
    del report["settings"]["drafter"], report["settings"]["reference"]  # as written before there were any
    (folder / "out" / "run.json").write_text(json.dumps(report))
    assert batch(folder, "--limit", "1").exit_code == 0


def test_reference_is_loaded_and_kept_in_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, terms = list[str | None](), folder / "terms.txt"
    terms.write_text("Three umbrellas.")
    made = StandIn(lambda question: FREE)
    monkeypatch.setattr(sets, "load", lambda name, **options: loads.append(options["reference"]) or made)
    assert batch(folder, "--reference", str(terms), "--limit", "1").exit_code == 0
    assert loads == [str(terms)]
    assert json.loads((folder / "out" / "run.json").read_text())["settings"]["reference"] == str(terms)
    assert_refused(batch(folder), "other reference")
    assert_refused(batch(folder, "--reference", "nowhere.txt", out="new"), "nowhere.txt cannot be read")
