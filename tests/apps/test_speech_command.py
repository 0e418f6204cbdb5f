"""`polydraft speech`: files, streams, comparison, refusals, and stopped runs that leave no files."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from polydraft import generate_speech
from polydraft.apps.cli.main import STOPPED
from polydraft.apps.terminal import outcome

from ..covering import first
from .command_line import ENVIRONMENT, ROOT, assert_refused, run

TEXT = "We will meet again tomorrow."
COMMAND = [sys.executable, "-m", "polydraft", "speech"]


@pytest.mark.parametrize("suffix", first(2, ["wav", "opus", "flac", "mp3", "ogg"]))
def test_speech_writes_every_file_format(suffix: str, tmp_path: Path) -> None:
    done = run("speech", "Yes.", "-o", tmp_path / f"x.{suffix}", "--voice", "rms")
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "τ" in done.stdout and f"x.{suffix}" in done.stdout
    sound, rate = soundfile.read(tmp_path / f"x.{suffix}")
    assert rate in (16_000, 48_000) and 0.2 < len(sound) / rate < 4 and np.abs(sound).max() > 0.05


def test_speech_compare_reports_speedup_identity_and_map(tmp_path: Path) -> None:
    done = run("speech", TEXT, "--compare", "--map", tmp_path / "map.png", "--json", "-o", tmp_path / "x.wav")
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["compare"]["identical"] is True and value["compare"]["speedup"] > 0
    assert value["stats"]["mean_accepted_length"] > 1 and value["finish_reason"] == "eos"
    assert value["seconds"] == pytest.approx(soundfile.info(tmp_path / "x.wav").duration)
    assert Image.open(tmp_path / "map.png").width > 500


def test_speech_compare_violated_guarantee_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "same", lambda result, plain: False)
    done = run("speech", "Yes.", "--compare", "-o", tmp_path / "x.wav")
    assert done.exit_code == 1 and "promise" in done.stderr


def test_speech_stdin_text_streams_audio_of_file() -> None:
    done = subprocess.run(
        [*COMMAND, "-", "--stream", "-", "--seed", "3"], input=TEXT.encode(), env=ENVIRONMENT, capture_output=True,
        check=True,
    )  # fmt: skip
    with wave.open(io.BytesIO(done.stdout)) as sound:
        assert sound.getframerate() == 16_000
        samples = np.frombuffer(sound.readframes(10**7), "<i2")
    whole = generate_speech(TEXT, seed=3).audio
    assert len(samples) == len(whole) and np.abs(samples / 32767 - whole.clip(-1, 1)).max() < 1e-3


def test_unpronounceable_text_is_reported(tmp_path: Path) -> None:
    done = run("speech", "Yes \N{GRINNING FACE}.", "-o", tmp_path / "x.wav")
    assert done.exit_code == 0 and "\N{GRINNING FACE}" in done.stderr


def test_models_list_their_voices() -> None:
    text = run("models", "tiny-speech").stdout
    assert all(word in text for word in ("slt", "rms", "awb", "kal16", "polydraft speech"))


BAD = {
    "empty text": ([""], "text"),
    "blank text": (["  \n"], "text"),
    "long text": (["word " * 20_000], "100000"),
    "only emoji": (["\N{GRINNING FACE} \N{ROCKET}"], "pronounced"),
    "another script": (["Привет, мир"], "pronounced"),
    "unknown voice": ([TEXT, "--voice", "hal"], "slt"),
    "too slow": ([TEXT, "--speed", "0.2"], "0.25"),
    "too fast": ([TEXT, "--speed", "4.5"], "0.25"),
    "speed nan": ([TEXT, "--speed", "nan"], "speed"),
    "unknown model": ([TEXT, "--model", "tiny-speach"], "tiny-speach"),
    "a model of images": ([TEXT, "--model", "tiny-image"], "tiny-speech"),
    "unknown method": ([TEXT, "--method", "warp"], "warp"),
    "no head of that kind": ([TEXT, "--method", "eagle2"], "eagle"),
    "unknown format": ([TEXT, "--format", "aac"], "aac"),
    "a stream of mp3": ([TEXT, "--stream", "-", "--format", "mp3"], "mp3"),
    "a stream to a file": ([TEXT, "--stream", "x.wav"], "--output"),
    "a compared stream": ([TEXT, "--stream", "-", "--compare"], "--compare"),
    "compare plain": ([TEXT, "--compare", "--method", "ar"], "--compare"),
    "negative temperature": ([TEXT, "--temperature", "-1"], "temperature"),
    "negative seed": ([TEXT, "--seed", "-1"], "seed"),
}


@pytest.mark.parametrize("name", BAD)
def test_speech_invalid_input_one_sentence_no_file(name: str, tmp_path: Path) -> None:
    arguments, word = BAD[name]
    output = [] if "--stream" in arguments or "--format" in arguments else ["-o", tmp_path / "x.wav"]
    before = set(os.listdir("."))
    assert_refused(run("speech", *arguments, *output), word)
    assert os.listdir(tmp_path) == [] and set(os.listdir(".")) == before


@pytest.mark.parametrize("place", ["missing/x.wav", "x.aac", "x"])
def test_unwritable_output_is_refused_before_the_model_loads(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("the model was loaded"))
    assert_refused(run("speech", TEXT, "-o", tmp_path / place), place)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_stops_and_leaves_no_files(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, (ROOT / "LICENSE").read_text()[:3000], "--method", "ar", "-o", str(tmp_path / "x.wav")],
        env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # A background shell ignores it.
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("speaking"):
                break
        assert process.poll() is None, "ended before it could be stopped"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == STOPPED and out == "" and err.splitlines()[-1] == "stopped", err
    assert os.listdir(tmp_path) == []
