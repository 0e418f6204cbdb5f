"""`polydraft bench listen`: one true run on a tiny model, what its figures are over, and which recordings it reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polydraft.apps.bench.listen import contenders
from polydraft.apps.bench.listen.contenders import TranscriptionMethod, faster_whisper_contender
from polydraft.apps.bench.listen.result import headers, rows_of
from polydraft.apps.bench.listen.run import choose_recordings
from polydraft.apps.data.labelled_recordings import read_aloud, read_recordings
from polydraft.apps.measure.peers import faster_whisper
from polydraft.apps.measure.peers.faster_whisper import FasterWhisper, fastest_compute_type
from polydraft.apps.measure.peers.whisper import SpeechOptions
from polydraft.apps.measure.table import PEER, PLAIN
from polydraft.apps.measure.transcription import LabelledRecording, TranscriptionRun
from polydraft.apps.measure.word_errors import text_normaliser
from polydraft.core.errors import DataUnavailable, InvalidArgument
from polydraft.core.stats import DecodeStats
from polydraft.modalities.loading import load
from polydraft.modalities.transcription.pipeline import WhisperPipeline

from ....modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from ...command_line import assert_refused, run

soundfile = pytest.importorskip("soundfile")
OPTIONS = SpeechOptions("en", timestamps=True, temperatures=(0.0,))
SECOND = np.zeros(SAMPLE_RATE, np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two recordings, of which one has a text."""
    made = tmp_path_factory.mktemp("data")
    for name, seconds in (("a", 1.5), ("b", 3.0)):
        soundfile.write(made / f"{name}.wav", tone(seconds), SAMPLE_RATE)
    (made / "a.txt").write_text("a word")
    return made


