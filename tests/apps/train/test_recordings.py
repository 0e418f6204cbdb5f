"""Drafters that learn from recordings, on a tiny random Whisper: windows, training end to end, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from polydraft.apps.data.recordings import RecordingPrompts, WindowPrompts, find_recordings
from polydraft.apps.data.samples import TOGETHER, Samples
from polydraft.apps.train import drafter, drafters
from polydraft.apps.train.windows import prompt_of, transcribe_windows
from polydraft.core.distillation.distill import generate_outputs
from polydraft.core.errors import DataUnavailable, InvalidArgument, UnsupportedMethod
from polydraft.core.methods.registry import parse
from polydraft.core.target.encoder_decoder import ENCODER_INPUT
from polydraft.modalities.loading import load

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_recordings, write_tiny_whisper

SOUND = (tone(3.3, 3), SAMPLE_RATE)
TRAINED = ("hydra", "kangaroo")  # one without layers, and one whose layers attend to the encoder's output


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def pipe(target):
    return load(target, dtype="float32")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("sound"), count=6)


@pytest.fixture(scope="module")
def trained(target, recordings, tmp_path_factory) -> drafters.DrafterSet:
    """Return drafters that were trained for seconds."""
    out = tmp_path_factory.mktemp("drafters")
    return drafters.run(str(target), out, 0.04, kinds=TRAINED, data=str(recordings))


@pytest.mark.parametrize("kind", TRAINED)
def test_trained_drafter_leaves_transcripts_unchanged(trained, target, kind):
    assert not trained.failed
    report = trained.reports[kind]
    assert report["trial"]["identical"] and report["steps"] > 0 and report["answers"] > report["held_out"] > 0
    method = report["trial"]["method"]
    assert f"--method {method}" in report["load"] and ".wav" in report["load"]
    drafted_pipe = load(target, drafter=report["drafter"], dtype="float32")
    for temperature in (0.0, 0.6):
        options = {"language": "en", "temperature": temperature, "seed": 2}
        plain = drafted_pipe(SOUND, method="ar", **options)
        assert drafted_pipe(SOUND, method=method, **options).segments == plain.segments


def test_windows_are_shared_and_kept(trained, pipe):
    """All kinds learned from the same windows, whose encoder output is stored with the text."""
    folder = Path(next(iter(trained.reports.values()))["drafter"]).parent / "samples"
    samples = Samples(pipe.target(), folder)
    for file in sorted(folder.glob("*.safetensors")):
        samples.take(file)
    examples = samples.examples([0, len(samples) - 1])
    assert examples.encoder_states is not None and examples.encoder_states.shape == (2, 100, 16)
    assert examples.loss_mask.any() and TOGETHER < len(samples) <= 12  # of 6 recordings of 4 seconds


def test_share_of_windows_is_held_out(pipe, recordings, capsys):
    prompts = RecordingPrompts(pipe, find_recordings(str(recordings)), seed=0, held_out=0.25)
    held = prompts.held_out()
    taught = [prompt for index in range(3) for prompt in prompts.prompts(index)]
    assert (len(held), len(taught)) == (3, 9)
    features = [tuple(prompt.model_kwargs[ENCODER_INPUT].features.flatten()[:50].tolist()) for prompt in held + taught]
    assert len(set(features)) == 12, "a window is in both parts"
    assert capsys.readouterr().err.count("notes.txt") == 2, "each part notes once what is no sound"
    lasts = [prompt.branch_token_ids[0][-1] for prompt in taught]
    assert 0 < lasts.count(pipe.control_tokens.no_timestamps) < len(taught), "transcripts are of both kinds"


def test_groups_are_the_same_after_restart(pipe, recordings):
    files = find_recordings(str(recordings))
    walked, restarted = WindowPrompts(pipe, files), WindowPrompts(pipe, files)
    groups = [walked.group(0), walked.group(1), walked.group(2)]
    assert [len(group) for group in groups] == [TOGETHER, 12 - TOGETHER, 0]
    for one, other in zip(groups[1], restarted.group(1), strict=True):
        assert one.branch_token_ids == other.branch_token_ids
        assert torch.equal(one.model_kwargs[ENCODER_INPUT].features, other.model_kwargs[ENCODER_INPUT].features)


def test_stored_window_is_transcribed_alike(pipe, recordings, tmp_path):
    """Its prompt names the language that was detected, and the encoder need not run again."""
    heard = transcribe_windows(pipe, find_recordings(str(recordings))[:3], tmp_path, 60)
    plain = pipe.method(parse("ar"))
    calls = []
    hook = pipe.target_model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    outputs = generate_outputs(plain, [prompt_of(pipe, window) for window in heard])
    hook.remove()
    assert not calls and len(heard) > 2
    end = pipe.control_tokens.end
    texts = [[token for token in ids.tolist() if token < end] for ids in outputs]
    same = sum(text == window.ids for text, window in zip(texts, heard, strict=True))
    assert same >= len(heard) - 1, "more differs than the rounding to bf16 explains"
    assert {window.prompt[1] for window in heard} <= set(pipe.control_tokens.languages.values())


def test_kinds_for_other_tokens_are_refused(target, recordings, tmp_path):
    for kind in ("lm", "block", "local", "above"):
        with pytest.raises(UnsupportedMethod, match="train one of hydra, heads, eagle, kangaroo or ctc"):
            drafter.run(str(target), kind, tmp_path / kind, 0.01, data=str(recordings))


def test_missing_or_single_recordings_are_refused(target, pipe, recordings, tmp_path):
    with pytest.raises(DataUnavailable, match="learn from recordings"):
        drafter.run(str(target), "hydra", tmp_path / "none", 0.01)
    (tmp_path / "one").mkdir()
    single = write_recordings(tmp_path / "one", count=1, seconds=1.5)
    with pytest.raises(DataUnavailable, match="less than two windows"):
        drafter.run(str(target), "hydra", tmp_path / "single", 0.01, data=str(single / "0.wav"))
    with pytest.raises(InvalidArgument, match="held_out"):
        RecordingPrompts(pipe, [recordings / "0.wav"], 0, 1.5)


def test_stopped_run_keeps_its_windows(target, recordings, tmp_path):
    out = tmp_path / "hydra"
    drafter.run(str(target), "hydra", out, 0.0, data=str(recordings))
    files = {file: file.stat().st_mtime_ns for file in (out / "samples").glob("*.safetensors")}
    drafter.run(str(target), "hydra", out, 0.0, data=str(recordings))
    assert files and all(file.stat().st_mtime_ns == time for file, time in files.items())
    assert json.loads((out / "config.json").read_text())["model_type"] == "polydraft-hydra"
