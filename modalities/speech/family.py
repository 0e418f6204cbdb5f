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
    frame: int = 1  # codes that can only be decoded together
    voices: list[str] = []
    has_open_voices: bool = False  # whether other names are allowed, since the model reads the name as text
    clones: bool = False  # whether the voice is cloned from a reference recording instead of named
    no_audio_reason: str = ""  # reason why the model has tokens but no audio; empty if it has audio

    def __init__(self, inputs: FamilyInputs) -> None:
        self.inputs = inputs

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

        Args:
            name (str | None): name of a voice; None takes the default.
            reference (Recording | None): recording to clone.
            text (str | None): transcript of the reference.

        Raises:
            InvalidArgument: the model has no such voice, or does not clone references.
        """
        if reference is not None or text is not None:
            advice = f"choose a voice of {', '.join(self.voices)}" if self.voices else "leave it out"
            raise InvalidArgument(f"{self.inputs.card.name} does not clone voices from a reference; {advice}.")
        if name is None:
            return Voice(self.voices[0] if self.voices else "")
        if name in self.voices:
            return Voice(name)
        if self.has_open_voices:
            return Voice(readable_name(name), note=unlisted_voice(name, self.inputs.card.name, self.voices))
        advice = f"has {', '.join(self.voices)}" if self.voices else "has no voices; leave it out"
        suggestion = did_you_mean(str(name), self.voices)
        raise InvalidArgument(f"voice {format_value(name)} is unknown{suggestion}; {self.inputs.card.name} {advice}.")


def readable_name(name: str) -> str:
    """Return a voice name, stripped, for use in a prompt; raises InvalidArgument if it is not usable as a name."""
    stripped = str(name).strip()
    if not stripped or len(stripped) > LONGEST_NAME or ":" in stripped or not stripped.isprintable():
        raise InvalidArgument(
            f"voice {format_value(stripped)} is no name; give one on a single line, without a colon, of at most "
            f"{LONGEST_NAME} characters."
        )
    return stripped


def unlisted_voice(name: str, model: str, voices: Sequence[str]) -> str:
    """Return the note for a voice name that the model does not list but accepts."""
    suggestion = did_you_mean(str(name), voices)
    listed = ", ".join(voices)
    return f"voice {name!r} is none that {model} lists{suggestion}; it is passed on as it is, listed are {listed}"
