"""Drafters for published voices: what they learn from without data, what data has to hold, and the printed command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile

from polydraft.apps.data import held_out
from polydraft.apps.data import user_prompts as own
from polydraft.apps.data.prompts import build_training_prompts, built_in_asks
from polydraft.apps.data.sentences.sentences import everyday_sentences
from polydraft.apps.train import drafter
from polydraft.core.errors import DataUnavailable
from polydraft.modalities.speech.pipeline import SpeechPipeline

from ....apps.command_line import assert_refused, run

WITHOUT_REFERENCE = ("orpheus", "cosyvoice2")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few held-out prompts, and trials of a few tokens."""
    monkeypatch.setattr(own, "HELD", 2)
    monkeypatch.setattr("polydraft.apps.train.evaluation.LONGEST", 12)


@pytest.mark.parametrize("family", WITHOUT_REFERENCE)
def test_without_data_everyday_sentences_teach(pipes: dict[str, SpeechPipeline], family: str) -> None:
    pipe = pipes[family]
    asked = built_in_asks(pipe.card)
    assert asked is not None and [ask.content["text"] for ask in asked] == everyday_sentences()
    lessons = build_training_prompts(pipe, asked, seed=0)
    taught = {prompt.branch_token_ids[0] for index in range(3) for prompt in lessons.prompts(index)}
    apart = {prompt.branch_token_ids[0] for prompt in lessons.held_out()}
    assert len(taught) > 20 and apart and not taught & apart
    assert len(held_out.held_out_prompts(pipe, 2, None, 5)) == 2


@pytest.mark.parametrize("family", ["neutts", "llasa"])
def test_without_data_cloning_models_say_what_they_need(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    options = ("--kind", "heads", "--minutes", "0.01", "-o", tmp_path / "out")
    assert_refused(run("train", "drafter", "--target", folders[family], *options), '"reference_text"')
    assert not (tmp_path / "out").exists()


def test_without_data_command_of_a_silent_model_runs_as_printed(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = drafter.run(str(folders["cosyvoice2"]), "heads", tmp_path / "out", minutes=0.002)
    assert "learns from 100 everyday sentences" in capsys.readouterr().err
    assert report.load in (tmp_path / "out" / "README.md").read_text() and "everyday" in report.source
    program, option, code = shlex.split(report.load)
    assert (program, option) == ("python", "-c")
    exec(compile(code, "printed", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


def test_command_of_a_cloning_model_names_a_recording_and_runs(
    folders: dict[str, Path], reference: tuple[np.ndarray, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "my voice.wav", *reference)
    rows = [
        {"text": text, "reference": "my voice.wav", "reference_text": "It's me."} for text in ("Yes.", "No.", "So.")
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    report = drafter.run(str(folders["llasa"]), "heads", out, minutes=0.002, data=str(tmp_path / "said.jsonl"))
    words = shlex.split(report.load)
    assert words[:2] == ["polydraft", "speech"] and str(tmp_path / "my voice.wav") in words
    assert report.to_dict()["load"] == report.load
    monkeypatch.chdir(tmp_path)
    done = run(*words[1:])
    assert done.exit_code == 0 and "medusa" in done.stdout, done.output


def test_built_in_sentences_are_no_data_for_published_pictures(tmp_path: Path) -> None:
    from polydraft.modalities.model_card import ModelCard

    with pytest.raises(DataUnavailable, match="give --data with prompts"):
        built_in_asks(ModelCard("janus", tmp_path, {"modality": "image", "family": "janus"}))
    assert built_in_asks(ModelCard("llava", tmp_path, {"modality": "vlm", "family": "llava"})) is None
    assert built_in_asks(ModelCard("tiny", tmp_path, {"modality": "speech"})) is None
