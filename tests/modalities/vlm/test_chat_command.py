"""`polydraft chat` and `polydraft bench vlm`: answers on stdout, all else on stderr, one sentence for errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.apps.cli.maps.drawing import COLOURS
from polydraft.apps.measure.peers import baseline
from polydraft.modalities.vlm.pipeline import VLMPipeline

from ...apps.command_line import assert_refused, run
from .conftest import picture


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    picture(56, 56).save(tmp_path / "scene.png")
    return tmp_path / "scene.png"


@pytest.fixture
def model(folder_of: Callable[[str], Path]) -> Path:
    return folder_of("llava")


FEW = ("--max-new-tokens", "8", "--dtype", "float32")


@pytest.mark.filterwarnings("error::FutureWarning")  # of transformers, which users would see
def test_stdout_has_only_the_answer(scene: Path, model: Path):
    done = run("chat", scene, "What is this?", "--model", model, *FEW)
    assert done.exit_code == 0, done.stderr
    as_json = run("chat", scene, "What is this?", "--model", model, *FEW, "--json")
    value = json.loads(as_json.stdout)
    assert done.stdout == value["answer"] + "\n" and "target passes" in done.stderr
    assert value["tokens"] == 8 and value["finish_reason"] == "length" and "--max-new-tokens" in done.stderr


def test_image_is_read_from_standard_input(scene: Path, model: Path):
    words = ["--model", str(model), *FEW]
    piped = CliRunner().invoke(app, ["chat", "-", "What is this?", *words], input=scene.read_bytes())
    assert piped.exit_code == 0 and piped.stdout == run("chat", scene, "What is this?", *words).stdout


def test_compare_option_adds_plain_decoding(scene: Path, model: Path):
    done = run("chat", scene, scene, "What has changed?", "--model", model, *FEW, "--compare", "--json")
    assert json.loads(done.stdout)["compare"]["identical"] is True


def test_map_shows_every_run(scene: Path, model: Path, tmp_path: Path):
    """The map has the colours of the passes and changes with the runs."""
    words = ("chat", scene, "What is this?", "--model", model, *FEW, "--temperature", "0")
    for name, method in (("plain.png", "ar"), ("runs.jpg", "jacobi(window=4)")):
        done = run(*words, "--method", method, "--map", tmp_path / name, "--json")
        assert json.loads(done.stdout)["map"] == str(tmp_path / name)
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "runs.jpg") as drafted:
        assert plain.size == drafted.size and plain.text["prompt"] == "What is this?"
        colours = {colour for _, colour in plain.getcolors(1 << 20)}
        assert {COLOURS[0], COLOURS[6]} < colours  # of eight passes, in the bars


def test_turns_include_earlier_turns(scene: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    original, calls = VLMPipeline.stream, []

    def recording(pipe: VLMPipeline, *args: Any, **named: Any) -> Any:
        calls.append(named["messages"])
        return original(pipe, *args, **named)

    monkeypatch.setattr(VLMPipeline, "stream", recording)
    words = ["chat", str(scene), "--turns", "--model", str(model), *FEW]
    done = CliRunner().invoke(app, words, input="What is this?\nAnd this?\n\nNever asked.\n")
    assert done.exit_code == 0 and len(calls) == 2 and calls[0] == []
    question, answer = calls[1]
    assert question == {"role": "user", "content": "What is this?"} and answer["role"] == "assistant"
    assert done.stdout.startswith(answer["content"] + "\n")


@pytest.mark.parametrize("files", [("{scene}",), ("{scene}", "-"), ("missing.png",)])
def test_missing_question_is_prompted_or_one_sentence(
    scene: Path, model: Path, files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    given = [str(file).format(scene=scene) for file in files]
    words = ["chat", *given, "--model", str(model), *FEW]
    assert_refused(CliRunner().invoke(app, words), "there is no question behind")
    monkeypatch.setattr("polydraft.apps.cli.chat.is_interactive", lambda: True)
    asked = CliRunner().invoke(app, words, input="What is this?\n")
    if files != ("{scene}",):  # standard input is an image, or empty
        assert_refused(asked, "there is no question" if "-" in files else "missing.png")
        return
    given_at_once = run("chat", *given, "What is this?", "--model", model, *FEW)
    assert asked.exit_code == 0 and "Question" in asked.stderr
    assert asked.stdout.endswith(given_at_once.stdout)  # after the typed question


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.png", "Why?"), "missing.png"),
        (("{scene}", ""), "question"),
        (("{scene}", "Why?", "--method", "eagle2"), "eagle"),
        (("{scene}", "Why?", "--drafter", "nowhere"), "nowhere"),
        (("{scene}", "Why?", "--compare", "--method", "ar"), "--compare"),
        (("{scene}", "--turns", "--json"), "--turns"),
        (("{scene}", "--turns", "--map", "runs.png"), "--map"),
        (("{scene}", "Why?", "--map", "runs.txt"), "runs.txt"),
        (("{text}", "Why?"), "no image"),
    ],
)
def test_mistakes_are_one_sentence(scene: Path, model: Path, tmp_path: Path, words: tuple[str, ...], message: str):
    (tmp_path / "text.png").write_text("no picture")
    given = [word.format(scene=scene, text=tmp_path / "text.png") for word in words]
    assert_refused(run("chat", *given, "--model", model), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [(("missing.png", "Why?"), "missing.png"), (("{scene}", " "), "question"), (("-", "Why?"), "input")],
)
def test_arguments_are_checked_before_loading_model(
    scene: Path, model: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *args, **named: pytest.fail("a model was loaded"))
    assert_refused(run("chat", *(word.format(scene=scene) for word in words), "--model", model), message)


def test_max_pixels_option_shrinks_large_images(folder_of: Callable[[str], Path], tmp_path: Path):
    picture(400, 300).save(tmp_path / "a.png")
    words = ("chat", tmp_path / "a.png", "What?", "--model", folder_of("qwen2_5_vl"), *FEW, "--temperature", "0")
    whole, bounded = (run(*words, *more) for more in ((), ("--max-pixels", "1000")))
    assert whole.exit_code == bounded.exit_code == 0 and whole.stdout != bounded.stdout
    assert_refused(run(*words, "--max-pixels", "5"), "max_pixels=5")


def test_speech_model_is_refused(scene: Path):
    assert_refused(run("chat", scene, "Why?", "--model", "tiny-speech"), "speech")


def test_empty_standard_input_is_refused(model: Path):
    done = CliRunner().invoke(app, ["chat", "-", "Why?", "--model", str(model)], input=b"no picture")
    assert_refused(done, "standard input")


def test_bench_times_transformers_baseline(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(baseline, "NOISE", math.inf)  # timings of a busy machine decide nothing
    done = run(
        "bench", "vlm", "--model", model, "--prompts", "1", "--repeats", "1", "--methods", "pld,jacobi",
        "--max-new-tokens", "6", "-o", tmp_path / "out", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    blocks = json.loads(done.stdout)["blocks"]
    assert [block["temperature"] for block in blocks] == [0.0, 1.0]
    names = [row["method"] for row in blocks[0]["rows"]]
    assert names[:4] == ["ar", "pld", "jacobi", "transformers generate"]
    assert all(row["identical"] for row in blocks[0]["rows"] if row["guarantee"] == "identical")
    assert (tmp_path / "out" / "vlm.png").exists() and (tmp_path / "out" / "vlm.md").exists()


def test_temperatures_option_must_be_numbers(model: Path):
    assert_refused(run("bench", "vlm", "--model", model, "--temperatures", "hot"), "--temperatures")


def test_thin_image_is_refused(tmp_path: Path):
    Image.new("1", (1, 20_000)).save(tmp_path / "thin.png")
    assert_refused(run("chat", tmp_path / "thin.png", "Why?", "--model", "tiny-vlm"), "nearer to a square")
