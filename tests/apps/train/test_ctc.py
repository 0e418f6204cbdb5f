"""Training of CTC heads on a tiny random Whisper: it learns, resumes, and what it drafts is verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from polydraft.apps.train import ctc
from polydraft.core.drafters.heads.ctc import CTCModel
from polydraft.core.errors import DataUnavailable, UnsupportedMethod
from polydraft.modalities.loading import load

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_recordings, write_tiny_whisper


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("sound"))


def test_trained_head_drafts_and_its_run_resumes(target, recordings, tmp_path):
    out = tmp_path / "head"
    report = ctc.run(str(target), out, minutes=0.05, data=str(recordings))
    assert report.kind == "ctc" and report.trial.same and report.steps > 0 and report.answers > 0
    assert json.loads((out / "config.json").read_text())["model_type"] == "polydraft-ctc"
    assert "--method ctc" in report.load and (out / "README.md").exists()
    samples = sorted((out / "samples").glob("*.safetensors"))
    pipe = load(target, drafter=out, dtype="float32")
    sound = (tone(7.3, 3), SAMPLE_RATE)
    plain = pipe(sound, language="en", method="ar", temperature=0.0)
    drafted = pipe(sound, language="en", method="ctc", temperature=0.0)
    assert drafted.segments == plain.segments
    again = ctc.run(str(target), out, minutes=0.05, data=str(recordings))
    assert again.steps == report.steps, "the budget had been used"
    assert sorted((out / "samples").glob("*.safetensors"))[: len(samples)] == samples


def test_loss_falls_on_texts_that_states_determine():
    """Every token has an encoder state of its own; the head learns to read them."""
    torch.manual_seed(0)
    config = type("Config", (), {"model_type": "t", "hidden_size": 12, "num_hidden_layers": 1, "vocab_size": 9})()
    student, codes = CTCModel(config, words=[2, 4, 6, 8], stride=2, width=24, context=3), torch.randn(9, 12)
    windows = []
    for _ in range(24):
        ids = [2 * int(index) for index in torch.randint(1, 5, (6,))]
        states = torch.zeros(60, 12)
        for place, token in enumerate(ids):
            states[10 * place + 2 : 10 * place + 6] = codes[token]
        windows.append(ctc.HeardWindow(states, ids))
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-2)
    for step in range(150):
        loss = ctc.ctc_loss(student, ctc.build_batch(student, windows[: 8 * (step % 2 + 1)]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    student.eval()
    with torch.no_grad():
        read = [student.read(window.states) for window in windows[16:]]
    assert sum(each.tokens.tolist() == window.ids for each, window in zip(read, windows[16:], strict=True)) >= 7
    assert torch.cat([each.probs for each in read]).mean() > 0.8


def test_labels_end_where_texts_do():
    """States after the last timestamp are not shown to the head."""
    config = type("Config", (), {"model_type": "t", "hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 9})()
    student = CTCModel(config, words=[2, 4], stride=2, width=8)
    windows = [ctc.HeardWindow(torch.ones(20, 4), [2, 4, 2], num_heard=7), ctc.HeardWindow(torch.ones(10, 4), [4])]
    batch = ctc.build_batch(student, windows)
    assert batch.states.shape == (2, 10, 4) and batch.states[0, 7:].eq(0).all()
    assert batch.state_lens.tolist() == [7, 10] and batch.label_lens.tolist() == [3, 1]
    spoiled = ctc.spoil(batch.states, torch.Generator().manual_seed(0))
    assert spoiled.shape == batch.states.shape and not spoiled.equal(batch.states)


def test_missing_recordings_are_refused(target, tmp_path):
    for data in (None, str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(DataUnavailable, match="recordings"):
            ctc.run(str(target), tmp_path / "out", 0.1, data)


def test_head_of_another_target_is_refused(target, recordings, tmp_path):
    ctc.run(str(target), tmp_path / "head", minutes=0.02, data=str(recordings))
    wider = write_tiny_whisper(tmp_path / "wider", width=24)
    with pytest.raises(UnsupportedMethod, match="another target"):
        load(wider, drafter=tmp_path / "head")
