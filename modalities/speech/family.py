"""Interface of a family of speech models: how text and speech become token ids, and how codes become audio.

The pipeline knows nothing else about a model. A family is one file in `families/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from polydraft.core.checks.arguments import format_value
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.speech.reference import Recording

FIRST_CHUNK, CHUNK = 0.12, 0.5  # seconds of audio decoded at a time: few at first, for low latency
LONGEST_SENTENCE = 30.0  # seconds
COMMA_PAUSE = 0.13  # seconds of a pause
LONGEST_NAME = 64  # characters of a voice


@dataclass(frozen=True)
class FamilyInputs:
    """Arguments that every family is built from."""

    card: ModelCard
    device: torch.device
    vocab: int  # number of token ids of the target


@dataclass(frozen=True)
class Voice:
    """Speaker: a name, or a reference recording that is cloned."""

    name: str
    text: str = ""  # transcript of the reference
    codes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long), repr=False)  # [T] of the reference
    note: str = ""  # for the user; may be empty


@dataclass(frozen=True)
class Script:
    """Text split into sentences to synthesise; long sentences are split further."""

    sentences: list[str]
    ignored: tuple[str, ...] = ()  # unpronounceable parts, as written
    marks: tuple[str, ...] = ()  # mark after each sentence, "," or "" where one was cut; empty where unknown


class AudioStream(Protocol):
    """Audio of a growing stream of codes, a pure function of the codes however they are chunked."""

    @property
    def look_ahead(self) -> int:
        """Return the number of codes that must be known after those that are decoded."""

    def push(self, codes: Tensor) -> Tensor:
        """Return the samples `[S]` that `codes` `[T]` complete; may be empty."""

    def finish(self) -> Tensor:
        """Return the last samples `[S]`."""


class SpeechFamily(ABC):
    """Token ids and audio codec of one model."""

    sample_rate: int
    rate: float  # codes per second
    eos: frozenset[int]  # ids that end a sentence
    context: int  # positions of a sequence, prompt and speech together
    frame: int = 1  # codes that are decoded together only
    voices: list[str] = []
    has_open_voices: bool = False  # the names are suggestions, since the model reads any name as text
    clones: bool = False  # a reference recording takes the place of a name
    no_audio_reason: str = ""

    def __init__(self, parts: FamilyInputs) -> None:
        self.parts = parts

    @property
    @abstractmethod
    def token_mask(self) -> Tensor:
        """Return the ids that may be generated in every grammar state, `[K, V]` bool."""

    @property
    @abstractmethod
    def codebook(self) -> Tensor:
        """Return the codebook embeddings `[V, D]`; NaN for ids that are no codes."""

    @cached_property
    def exact_only_mask(self) -> Tensor:
        """Return the ids that are no codes, `[V]` bool; lossy rules must match them exactly."""
        return self.codebook.isnan().any(-1)

    @abstractmethod
    def split_text(self, text: str) -> Script:
        """Return the sentences of `text`.

        Raises:
            PromptError: the text has nothing to synthesise, or too much.
        """

    @abstractmethod
    def encode_prompt(self, sentence: str, voice: Voice) -> list[int]:
        """Return the token ids of the prompt for `sentence`."""

    @abstractmethod
    def max_codes(self, sentence: str) -> int:
        """Return the most codes that `sentence` may take, in whole frames."""

    def min_codes(self, sentence: str) -> int:
        """Return the number of codes before `sentence` may end."""
        return 0

    @abstractmethod
    def expected_codes(self, sentence: str) -> int:
        """Return an estimate of the number of codes of `sentence`."""

    @abstractmethod
    def extract_codes(self, ids: Tensor) -> Tensor:
        """Return the codes among generated ids, without the end."""

    @abstractmethod
    def open_audio_stream(self, voice: Voice, speed: float) -> AudioStream:
        """Return an audio stream for the codes of `voice`; the pitch does not change with the speed."""

    def comma_pause(self, voice: Voice) -> float:
        """Return the pause of `voice` in seconds at a comma where a sentence is cut."""
        return COMMA_PAUSE

    def codes_in_seconds(self, seconds: float) -> int:
        """Return the number of codes in about `seconds`, in whole frames, at least one."""
        return max(1, round(seconds * self.rate / self.frame)) * self.frame

    def select_voice(self, name: str | None, reference: Recording | None, text: str | None) -> Voice:
        """Return the requested voice.

        Raises:
            InvalidArgument: the model has no such voice, or does not clone references.
        """
        if reference is not None or text is not None:
            known = f"choose a voice of {', '.join(self.voices)}" if self.voices else "leave it out"
            raise InvalidArgument(f"{self.parts.card.name} does not clone voices from a reference; {known}.")
        if name is None:
            return Voice(self.voices[0] if self.voices else "")
        if name in self.voices:
            return Voice(name)
        if self.has_open_voices:
            return Voice(readable_name(name), note=unlisted_voice(name, self.parts.card.name, self.voices))
        known = f"has {', '.join(self.voices)}" if self.voices else "has no voices; leave it out"
        meant = did_you_mean(str(name), self.voices)
        raise InvalidArgument(f"voice {format_value(name)} is unknown{meant}; {self.parts.card.name} {known}.")


def readable_name(name: str) -> str:
    """Return the name of a voice as a prompt can hold it; raises InvalidArgument for what is no name."""
    found = str(name).strip()
    if not found or len(found) > LONGEST_NAME or ":" in found or not found.isprintable():
        raise InvalidArgument(
            f"voice {format_value(found)} is no name; give one on a single line, without a colon, of at most "
            f"{LONGEST_NAME} characters."
        )
    return found


def unlisted_voice(name: str, model: str, voices: Sequence[str]) -> str:
    """Return the note on a voice that is passed on to a model that does not list it."""
    meant = did_you_mean(str(name), voices)
    return f"voice {name!r} is none that {model} lists{meant}; it is passed on as it is, listed are {', '.join(voices)}"
