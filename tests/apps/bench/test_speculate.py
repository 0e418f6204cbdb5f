"""`polydraft bench speculate`: calls of a script with and without drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.apps.bench.speculate import run as bench
from polydraft.apps.bench.speculate.calls import GenerateCalls, script_of
from polydraft.core.stats import DecodeStats
from polydraft.modalities.loading import load

from ...modalities.transcription.tiny_whisper import write_recordings, write_tiny_whisper
from ...modalities.vlm.conftest import MAKERS
from ..command_line import assert_refused, run


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    MAKERS["llava"](folder)
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"image": None, "question": text}) + "\n" for text in ("Why?", "Is it red?")))
    return file


def figures(*arguments: str) -> dict[str, Any]:
    output: dict[str, Any] = json.loads(run("bench", "speculate", *arguments, "--json", "--repeats", "1").stdout)
    return output


@pytest.mark.parametrize("takeover", [False, True])
def test_calls_with_drafts_give_the_same_ids(llava: Path, takeover: bool) -> None:
    options = ["--takeover"] if takeover else []
    value = figures(
        "--model", str(llava), "--dtype", "float32", "--methods", "ar,recycling", "--limit", "2",
        "--max-new-tokens", "12", *options,
    )  # fmt: skip
    generate, plain, drafted = value["methods"]
    assert [row["same"] for row in value["methods"]] == [2, 2, 2]
    assert generate["tau"] is None and plain["tau"] == 1 and drafted["tau"] >= 1
    assert generate["speedup"]["median"] == 1 and plain["speedup"]["median"] > 0


def test_calls_ask_what_the_data_asks(llava: Path, questions: Path) -> None:
    pipe = load(llava, modality="vlm", dtype="float32")
    script = script_of(pipe, str(questions), None, 7, 0.0)
    lengths = [len(script.calls[place](min_new_tokens=7)[0]) for place in range(2)]
    assert [length - prompt for length, prompt in zip(lengths, script.prompt_lens, strict=True)] == [7, 7]
    assert script.prompt_lens[0] < script.prompt_lens[1]


def test_transcripts_are_timed(tmp_path: Path) -> None:
    write_tiny_whisper(tmp_path / "whisper")
    (tmp_path / "data").mkdir()
    data = write_recordings(tmp_path / "data", 2, seconds=2)
    value = figures(
        "--model", str(tmp_path / "whisper"), "--data", str(data), "--dtype", "float32", "--methods", "recycling",
        "--limit", "1",
    )  # fmt: skip
    assert [row["same"] for row in value["methods"]] == [1, 1, 1]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--model", "tiny-image"], "answers or transcribes"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--methods", "eagel"], "eagle"),
    ],
)
def test_impossible_options_are_refused(options: list[str], words: str) -> None:
    assert_refused(run("bench", "speculate", *options), words)


def test_one_call_leaves_none_to_count(questions: Path) -> None:
    questions.write_text(questions.read_text().partition("\n")[0])
    assert_refused(run("bench", "speculate", "--data", str(questions)), "at least two")


def test_figures_are_those_of_rounds_and_calls() -> None:
    def turn(*seconds: tuple[float, float]) -> list[bench.CallRun]:
        stats = DecodeStats("pld", "identical", tokens=6, target_passes=2)
        return [bench.CallRun(whole, first, torch.arange(5), stats) for whole, first in seconds]

    slow = [turn((2.0, 0.4), (4.0, 0.4)), turn((2.0, 0.4), (4.0, 0.4))]
    fast = [turn((1.0, 0.2), (1.0, 0.2)), turn((1.0, 0.2), (2.0, 0.2))]
    row = bench.row_of("pld", fast, slow)
    assert (row.same, row.calls, row.tau) == (4, 4, 3.0)
    assert [row.times.low, row.times.high] == [2.0, 3.0] and row.call_ms == 1250
    assert row.speedup.high == pytest.approx(5.2 / 1.6) and row.speedup.low == pytest.approx(5.2 / 2.6)


def test_first_token_is_timed_apart() -> None:
    budgets: list[Any] = []

    def call(**mode: Any) -> Tensor:
        budgets.append(mode.get("max_new_tokens"))
        return torch.arange(9)[None]

    run_ = bench.timed_call(GenerateCalls(torch.nn.Linear(1, 1), [call], [4]), 0)  # type: ignore[arg-type]
    assert budgets == [1, None] and run_.ids.tolist() == [4, 5, 6, 7, 8]
