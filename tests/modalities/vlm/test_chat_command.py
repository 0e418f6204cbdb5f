"""`polydraft chat` and `polydraft bench vlm`: answers on stdout, all else on stderr, one sentence for mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from polydraft.apps.cli import app
from polydraft.apps.commands.maps.drawing import COLOURS
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


@pytest.mark.filterwarnings("error::FutureWarning")  # transformers', which users would read
def test_the_answer_alone_goes_to_stdout(scene: Path, model: Path):
    done = run("chat", scene, "What is this?", "--model", model, *FEW)
    assert done.exit_code == 0, done.stderr
    told = run("chat", scene, "What is this?", "--model", model, *FEW, "--json")
    value = json.loads(told.stdout)
    assert done.stdout == value["answer"] + "\n" and "target passes" in done.stderr
    assert value["tokens"] == 8 and value["finish_reason"] == "length" and "--max-new-tokens" in done.stderr


def test_a_picture_may_come_from_standard_input(scene: Path, model: Path):
    words = ["--model", str(model), *FEW]
    piped = CliRunner().invoke(app, ["chat", "-", "What is this?", *words], input=scene.read_bytes())
    assert piped.exit_code == 0 and piped.stdout == run("chat", scene, "What is this?", *words).stdout


def test_compare_sets_plain_decoding_beside_it(scene: Path, model: Path):
    done = run("chat", scene, scene, "What has changed?", "--model", model, *FEW, "--compare", "--json")
    assert json.loads(done.stdout)["compare"]["identical"] is True


def test_a_map_shows_every_run(scene: Path, model: Path, tmp_path: Path):
    """Its pixels hold the colours of the passes, and change with the runs."""
    words = ("chat", scene, "What is this?", "--model", model, *FEW, "--temperature", "0")
    for name, method in (("plain.png", "ar"), ("runs.jpg", "jacobi(window=4)")):
        done = run(*words, "--method", method, "--map", tmp_path / name, "--json")
        assert json.loads(done.stdout)["map"] == str(tmp_path / name)
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "runs.jpg") as drafted:
        assert plain.size == drafted.size and plain.text["prompt"] == "What is this?"
        colours = {colour for _, colour in plain.getcolors(1 << 20)}
        assert {COLOURS[0], COLOURS[6]} < colours  # of eight passes, in the bars


def test_turns_remember_what_was_said(scene: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    honest, heard = VLMPipeline.stream, []

    def listening(pipe: VLMPipeline, *args: Any, **named: Any) -> Any:
        heard.append(named["messages"])
        return honest(pipe, *args, **named)

    monkeypatch.setattr(VLMPipeline, "stream", listening)
    words = ["chat", str(scene), "--turns", "--model", str(model), *FEW]
    done = CliRunner().invoke(app, words, input="What is this?\nAnd this?\n\nNever asked.\n")
    assert done.exit_code == 0 and len(heard) == 2 and heard[0] == []
    question, answer = heard[1]
    assert question == {"role": "user", "content": "What is this?"} and answer["role"] == "assistant"
    assert done.stdout.startswith(answer["content"] + "\n")


@pytest.mark.parametrize("files", [("{scene}",), ("{scene}", "-"), ("missing.png",)])
def test_missing_question_is_asked_for_or_one_sentence(
    scene: Path, model: Path, files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    given = [str(file).format(scene=scene) for file in files]
    words = ["chat", *given, "--model", str(model), *FEW]
    assert_refused(CliRunner().invoke(app, words), "there is no question behind")
    monkeypatch.setattr("polydraft.apps.commands.chat.is_interactive", lambda: True)
    asked = CliRunner().invoke(app, words, input="What is this?\n")
    if files != ("{scene}",):  # standard input is a picture, or there is none
        assert_refused(asked, "there is no question" if "-" in files else "missing.png")
        return
    given_at_once = run("chat", *given, "What is this?", "--model", model, *FEW)
    assert asked.exit_code == 0 and "Question" in asked.stderr
    assert asked.stdout.endswith(given_at_once.stdout)  # behind what was typed


@pytest.mark.parametrize(
    ("words", "says"),
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
def test_mistakes_are_one_sentence(scene: Path, model: Path, tmp_path: Path, words: tuple[str, ...], says: str):
    (tmp_path / "text.png").write_text("no picture")
    given = [word.format(scene=scene, text=tmp_path / "text.png") for word in words]
    assert_refused(run("chat", *given, "--model", model), says)


@pytest.mark.parametrize(
    ("words", "says"),
    [(("missing.png", "Why?"), "missing.png"), (("{scene}", " "), "question"), (("-", "Why?"), "input")],
)
def test_what_is_asked_is_checked_before_a_model_is_loaded(
    scene: Path, model: Path, words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *args, **named: pytest.fail("a model was loaded"))
    assert_refused(run("chat", *(word.format(scene=scene) for word in words), "--model", model), says)


def test_large_pictures_are_made_smaller_where_asked(folder_of: Callable[[str], Path], tmp_path: Path):
    picture(400, 300).save(tmp_path / "a.png")
    words = ("chat", tmp_path / "a.png", "What?", "--model", folder_of("qwen2_5_vl"), *FEW, "--temperature", "0")
    whole, bounded = (run(*words, *more) for more in ((), ("--max-pixels", "1000")))
    assert whole.exit_code == bounded.exit_code == 0 and whole.stdout != bounded.stdout
    assert_refused(run(*words, "--max-pixels", "5"), "max_pixels=5")


def test_a_speech_model_cannot_chat(scene: Path):
    assert_refused(run("chat", scene, "Why?", "--model", "tiny-speech"), "speech")


def test_no_picture_on_standard_input(model: Path):
    done = CliRunner().invoke(app, ["chat", "-", "Why?", "--model", str(model)], input=b"no picture")
    assert_refused(done, "standard input")


def test_the_bench_times_transformers_too(model: Path, tmp_path: Path):
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


def test_temperatures_are_numbers(model: Path):
    assert_refused(run("bench", "vlm", "--model", model, "--temperatures", "hot"), "--temperatures")


def test_a_thin_picture_is_refused(tmp_path: Path):
    Image.new("1", (1, 20_000)).save(tmp_path / "thin.png")
    assert_refused(run("chat", tmp_path / "thin.png", "Why?", "--model", "tiny-vlm"), "nearer to a square")
