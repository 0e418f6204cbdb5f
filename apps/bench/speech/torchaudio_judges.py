"""Judges of real checkpoints that only torchaudio brings (`pip install polydraft[torchaudio]`); never on the core path.

    wav2vec2 = Wav2Vec2(); wav2vec2.hear(audio, 24_000)                    # words, from a CTC recogniser
    wav2vec2.aligned(["good", "morning"], audio, 24_000)                   # how surely each word lies in the sound
    Squim()(audio, 24_000)                                                 # {"stoi": …, "pesq": …, "si_sdr": …}

Both download their weights when first used. Where torchaudio cannot import, `TorchaudioMissing` says why.
"""

from __future__ import annotations

from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.bench.speech.listener import plain_words
from polydraft.core.checks.extras import pip_install
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError

Sound = NDArray[np.float32]


class TorchaudioMissing(PolydraftError, ImportError):
    """torchaudio is not installed, or was built for another torch."""


def torchaudio() -> ModuleType:
    """Import the package; raises with the reason if it cannot be used."""
    try:
        import torchaudio as package
        import torchaudio.pipelines
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # a build for another torch raises any
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise system_error(error, "torchaudio cannot be imported") or TorchaudioMissing(
            f"torchaudio cannot be used here ({reason}); {pip_install('torchaudio')} beside a torch of its build, or "
            "leave out what needs it."
        ) from error
    return package


class Wav2Vec2:
    """A recogniser without a language model (Baevski et al. 2020): it hears what was said, not what is likely."""

    def __init__(self) -> None:
        self.package: ModuleType = torchaudio()

    @cached_property
    def bundle(self) -> Any:
        return self.package.pipelines.WAV2VEC2_ASR_BASE_960H

    @cached_property
    def model(self) -> Any:
        return self.bundle.get_model().eval()

    def hear(self, audio: Sound, sample_rate: int) -> list[str]:
        """Return the recognised words, from the most probable letter of every frame."""
        best = self.emissions(audio, sample_rate).argmax(-1)
        letters = [self.bundle.get_labels()[index] for index in best.unique_consecutive().tolist() if index]
        return plain_words("".join(letters).replace("|", " "))

    def aligned(self, words: list[str], audio: Sound, sample_rate: int) -> float:
        """Mean probability of the letters of `words`, each where it fits best: forced alignment."""
        labels = {letter: index for index, letter in enumerate(self.bundle.get_labels())}
        wanted = torch.tensor([[labels[letter] for letter in "|".join(words).upper() if letter in labels]])
        _, scores = self.package.functional.forced_align(self.emissions(audio, sample_rate)[None], wanted)
        return float(scores.exp().mean())

    @torch.inference_mode()
    def emissions(self, audio: Sound, sample_rate: int) -> Tensor:
        """Return log-probabilities `[frames, letters]`."""
        emissions, _ = self.model(resampled(audio, sample_rate, self.bundle.sample_rate))
        return emissions[0].log_softmax(-1)


class Squim:
    """Speech quality without a reference (Kumar et al. 2023, TorchAudio-Squim, arXiv 2304.01448)."""

    def __init__(self) -> None:
        self.bundle: Any = torchaudio().pipelines.SQUIM_OBJECTIVE

    @cached_property
    def model(self) -> Any:
        return self.bundle.get_model().eval()

    @torch.inference_mode()
    def __call__(self, audio: Sound, sample_rate: int) -> dict[str, float]:
        stoi, pesq, si_sdr = self.model(resampled(audio, sample_rate, self.bundle.sample_rate))
        return {"stoi": stoi.item(), "pesq": pesq.item(), "si_sdr": si_sdr.item()}


def resampled(audio: Sound, sample_rate: int, wanted: int) -> Tensor:
    """Resample audio to `[1, S]` at `wanted` Hz."""
    import soxr

    return torch.from_numpy(soxr.resample(audio, sample_rate, int(wanted)).astype(np.float32))[None]
