"""Drafter training for published voices: default data, required data, and the printed command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile

from polydraft.apps.data import held_out, user_prompts
from polydraft.apps.data.prompts import build_training_prompts, built_in_asks
from polydraft.apps.data.sentences.sentences import everyday_sentences
from polydraft.apps.train import drafter
from polydraft.core.errors import DataUnavailable
from polydraft.modalities.speech.pipeline import SpeechPipeline

from ....apps.command_line import assert_refused, run

WITHOUT_REFERENCE = ("orpheus", "cosyvoice2")


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few held-out prompts and short evaluations."""
    monkeypatch.setattr(user_prompts, "HELD", 2)
    monkeypatch.setattr("polydraft.apps.train.evaluation.LONGEST", 12)


@pytest.mark.parametrize("family", WITHOUT_REFERENCE)
def test_training_without_data_uses_everyday_sentences(pipes: dict[str, SpeechPipeline], family: str) -> None:
    pipe = pipes[family]
    asks = built_in_asks(pipe.card)
    assert asks is not None and [ask.content["text"] for ask in asks] == everyday_sentences()
    training_prompts = build_training_prompts(pipe, asks, seed=0)
    training_ids = {prompt.branch_token_ids[0] for index in range(3) for prompt in training_prompts.prompts(index)}
    held_out_ids = {prompt.branch_token_ids[0] for prompt in training_prompts.held_out()}
    assert len(training_ids) > 20 and held_out_ids and not training_ids & held_out_ids
    assert len(held_out.held_out_prompts(pipe, 2, None, 5)) == 2


@pytest.mark.parametrize("family", ["neutts", "llasa"])
def test_training_cloning_model_without_data_is_refused(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    options = ("--kind", "heads", "--minutes", "0.01", "-o", tmp_path / "out")
    assert_refused(run("train", "drafter", "--target", folders[family], *options), '"reference_text"')
    assert not (tmp_path / "out").exists()


def test_training_printed_command_of_silent_model_runs(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = drafter.run(str(folders["cosyvoice2"]), "heads", tmp_path / "out", minutes=0.002)
    assert "learns from 100 everyday sentences" in capsys.readouterr().err
    assert report.load in (tmp_path / "out" / "README.md").read_text() and "everyday" in report.source
    program, option, code = shlex.split(report.load)
    assert (program, option) == ("python", "-c")
    exec(compile(code, "printed", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


def test_training_printed_command_of_cloning_model_runs(
    folders: dict[str, Path], reference: tuple[np.ndarray, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "my voice.wav", *reference)
    rows = [
        {"text": text, "reference": "my voice.wav", "reference_text": "It's me."} for text in ("Yes.", "No.", "So.")
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    report = drafter.run(str(folders["llasa"]), "heads", out, minutes=0.002, data=str(tmp_path / "texts.jsonl"))
    arguments = shlex.split(report.load)
    assert arguments[:2] == ["polydraft", "speech"] and str(tmp_path / "my voice.wav") in arguments
    assert report.to_dict()["load"] == report.load
    monkeypatch.chdir(tmp_path)
    outcome = run(*arguments[1:])
    assert outcome.exit_code == 0 and "medusa" in outcome.stdout, outcome.output


def test_built_in_asks_refuse_published_image_models(tmp_path: Path) -> None:
    from polydraft.modalities.model_card import ModelCard

    with pytest.raises(DataUnavailable, match="give --data with prompts"):
        built_in_asks(ModelCard("janus", tmp_path, {"modality": "image", "family": "janus"}))
    assert built_in_asks(ModelCard("llava", tmp_path, {"modality": "vlm", "family": "llava"})) is None
    assert built_in_asks(ModelCard("tiny", tmp_path, {"modality": "speech"})) is None
