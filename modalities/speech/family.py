"""What a family of speech models has of its own: how text and speech are written as ids, and how codes sound.

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

from polydraft.core.arguments import shown
from polydraft.core.errors import InvalidArgument
from polydraft.core.suggestions import did_you_mean
from polydraft.modalities.loading import ModelCard
from polydraft.modalities.speech.reference import Recording

FIRST_CHUNK, CHUNK = 0.12, 0.5  # seconds sounded at a time: soon at first, then more
LONGEST_SENTENCE = 30.0  # seconds
COMMA = 0.13  # seconds of a pause
LONGEST_NAME = 64  # characters of a voice


@dataclass(frozen=True)
class Parts:
    """What a family is made from. vocab: ids the target knows."""

    card: ModelCard
    device: torch.device
    vocab: int


@dataclass(frozen=True)
class Voice:
    """Who speaks: a name, or a reference that is imitated, as codes `[T]` and the words said in it.

    note: what is to be told of it, maybe nothing.
    """

    name: str
    text: str = ""
    codes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long), repr=False)
    note: str = ""


@dataclass(frozen=True)
class Script:
    """What is said of a text, in sentences and parts of long ones, and what cannot be said, as written.

    marks: what stands after each, a comma or nothing where a sentence was cut; none at all where nobody knows.
    """

    sentences: list[str]
    ignored: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


class SoundStream(Protocol):
    """Sound of a growing stream of codes, a pure function of the codes however they arrive."""

    @property
    def look_ahead(self) -> int:
        """Codes that must be known after those that sound."""

    def push(self, codes: Tensor) -> Tensor:
        """Sound `[S]` that `codes` `[T]` make certain; may be empty."""

    def finish(self) -> Tensor:
        """The last sound."""


class SpeechFamily(ABC):
    """One model's ids and sound.

    rate: codes a second. frame: codes that only sound together. eos: ids that end a sentence. context: positions of a
    row, prompt and speech together. voices: names; has_open_voices: whether these only suggest, since the model reads
    any name as text; clones: whether it imitates a reference instead. silent: why there is no sound, empty where there
    is.
    """

    sample_rate: int
    rate: float
    eos: frozenset[int]
    context: int
    frame: int = 1
    voices: list[str] = []
    has_open_voices: bool = False
    clones: bool = False
    silent: str = ""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @property
    @abstractmethod
    def mask(self) -> Tensor:
        """`[K, V]` bool: ids that may be generated, a row a slot."""

    @property
    @abstractmethod
    def vectors(self) -> Tensor:
        """`[V, D]`: what codes are looked up by; nan for other ids."""

    @cached_property
    def rigid(self) -> Tensor:
        """`[V]` bool: ids that are no codes, which lossy rules leave alone."""
        return self.vectors.isnan().any(-1)

    @abstractmethod
    def read(self, text: str) -> Script:
        """Sentences of `text`; raises PromptError where there is nothing to say, or too much."""

    @abstractmethod
    def prompt(self, sentence: str, voice: Voice) -> list[int]:
        """What the model reads before it says `sentence`."""

    @abstractmethod
    def most(self, sentence: str) -> int:
        """Codes that `sentence` may take, whole frames."""

    def least(self, sentence: str) -> int:
        """Codes before `sentence` may end."""
        return 0

    @abstractmethod
    def usual(self, sentence: str) -> int:
        """About how many it will take."""

    @abstractmethod
    def codes(self, ids: Tensor) -> Tensor:
        """Codes of generated ids, without the end."""

    @abstractmethod
    def stream(self, voice: Voice, speed: float) -> SoundStream:
        """Sound of codes that `voice` says; the pitch stays at any speed."""

    def comma(self, voice: Voice) -> float:
        """Seconds that `voice` pauses at a comma where a sentence is cut."""
        return COMMA

    def span(self, seconds: float) -> int:
        """Codes of about `seconds`, whole frames, at least one."""
        return max(1, round(seconds * self.rate / self.frame)) * self.frame

    def voice(self, name: str | None, reference: Recording | None, text: str | None) -> Voice:
        """The voice asked for; raises InvalidArgument where the model has none such."""
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
        raise InvalidArgument(f"voice {shown(name)} is unknown{meant}; {self.parts.card.name} {known}.")


def readable_name(name: str) -> str:
    """Return the name of a voice as a prompt can hold it; raises InvalidArgument for what is no name."""
    found = str(name).strip()
    if not found or len(found) > LONGEST_NAME or ":" in found or not found.isprintable():
        raise InvalidArgument(
            f"voice {shown(found)} is no name; give one on a single line, without a colon, of at most "
            f"{LONGEST_NAME} characters."
        )
    return found


def unlisted_voice(name: str, model: str, voices: Sequence[str]) -> str:
    """Return the note on a voice that is passed on to a model that does not list it."""
    meant = did_you_mean(str(name), voices)
    return f"voice {name!r} is none that {model} lists{meant}; it is passed on as it is, listed are {', '.join(voices)}"
