"""The scripts and the notebook of examples/, run as a reader would run them, on small models."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from polydraft.modalities.packaged import PACKAGED
from polydraft.modalities.world.scene import place_objects
from polydraft.modalities.world.worlds import WORLDS

from .apps.server.live import Live
from .modalities.text.conftest import write_model
from .modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from .modalities.vlm import conftest as vlm

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NOTEBOOK = json.loads((FOLDER / "tour.ipynb").read_text(encoding="utf-8"))
MAX_LINES = 40
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a script in an empty folder and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(script: str, *arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(str(FOLDER / script), run_name="__main__")
        return capsys.readouterr().out

    return call


def write_scenes(folder: Path, count: int = 1) -> list[Path]:
    """Write pictures that the embedded model understands."""
    files = [folder / f"scene-{index}.png" for index in range(count)]
    for index, file in enumerate(files):
        rng = np.random.default_rng(index)
        Image.fromarray(place_objects(WORLDS["flat"].random_composition(rng), rng).render()).save(file)
    return files


def write_tone(file: Path) -> Path:
    """Write two seconds of sound."""
    soundfile.write(file, tone(2.0), SAMPLE_RATE)
    return file


def write_llama(folder: Path) -> Path:
    write_model(folder, "llama")
    return folder


def test_scripts_are_short_enough_to_read() -> None:
    assert len(SCRIPTS) >= 7
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in SCRIPTS}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_every_script_is_run_by_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in SCRIPTS if f'run("{path.name}"' not in tests] == []


def test_drawn_image_is_the_plain_one(run: Run, tmp_path: Path) -> None:
    assert "same image: True" in run("draw.py")
    assert Image.open(tmp_path / "frogs.png").size == (128, 128)


def test_speech_is_written_while_synthesised(run: Run, tmp_path: Path) -> None:
    assert "passes of the model" in run("speak.py", "Hello.", "hello.wav")
    audio, _ = soundfile.read(tmp_path / "hello.wav")
    assert np.abs(audio).max() > 0.05 and len(audio) > 4000


def test_answers_are_those_of_one_question(run: Run, tmp_path: Path) -> None:
    (scene,) = write_scenes(tmp_path)
    printed = run("chat.py", scene)
    assert "same as alone: True" in printed and "How many frogs are there?" in printed


def test_recording_becomes_subtitles(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the extra listen reads sound files")
    model = write_tiny_whisper(tmp_path / "whisper")
    assert "tokens in" in run("transcribe.py", write_tone(tmp_path / "talk.wav"), "talk.srt", model)
    assert "-->" in (tmp_path / "talk.srt").read_text()


@pytest.mark.thorough
def test_spoken_words_are_transcribed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not PACKAGED["whisper-tiny.en"].is_installed:
        pytest.skip("needs the extra listen")
    monkeypatch.setenv("POLYDRAFT_CACHE", str(tmp_path / "cache"))
    run("speak.py", "We will meet again tomorrow.", "talk.wav")
    assert "tomorrow" in run("transcribe.py", "talk.wav", "talk.srt")


@pytest.mark.parametrize("kind", ["text", "picture", "sound"])
def test_transformers_text_stays_the_same(run: Run, tmp_path: Path, kind: str) -> None:
    prompts: dict[str, Callable[[], Any]] = {
        "text": lambda: "Why is the sky blue?",
        "picture": lambda: write_scenes(tmp_path)[0],
        "sound": lambda: write_tone(tmp_path / "talk.wav"),
    }
    models: dict[str, Callable[[Path], Any]] = {"text": write_llama, "picture": vlm.llava, "sound": write_tiny_whisper}
    models[kind](tmp_path / kind)
    printed = run("before_after_transformers.py", kind, tmp_path / kind, prompts[kind](), "12")
    before, after = printed.split("after, ")
    assert before.partition("s: ")[2].strip() == after.partition("s: ")[2].strip() != ""


def test_openai_client_reaches_a_live_server(run: Run, tmp_path: Path) -> None:
    live = Live()
    try:
        printed = run("openai_client.py", f"{live.url}/v1")
    finally:
        live.close()
    assert "tiny-speech" in printed and "frog" in printed.splitlines()[-1].removeprefix("How many frogs are there?")
    assert Image.open(tmp_path / "frogs.png").size == (128, 128)
    assert soundfile.info(tmp_path / "rain.wav").frames > 4000


def test_trained_drafter_gives_the_plain_answer(run: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    write_scenes(tmp_path / "photos", 4)
    assert "same answer: True" in run("train_drafter.py", tmp_path / "photos", tmp_path / "hydra", "0.01")


def test_notebook_is_in_the_fourth_format() -> None:
    assert NOTEBOOK["nbformat"] == 4 and NOTEBOOK["nbformat_minor"] >= 5
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and isinstance(cell["metadata"], dict)
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


def test_notebook_cells_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for index, cell in enumerate(each for each in NOTEBOOK["cells"] if each["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"tour.ipynb, code cell {index}", "exec"), names)
    assert (tmp_path / "rain.wav").is_file()