def test_bench_reports_methods_and_engines(folder: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the decoder of sound files is in the extra listen")
    done = run(
        "bench", "listen", "--data", data, "--model", folder, "--methods", "suffix,recycling", "--repeats", "1",
        "--dtype", "float32", "--json", "-o", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    rows = {row["method"]: row for row in value["methods"]}
    engines = set(rows) - {"ar", "suffix", "recycling"}
    assert PEER in engines and (len(engines) == 2 or value["left_out"])
    assert value["recordings"] == 2 and value["seconds"] == pytest.approx(4.5)
    for name in ("ar", "suffix", "recycling"):
        assert rows[name]["identical"] is True and rows[name]["same_text"] == 1
        assert rows[name]["speedup"]["median"] > 0 and rows[name]["errors"]["words"] == 2
    assert rows[PEER]["speedup"] is None and rows[PEER]["over"]["hf"]["median"] == 1
    for row in rows.values():
        stages = {stage: spread["median"] for stage, spread in row["stage_seconds"].items()}
        assert min(stages.values()) > 0 and set(stages) == {"features", "encoder", "decoder"}
    assert "| suffix | identical | 100 % |" in (tmp_path / "out" / "listen.md").read_text()
    assert Image.open(tmp_path / "out" / "listen.png").width > 500


def test_violated_guarantee_fails_the_run(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="the decoder of sound files is in the extra listen")
    usual = TranscriptionMethod.decode

    def wrong(self: TranscriptionMethod, recording: LabelledRecording) -> TranscriptionRun:
        done = usual(self, recording)
        if self.spec.name != PLAIN:
            done.outputs[0] = done.outputs[0] + 1
        return done

    monkeypatch.setattr(TranscriptionMethod, "decode", wrong)
    done = run(
        "bench", "listen", "--data", data / "a.wav", "--model", folder, "--methods", "suffix", "--repeats", "1",
        "--no-peers",
    )  # fmt: skip
    assert done.exit_code == 1 and "suffix promised identical tokens" in done.stderr


@pytest.mark.parametrize("name", ["recycling", "suffix"])
def test_renewed_method_transcribes_as_the_first_time(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WhisperPipeline, "node_budget", lambda *_: None)  # which follows the clock
    method = TranscriptionMethod(load(folder, dtype="float32"), name, OPTIONS)
    recording = LabelledRecording("tone", tone(4.5, 3), None)
    first, second = method.decode(recording), method.decode(recording)
    method.renew()
    renewed = method.decode(recording)
    assert second.passes < first.passes == renewed.passes
    assert first.texts == second.texts == renewed.texts and first.texts[0]


def turn(decode: float, wall: float, text: str, passes: int | None = None) -> TranscriptionRun:
    """Return a transcript of four tokens, half of whose time is the encoder's; passes are a method's."""
    stats = None if passes is None else DecodeStats("m", "identical", 4, passes, decode_seconds=decode)
    return TranscriptionRun(decode, 4, [torch.arange(4)], stats, passes or 0, (text,), wall, 0.1, wall / 2)


def test_rows_compare_time_words_and_texts() -> None:
    recordings = [LabelledRecording("a", SECOND, "It's twenty dogs."), LabelledRecording("b", SECOND, None)]
    rounds = {
        PLAIN: [[turn(1.0, 2.0, "It is 20 docks", 4), turn(1.0, 2.0, "x", 4)]],
        "method": [[turn(0.5, 1.0, "It is 20 docks", 2), turn(0.5, 1.0, "x", 2)]],
        "engine": [[turn(9.0, 4.0, "It is 20 dogs and", None), turn(9.0, 4.0, "x", None)]],
    }
    plain, method, engine = rows = rows_of(rounds, recordings, {"engine": "e"}, text_normaliser("en"))
    assert method.speedup is not None and method.speedup.median == 2 and method.tau == 2
    assert method.rtf.median == 1 and method.stage_seconds["encoder"].median == 1
    assert method.stage_seconds["decoder"].median == pytest.approx(2 - 0.2 - 1)
    assert {name: spread.median for name, spread in method.over.items()} == {PLAIN: 2, "e": 4}
    assert method.errors is not None and (method.errors.words, method.errors.substitutions) == (4, 1)
    assert engine.errors is not None and (engine.errors.insertions, engine.errors.rate) == (1, 0.25)
    assert engine.speedup is None and engine.same_text == 0.5 and engine.identical is None
    assert plain.same_text == method.same_text == 1 and not method.is_broken
    assert all(len(row.cells()) == len(headers(rows)) for row in rows)


def test_recordings_are_read_with_their_texts(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the decoder of sound files is in the extra listen")
    found = read_recordings(str(data), None)
    assert [(each.name, each.text, len(each.audio)) for each in found] == [
        ("a.wav", "a word", 1.5 * SAMPLE_RATE), ("b.wav", None, 3 * SAMPLE_RATE)
    ]  # fmt: skip
    assert [each.name for each in read_recordings(str(data), 1)] == ["a.wav"]
    lines = tmp_path / "list.jsonl"
    lines.write_text(json.dumps({"audio": str(data / "b.wav"), "text": "other"}))
    assert [each.text for each in read_recordings(str(lines), None)] == ["other"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "a"}, "names no recording"),
        ({"audio": "none.wav"}, "cannot be used"),
        ({"audio": "a.wav", "text": 3}, "has the text 3"),
    ],
)
def test_wrong_records_are_refused(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    pytest.importorskip("av", reason="the decoder of sound files is in the extra listen")
    (tmp_path / "list.jsonl").write_text(json.dumps(line))
    with pytest.raises(DataUnavailable, match=f"line 1 of .*{message}"):
        read_recordings(str(tmp_path), None)


def test_impossible_requests_are_refused(data: Path, tmp_path: Path) -> None:
    assert_refused(run("bench", "listen", "--data", tmp_path / "none"), "no recordings")
    assert_refused(run("bench", "listen", "--temperatures", "warm"), "--temperatures warm")
    with pytest.raises(InvalidArgument, match="12 passages"):
        read_aloud(13)
    pytest.importorskip("av", reason="the decoder of sound files is in the extra listen")
    with pytest.raises(InvalidArgument, match="--warm-ups 2 leaves none"):
        choose_recordings(str(data), None, 2)
    assert len(choose_recordings(str(data), None, 1)) == 2


class FakeModel:
    """Stand-in for faster-whisper's model: two windows, each encoded once it is read."""

    made: list[dict[str, Any]] = []

    def __init__(self, folder: str, **options: Any) -> None:
        self.options, self.feature_extractor = options, SimpleNamespace(n_samples=SAMPLE_RATE)
        self.made.append(options)

    def encode(self, features: Any) -> Any:
        return features

    def transcribe(self, audio: Any, **options: Any) -> Any:
        self.options |= options
        words = ["one", "two"] if self.options["compute_type"] == "int8" else ["one", "too"]
        return (SimpleNamespace(text=f" {word}", tokens=[self.encode(1), 2]) for word in words), None


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, library = ModuleType("faster_whisper"), ModuleType("ctranslate2")
    engine.WhisperModel = FakeModel  # type: ignore[attr-defined]
    library.set_random_seed = lambda seed: None  # type: ignore[attr-defined]
    library.get_supported_compute_types = lambda device: {"int8", "float32", "int16"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "faster_whisper", engine)
    monkeypatch.setitem(sys.modules, "ctranslate2", library)
    monkeypatch.setattr(FakeModel, "made", [])


def test_faster_whisper_is_asked_for_greedy_text(fake_engine: None) -> None:
    peer = FasterWhisper(Path("model"), "int8", SpeechOptions("en", False, (0.0, 0.4)))
    done = peer.decode(LabelledRecording("short", SECOND, None))
    assert done.texts == ("one two",) and done.outputs[0].tolist() == [1, 2, 1, 2]
    assert 0 < done.stages["encoder"] < done.wall_seconds
    asked = peer.model.options
    assert asked["cpu_threads"] == torch.get_num_threads() and asked["beam_size"] == asked["best_of"] == 1
    assert asked["temperature"] == [0.0, 0.4] and asked["without_timestamps"] is True
    peer.decode(LabelledRecording("long", np.tile(SECOND, 2), None))
    assert asked["without_timestamps"] is False and asked["condition_on_previous_text"] is False


def test_fastest_compute_type_of_machine_is_taken(fake_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = FasterWhisper.decode
    seconds = {"int8": iter((1.0, 9.0, 8.0)), "float32": iter((9.0, 3.0, 2.0))}  # the first of each warms up

    def decode(self: FasterWhisper, recording: LabelledRecording) -> TranscriptionRun:
        done = usual(self, recording)
        spent = next(seconds[self.model.options["compute_type"]])
        return TranscriptionRun(0.0, 4, texts=done.texts, wall_seconds=spent)

    monkeypatch.setattr(FasterWhisper, "decode", decode)
    recording = LabelledRecording("short", SECOND, None)
    assert fastest_compute_type(Path("model"), recording, OPTIONS, "cpu") == "float32"
    assert [options["compute_type"] for options in FakeModel.made] == ["int8", "float32"]


def test_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "find_spec", lambda package: None)
    with faster_whisper_contender(None, OPTIONS, None, None) as (contender, reason):  # type: ignore[arg-type]
        assert contender is None and "polydraft[peers]" in reason and faster_whisper.NAME in reason
