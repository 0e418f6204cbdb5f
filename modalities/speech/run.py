"""Speech under way: sentences as passes commit their codes, sound as soon as it is certain, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.decode import Method, Step
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import Stop
from polydraft.core.target import Prompt
from polydraft.modalities.run import Run, Stream
from polydraft.modalities.speech.family import Script, SoundStream, Voice
from polydraft.modalities.speech.joins import joined
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.speech.spoken import Pace, Spoken

if TYPE_CHECKING:
    from polydraft.modalities.speech.pipeline import SpeechPipeline

OnStep = Callable[[int, int, Step], None]  # codes so far, about how many there will be, and the core's step


@dataclass(frozen=True)
class SpeechChunk:
    """Sound that follows what came before without a seam. codes: committed so far in this sentence."""

    audio: NDArray[np.float32]
    sample_rate: int
    sentence: int
    codes: int
    step: Step


@dataclass(frozen=True)
class SpeechNews:
    """Sound that follows what came before without a seam, maybe none.

    sentence: the one it is of; codes: committed so far in it; committed_at: `[codes]`, which pass (from 1) committed
    each. tokens_done, passes, seconds spent decoding, and about how many codes there will be: of the whole text.
    """

    audio: NDArray[np.float32]
    sample_rate: int
    sentence: int
    codes: int
    tokens_done: int
    passes: int
    committed_at: Tensor
    expected: int
    seconds: float


@dataclass(frozen=True)
class Said:
    """What was asked for, and how it was read."""

    text: str
    script: Script
    voice: Voice
    seed: int


class SpeechRun(Run[SpeechNews, SpeechResult]):
    """One text; its sentences are prompts, drafted together and played in order."""

    def __init__(
        self, pipe: SpeechPipeline, method: Method, prompts: list[Prompt], said: Said, speed: float, together: int
    ) -> None:
        super().__init__(method, prompts, together)
        self.pipe, self.said = pipe, said
        streams: list[SoundStream] = [pipe.family.stream(said.voice, speed) for _ in prompts]
        if said.script.marks:
            streams = joined(streams, said.script.marks, pipe.sample_rate, speed, pipe.family.comma(said.voice))
        self.spoken = [Spoken(stream, Pace.of(pipe.family)) for stream in streams]
        self.decoded: list[list[int]] = [[] for _ in prompts]
        self.heard: list[NDArray[np.float32]] = []
        self.sounding = 0
        self.expected = sum(pipe.family.usual(sentence) for sentence in said.script.sentences)  # codes

    @property
    def has_failed(self) -> bool:
        """Whether any sentence failed: a text with a gap is not what was asked for."""
        return bool(self.errors)

    @property
    def codes(self) -> int:
        """Codes so far."""
        return sum(len(sentence.codes) for sentence in self.spoken)

    def take(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, Stop]:
        loops = {}
        for place, (had, tokens) in committed.items():
            sentence = self.spoken[place]
            if place in ended:
                sentence.finish = self.rows[place].finish
            num_kept = sentence.add(self.codes_of(tokens), self.passes)
            if sentence.finish == "loop":
                tokens = self.up_to_code(tokens, num_kept)
                loops[place] = Stop("loop", had + len(tokens))
            self.decoded[place] += tokens
        return loops

    def codes_of(self, tokens: list[int]) -> Tensor:
        """Return the codes among tokens."""
        return self.pipe.family.codes(torch.tensor(tokens, dtype=torch.long))

    def up_to_code(self, tokens: list[int], count: int) -> list[int]:
        """Return tokens up to the one that is the last of `count` codes."""
        return next(begun for end in range(len(tokens) + 1) if len(self.codes_of(begun := tokens[:end])) == count)

    def news(self) -> list[SpeechNews]:
        new = []
        while self.sounding < self.begun:
            sentence = self.spoken[self.sounding]
            audio = sentence.hear().numpy()
            if len(audio):
                self.heard.append(audio)
                new.append(
                    SpeechNews(
                        audio,
                        self.pipe.sample_rate,
                        self.sounding,
                        len(sentence.codes),
                        self.generated,
                        self.passes,
                        sentence.passes.clone(),
                        self.expected,
                        self.seconds,
                    )
                )
            if sentence.finish is None:
                break
            self.sounding += 1
        return new

    def result(self) -> SpeechResult:
        """Sound, tokens and statistics of what was heard so far."""
        reasons = [sentence.finish for sentence in self.spoken]
        cut = [reason for reason in reasons if reason != "eos"]
        audio = np.concatenate(self.heard) if self.heard else np.zeros(0, np.float32)
        return SpeechResult(
            audio, self.pipe.sample_rate, torch.cat([sentence.codes for sentence in self.spoken]),
            torch.cat([sentence.passes for sentence in self.spoken]), DecodeStats.total(self.stats()),
            "eos" if not cut else "cancelled" if None in cut else str(cut[0]), self.said.script.ignored,
            self.said.text, self.said.script.sentences, [len(sentence.codes) for sentence in self.spoken],
            self.said.voice.name, self.said.seed, self.pipe.card.name, self.method.name, self.pipe.family.silent,
            [list(tokens) for tokens in self.decoded], (self.said.voice.note,) if self.said.voice.note else (),
        )  # fmt: skip


class SpeechStream(Stream[SpeechRun], Iterator[SpeechChunk]):
    """Sound of one text, sentence after sentence."""

    def __init__(self, run: SpeechRun, on_step: OnStep | None = None) -> None:
        super().__init__(run)
        self.on_step, self.chunks = on_step, self._chunks()

    def __next__(self) -> SpeechChunk:
        return next(self.chunks)

    def close(self) -> None:
        """Stop here."""
        super().close()
        self.chunks.close()  # type: ignore[attr-defined]

    def _chunks(self) -> Iterator[SpeechChunk]:
        for made in self.steps():
            if self.on_step is not None:
                self.on_step(self.run.codes, self.run.expected, made)
            with self.run.pipe.lock:
                news = self.run.news()
            for new in news:
                yield SpeechChunk(new.audio, new.sample_rate, new.sentence, new.codes, made)

    def result(self) -> SpeechResult:
        """Sound, tokens and statistics of what was said so far; ends the stream."""
        self.close()
        return self.run.result()
