"""Judges from torchaudio: the reported reason where it cannot be used, and the decoding of its letters."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polydraft.apps.bench.speech import torchaudio_judges
from polydraft.apps.bench.speech.torchaudio_judges import Squim, TorchaudioMissing, Wav2Vec2

from ...command_line import assert_refused, run

LABELS = ("-", "|", "E", "T", "A", "O")


def test_mismatched_torchaudio_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torchaudio.py").write_text("raise OSError('libc10_cuda.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    for judge in (Squim, Wav2Vec2):
        with pytest.raises(TorchaudioMissing, match="libc10_cuda"):
            judge()
    options = ("bench", "speech", "--sentences", "1", "--prose", "0", "--timed", "1")
    assert_refused(run(*options, "--squim", "--recogniser", "pocketsphinx"), "torchaudio")
    assert_refused(run(*options, "--recogniser", "wav2vec2"), "torchaudio")
    assert_refused(run(*options, "--recogniser", "whispers"), "whisper, wav2vec2")


def test_letters_become_words_and_repeats_one_letter(monkeypatch: pytest.MonkeyPatch):
    spoken = "AATT-T||O-EEE"  # A blank separates two equal letters.
    emissions = torch.nn.functional.one_hot(torch.tensor([LABELS.index(letter) for letter in spoken])).float()[None]
    model = SimpleNamespace(eval=lambda: lambda sound: (10 * emissions, None))
    bundle = SimpleNamespace(get_labels=lambda: LABELS, get_model=lambda: model, sample_rate=16_000)
    package = SimpleNamespace(pipelines=SimpleNamespace(WAV2VEC2_ASR_BASE_960H=bundle))
    monkeypatch.setattr(torchaudio_judges, "torchaudio", lambda: package)
    assert Wav2Vec2().hear(np.zeros(24_000, np.float32), 24_000) == ["att", "oe"]


def test_real_judges_distinguish_voice_from_noise():
    try:
        squim = Squim()
        squim.model  # noqa: B018
    except TorchaudioMissing as missing:
        pytest.skip(str(missing))
    except OSError as error:  # urllib's URLError is an OSError.
        pytest.skip(f"the weights of SQUIM cannot be downloaded here: {error}")
    from polydraft import generate_speech

    voice = generate_speech("We will meet again tomorrow.").audio
    noise = np.random.default_rng(0).normal(0, 0.1, len(voice)).astype(np.float32)
    assert squim(voice, 16_000)["stoi"] > squim(noise, 16_000)["stoi"] + 0.1
