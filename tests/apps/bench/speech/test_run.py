"""`bench speech` on the embedded voice: its measures, and its failure where a guarantee is violated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polydraft.apps.bench.speech import intelligibility
from polydraft.apps.bench.speech import run as bench
from polydraft.apps.bench.speech.intelligibility import Judge
from polydraft.apps.bench.speech.prose import Passage
from polydraft.apps.measure import table
from polydraft.apps.measure.word_errors import WordEdits

from ...command_line import run

OPTIONS = ("bench", "speech", "--sentences", "1", "--prose", "1", "--timed", "1", "--repeats", "1")


def test_speed_and_understanding_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "passages", lambda count: [Passage("prose", "It rains.")] * count)
    monkeypatch.setattr(bench, "everyday_sentences", lambda: ["We met at noon."])
    done = run(
        *OPTIONS, "--methods", "vadusa,vadusa+top-k(k=20)", "--recogniser", "pocketsphinx", "--json",
        "-o", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    speed = {row["method"]: row for row in value["speed"]}
    assert list(speed) == ["ar", "vadusa", "vadusa+top-k(k=20)", "transformers generate"]
    assert speed["vadusa"]["same"] is True and speed["vadusa"]["tau"] > 1.2
    names = {"ar": "ar", "generate": "transformers generate"}
    assert all(speed[names[row["baseline"]]]["S"] == 1 for row in speed.values())
    assert 0 < speed["vadusa"]["rtf_decode"] < speed["vadusa"]["rtf"]
    assert 0 < speed["vadusa"]["first"] < speed["vadusa"]["rtf"] * 10
    quality = {row["method"]: row for row in value["quality"]}
    assert quality["vadusa"]["same"] == 1 and quality["vadusa"]["wer"] == quality["ar"]["wer"]
    assert set(quality["ar"]["wer_by_voice"]) == {"slt", "rms", "awb", "kal16"} and quality["ar"]["delta"] == 0
    prose = {row["method"]: row for row in value["prose"]}
    assert prose["ar"]["wer_by_kind"] == {"prose": prose["ar"]["wer"]} and prose["vadusa"]["same"] == 1
    product = {row["voice"]: row for row in value["product"]}
    assert set(product) == set(quality["ar"]["wer_by_voice"])
    assert all(row["start"] < -60 and abs(row["loudness"] + 23) < 3 and row["pauses"] >= 0 for row in product.values())
    assert "vadusa" in (tmp_path / "out" / "speech.md").read_text()
    assert Image.open(tmp_path / "out" / "speech.png").width > 500


def test_audio_is_evaluated_once_by_requested_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class Ears:
        def hear(self, audio: np.ndarray, sample_rate: int) -> list[str]:
            lengths.append(len(audio))
            return ["good", "morning"]

    judge = Judge(16_000, {}, {"first": Ears()}, lambda words, audio, rate: {"length": float(len(words))})
    sound = np.zeros(1600, np.float32)
    first = judge("Good morning.", "slt", sound)
    assert judge("Good morning.", "slt", sound) is first and lengths == [1600]
    assert first.errors == {"first": 0} and first.distance is None and first.more == {"length": 2.0}
    assert judge("Good evening.", "slt", sound).errors == {"first": 1} and len(lengths) == 2
    monkeypatch.setattr(intelligibility, "count_word_edits", lambda wanted, found: WordEdits(2, substitutions=7))
    assert judge("Good night.", "slt", sound).errors == {"first": 7}


def test_violated_guarantee_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "equal", lambda first, second: False)
    options = ("bench", "speech", "--sentences", "0", "--prose", "0", "--timed", "1", "--repeats", "1", "--no-peers")
    done = run(*options, "--methods", "vadusa")
    assert done.exit_code == 1 and "promised identical tokens" in done.stderr
