"""`polydraft transcribe`: files, standard streams, several recordings, comparison, refusals, and stopped runs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner

from polydraft import generate_speech, transcribe
from polydraft.apps.cli import transcribe as command
from polydraft.apps.cli.main import STOPPED, app
from polydraft.apps.terminal import outcome, terminal
from polydraft.modalities.packaged import PACKAGED
from polydraft.modalities.transcription.result import FORMATS

from ..modalities.transcription.spliced_folders import write_spliced
from ..modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from .command_line import ENVIRONMENT, assert_refused, run

SECONDS = 5.0  # of sound: three windows of the tiny model
GREEDY = ("--temperature", "0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Whisper."""
    return write_tiny_whisper(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Return a sound file."""
    return write_sound(tmp_path / "talk.wav")


def write_sound(file: Path, seed: int = 0, seconds: float = SECONDS) -> Path:
    soundfile.write(file, tone(seconds, seed), SAMPLE_RATE)
    return file


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_written_as_rendered(suffix: str, model: Path, talk: Path, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    done = run("transcribe", talk, "-o", path, "--model", model, *GREEDY)
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and all(word in done.stdout for word in (path.name, "τ", "RTF", "5.0 s"))
    assert path.read_text() == transcribe(talk, model=model, temperature=0.0).render(suffix)


def test_text_goes_to_standard_output(model: Path, talk: Path) -> None:
    done = run("transcribe", talk, "--model", model, *GREEDY)
    assert done.exit_code == 0 and done.stdout == transcribe(talk, model=model, temperature=0.0).render(".txt")
    assert len(done.stdout.splitlines()) > 1 and "RTF" in done.stderr and "s of sound" in done.stderr


def test_segments_are_shown_before_the_end(model: Path, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    @contextmanager
    def recorded(label: str, unit: str) -> Iterator[Callable[[float, float, int, str], None]]:
        yield lambda done, total, passes, text: events.append(f"{done:.0f}/{total:.0f}")

    monkeypatch.setattr(command, "text_progress", recorded)
    monkeypatch.setattr(command, "print_segment", lambda segment: events.append("segment"))
    assert run("transcribe", talk, "--model", model, *GREEDY).exit_code == 0
    assert events[0] == "0/5" and events[-1] == "5/5" and events.index("segment") < events.index("2/5")


@pytest.mark.parametrize("extra", [(), ("--compare",)])
def test_standard_input_is_a_recording(extra: tuple[str, ...], model: Path, talk: Path) -> None:
    arguments = ["transcribe", "-", "--model", str(model), *GREEDY, *extra]
    done = CliRunner().invoke(app, arguments, input=talk.read_bytes())
    assert done.exit_code == 0, done.stderr
    assert done.stdout == run("transcribe", talk, "--model", model, *GREEDY).stdout
    assert "standard input: 5.0 s" in done.stderr


def test_options_reach_the_model(model: Path, talk: Path, tmp_path: Path) -> None:
    given = [
        "--language", "german", "--translate", "--prompt", "abc", "--condition-on-previous", "--seed", "4",
        "--temperature", "0.5", "--temperature", "1", "--method", "ar", "--dtype", "float32",
    ]  # fmt: skip
    done = run("transcribe", talk, "--model", model, *given, "--json")
    expected = transcribe(
        talk, model=model, language="de", task="translate", initial_prompt="abc", condition_on_previous=True, seed=4,
        temperature=[0.5, 1.0], method="ar", dtype="float32",
    )  # fmt: skip
    value = json.loads(done.stdout)
    assert value["text"] == expected.text != transcribe(talk, model=model, temperature=0.0).text
    assert (value["language"], value["task"], value["method"]) == ("de", "translate", "ar")
    short = write_sound(tmp_path / "short.wav", seconds=1.5)
    for option in ("--timestamps", "--no-timestamps"):
        text = run("transcribe", short, "--model", model, *GREEDY, option).stdout
        wanted = transcribe(short, model=model, temperature=0.0, timestamps=option == "--timestamps")
        assert text == wanted.render(".txt")


def test_hypothesis_leaves_the_text_as_it_is(model: Path, talk: Path, tmp_path: Path) -> None:
    arguments = ("transcribe", talk, "--model", model, *GREEDY, "--no-timestamps", "--json")
    arguments = (*arguments, "--method", "hypothesis")
    first = json.loads(run(*arguments).stdout)  # copies nothing
    (tmp_path / "draft.txt").write_text(first["text"], encoding="utf-8")
    second = json.loads(run(*arguments, "--hypothesis", tmp_path / "draft.txt").stdout)
    assert second["text"] == first["text"] and second["stats"]["target_passes"] < first["stats"]["target_passes"]


def test_compare_reports_speedup_and_identity(model: Path, talk: Path, tmp_path: Path) -> None:
    done = run("transcribe", talk, "--model", model, *GREEDY, "--compare", "--json", "-o", tmp_path / "x.srt")
    value = json.loads(done.stdout)
    assert value["compare"]["identical"] is True and value["compare"]["speedup"] > 0
    assert value["stats"]["mean_accepted_length"] > 1 and value["duration"] == SECONDS
    assert value["real_time_factor"] == pytest.approx(value["seconds"] / SECONDS)
    assert "-->" in (tmp_path / "x.srt").read_text()
    line = run("transcribe", talk, "--model", model, *GREEDY, "--compare").stderr.splitlines()[-1]
    assert line.startswith("plain decoding:") and "S " in line and line.endswith("the same tokens")


def test_violated_guarantee_fails(model: Path, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "same", lambda result, plain: False)
    done = run("transcribe", talk, "--model", model, *GREEDY, "--compare")
    assert done.exit_code == 1 and "promise" in done.stderr


# --- several recordings


def test_several_recordings_fill_a_folder(model: Path, talk: Path, tmp_path: Path) -> None:
    other, broken = write_sound(tmp_path / "other.wav", seed=1), tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF" + bytes(100))
    out = tmp_path / "new" / "out"
    files = (talk, broken, tmp_path / "missing.wav", other)
    done = run("transcribe", *files, "-o", out, "--format", "vtt", "--model", model, *GREEDY)
    assert done.exit_code == 1 and sorted(os.listdir(out)) == ["other.vtt", "talk.vtt"]
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        str(out / "talk.vtt"),
        str(out / "other.vtt"),
    ]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "broken.wav" in errors[0] and "missing.wav" in errors[1]
    assert done.stderr.splitlines()[-1] == "2 of 4 recordings transcribed"
    assert (out / "other.vtt").read_text() == transcribe(other, model=model, temperature=0.0).render(".vtt")


def test_several_recordings_are_one_json(model: Path, talk: Path, tmp_path: Path) -> None:
    done = run("transcribe", talk, tmp_path / "missing.wav", "--json", "--model", model, *GREEDY)
    value = json.loads(done.stdout)
    assert done.exit_code == 1 and (value["done"], value["failed"]) == (1, 1)
    by_file = {Path(entry["file"]).name: entry for entry in value["files"]}
    assert by_file["missing.wav"]["error"]["type"] == "PromptError" and by_file["talk.wav"]["text"]


def test_several_texts_have_headings(model: Path, talk: Path, tmp_path: Path) -> None:
    other = write_sound(tmp_path / "other.wav", seed=1)
    texts = [transcribe(file, model=model, temperature=0.0).render(".txt") for file in (talk, other)]
    done = run("transcribe", talk, other, "--model", model, *GREEDY)
    assert done.stdout == f"==> {talk} <==\n{texts[0]}==> {other} <==\n{texts[1]}"


def test_format_writes_beside_each_recording(model: Path, talk: Path, tmp_path: Path) -> None:
    other = write_sound(tmp_path / "other.wav", seed=1)
    assert run("transcribe", talk, other, "--format", "tsv", "--model", model, *GREEDY).exit_code == 0
    assert {"talk.tsv", "other.tsv"} <= set(os.listdir(tmp_path))


def test_folder_of_one_recording_holds_text(model: Path, talk: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run("transcribe", talk, "-o", tmp_path / "out", "--model", model, *GREEDY).exit_code == 0
    assert os.listdir(tmp_path / "out") == ["talk.txt"]


def test_recording_that_breaks_later_stops_no_other(model: Path, talk: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.flac"
    soundfile.write(cut, tone(SECONDS, 1), SAMPLE_RATE)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    done = run("transcribe", cut, talk, "-o", tmp_path / "out", "--model", model, *GREEDY)
    assert done.exit_code == 1 and os.listdir(tmp_path / "out") == ["talk.txt"], done.stderr
    assert_refused(run("transcribe", cut, "-o", tmp_path / "x.txt", "--model", model, *GREEDY), "cut.flac")
    assert not (tmp_path / "x.txt").exists()


# --- refusals

BAD = {
    "no file": (["missing.wav"], "missing.wav"),
    "an address": (["https://example.org/talk.mp3"], "address"),
    "a text": (["text.txt"], "text.txt"),
    "unknown format": (["talk.wav", "--format", "doc"], "doc"),
    "misspelt format": (["talk.wav", "--format", "str"], "did you mean 'srt'"),
    "contradicting format": (["talk.wav", "--format", "srt", "-o", "x.txt"], "--format"),
    "unknown ending": (["talk.wav", "-o", "x.doc"], ".srt"),
    "missing folder": (["talk.wav", "-o", "missing/x.srt"], "missing/x.srt"),
    "a file for several": (["talk.wav", "text.txt", "-o", "x.srt"], "folder"),
    "one file of two": (["talk.wav", "talk.mp3", "-o", "out"], "talk.mp3"),
    "beside standard input": (["-", "--format", "srt"], "--output"),
    "standard input twice": (["-", "-"], "once"),
    "unknown model": (["talk.wav", "--model", "whisper-bas"], "did you mean 'whisper-base'"),
    "a model of images": (["talk.wav", "--model", "tiny-image"], "whisper-base"),
    "unknown method": (["talk.wav", "--method", "warp"], "warp"),
    "a method of codes": (["talk.wav", "--method", "lantern"], "codebook"),
    "compare plain": (["talk.wav", "--compare", "--method", "ar"], "--compare"),
    "unknown language": (["talk.wav", "--language", "klingon"], "klingon"),
    "unknown task": (["talk.wav", "--task", "sing"], "translate"),
    "negative temperature": (["talk.wav", "--temperature", "-1"], "temperature"),
    "negative seed": (["talk.wav", "--seed", "-1"], "seed"),
    "missing hypothesis": (["talk.wav", "--hypothesis", "missing.txt"], "missing.txt"),
    "hypothesis of two": (["talk.wav", "text.txt", "--hypothesis", "text.txt"], "--hypothesis"),
    "no width": (["talk.wav", "-o", "x.srt", "--max-line-width", "0"], "max_line_width"),
    "width of no subtitles": (["talk.wav", "-o", "x.txt", "--max-line-width", "40"], "--max-line-width"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_one_sentence_no_file(
    name: str, model: Path, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, word = BAD[name]
    (tmp_path / "text.txt").write_text("no sound")
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir())
    named = [] if "--model" in arguments else ["--model", model]
    assert_refused(run("transcribe", *arguments, *named), word)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "name", ["no file", "unknown ending", "missing folder", "missing hypothesis", "unknown method"]
)
def test_refusals_come_before_the_model_loads(
    name: str, model: Path, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("the model was loaded"))
    assert_refused(run("transcribe", *BAD[name][0], "--model", model), BAD[name][1])


# --- terminals, stopping, real models


def test_terminal_shows_progress_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", plain := io.StringIO())
    with terminal.text_progress("transcribing", "s of sound") as advance:
        advance(30.0, 44.4, 17, "so far")
        print("a segment")
    assert all(word in screen.getvalue() for word in ("transcribing", "30/44 s of sound, 17 passes", "so far"))
    assert plain.getvalue() == "a segment\n"


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_keeps_finished_files_only(model: Path, talk: Path, tmp_path: Path) -> None:
    long = write_sound(tmp_path / "long.wav", seconds=300.0)
    out = tmp_path / "out"
    arguments = ["transcribe", str(talk), str(long), "-o", str(out), "--model", str(model), *GREEDY, "--method", "ar"]
    process = subprocess.Popen(
        [sys.executable, "-m", "polydraft", *arguments], env=ENVIRONMENT | {"POLYDRAFT_CACHE": "off"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # A background shell ignores it.
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "/300 s of sound" in line:
                break
        assert process.poll() is None, "ended before it could be stopped"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == STOPPED and err.splitlines()[-1] == "stopped", err
    assert os.listdir(out) == ["talk.txt"]


@pytest.mark.parametrize("name", list(PACKAGED))
def test_packaged_models_hear_synthesised_speech(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := [package for package in PACKAGED[name].packages if find_spec(package) is None]:
        pytest.skip(f"{missing[0]} is not installed; the extra listen brings it")
    monkeypatch.setenv("POLYDRAFT_CACHE", str(tmp_path / "cache"))
    generate_speech("We will meet again tomorrow.", voice="rms").save(tmp_path / "x.wav")
    done: Any = run("transcribe", tmp_path / "x.wav", "--model", name, "--compare", "-o", tmp_path / "x.json")
    assert done.exit_code == 0, done.stderr
    assert "the same tokens" in done.stdout
    assert json.loads((tmp_path / "x.json").read_text())["text"] == "We will meet again tomorrow."


def test_model_with_spliced_sound_is_transcribed_alike(talk: Path, tmp_path: Path) -> None:
    """Its segments are pieces, and options that it lacks are refused before a file is touched."""
    model, path = write_spliced("voxtral", tmp_path / "voxtral"), tmp_path / "x.srt"
    done = run("transcribe", talk, "-o", path, "--model", model, "--method", "pld", *GREEDY)
    assert done.exit_code == 0, done.stderr
    wanted = transcribe(talk, model=model, method="ar", temperature=0.0)
    assert path.read_text() == wanted.render(".srt") and len(wanted.segments) == 3 and wanted.notes[0] in done.stderr
    for option, words in (("--timestamps", "voxtral writes no times"), ("--translate", "is not known to translate")):
        assert_refused(run("transcribe", talk, "--model", model, "--method", "pld", option), words)
    assert "Voxtral: writes down what is said" in run("models", model).stdout
