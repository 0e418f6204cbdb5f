"""Text to speech with an autoregressive model: what users call.

    from polydraft import generate_speech, load
    generate_speech("We will meet again tomorrow.").save("out.wav")
    pipe = load("tiny-speech", method="vadusa")
    for chunk in pipe.stream("We will meet again tomorrow."): play(chunk.audio)

The same seed says the same thing the same way with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.decode import Batch, Method, Step, leave, start, step
from polydraft.core.errors import InvalidArgument, PromptError
from polydraft.core.sampling import Sampling
from polydraft.core.stats import DecodeStats
from polydraft.core.target import Prompt
from polydraft.modalities.loading import ModelCard, load
from polydraft.modalities.pipeline import Pipeline, seeds
from polydraft.modalities.speech.families import family
from polydraft.modalities.speech.family import Parts, Script, Voice
from polydraft.modalities.speech.reference import Recording
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.speech.spoken import Pace, Spoken

SLOWEST, FASTEST = 0.25, 4.0
TOGETHER = 8  # sentences decoded together when nobody waits for the first


OnStep = Callable[[int, int, Step], None]  # codes so far, about how many there will be, and the core's step


@dataclass(frozen=True)
class SpeechChunk:
    """Sound that follows what came before without a seam. codes: committed so far in this sentence."""

    audio: NDArray[np.float32]
    sample_rate: int
    sentence: int
    codes: int
    step: Step


def generate_speech(
    text: str, *, voice: str | None = None, reference: Recording | None = None, reference_text: str | None = None,
    speculative: bool = True, model: str = "tiny-speech", codec: str | None = None, method: str | None = None,
    seed: int = 0, speed: float = 1.0, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, repetition_penalty: float | None = None, device: str = "auto", dtype: str = "auto",
    on_step: OnStep | None = None,
) -> SpeechResult:  # fmt: skip
    """Say `text`.

    voice: one of the model's (`polydraft models tiny-speech`). reference: for models that imitate a voice instead, a
    recording of at most 30 s, a file or (samples, rate), and reference_text what is said in it. speculative: True uses
    the model's best identical method, False plain decoding; the speech is the same. speed: from 0.25 to 4, at the same
    pitch. model, codec: as for `load`. None means the model's own default; temperature 0 is greedy. Raises a
    PolydraftError that says what to change.
    """
    return _cached_pipeline(model, codec, device, dtype)(
        text, voice=voice, reference=reference, reference_text=reference_text, speculative=speculative, method=method,
        seed=seed, speed=speed, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, codec: str | None, device: str, dtype: str) -> SpeechPipeline:
    return load(model, codec=codec, device=device, dtype=dtype, modality="speech")


class SpeechPipeline(Pipeline):
    """A text-to-speech model with its weights, ready to speak with any of its methods."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.family = family(Parts(card, device, self.target_model.config.vocab_size))
        self.context = min(self.context, self.family.context)
        self.eos = self.family.eos
        self.row = self.family.frame if self.family.frame > 1 else 0  # a frame is to its codes what a row is to tokens

    @property
    def sample_rate(self) -> int:
        return self.family.sample_rate

    @property
    def voices(self) -> list[str]:
        return self.family.voices

    @property
    def mask(self) -> Tensor:
        return self.family.mask

    @property
    def rigid(self) -> Tensor:  # type: ignore[override]
        return self.family.rigid

    @property
    def codes(self) -> Tensor:
        return self.family.vectors

    def sample_prompts(self) -> list[Prompt]:
        return [self.prompt("yes .", Voice(next(iter(self.voices), "")), 0, 0)]

    def prompt(self, sentence: str, voice: Voice, seed: int, place: int, sampling: Sampling | None = None) -> Prompt:
        """A sentence of a script, said by `voice`; place: which one it is; sampling: the model's own unless given."""
        sampling = self.sampling() if sampling is None else sampling
        ids, most = self.family.prompt(sentence, voice), self.family.most(sentence)
        room = (self.context - len(ids)) // self.family.frame * self.family.frame
        if room < min(most, self.family.usual(sentence)):
            raise PromptError(
                f"a sentence and its reference take {len(ids)} of the {self.context} positions of "
                f"{self.card.name}, which leaves too few for the speech; give a shorter reference."
            )
        return Prompt((tuple(ids),), min(most, room), seed, place, sampling=sampling)

    def __call__(self, text: str, *, on_step: OnStep | None = None, **options: Any) -> SpeechResult:
        """As `generate_speech`, without model, codec, device and dtype."""
        stream = self.stream(text, together=TOGETHER, on_step=on_step, **options)
        for _ in stream:
            pass
        return stream.result()

    def stream(
        self, text: str, *, voice: str | None = None, reference: Recording | None = None,
        reference_text: str | None = None, speculative: bool = True, method: str | None = None, seed: int = 0,
        speed: float = 1.0, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float | None = None, together: int = 1, on_step: OnStep | None = None,
    ) -> SpeechStream:  # fmt: skip
        """An iterator of sound; leave it at any time, `result()` is what was said so far.

        together: sentences decoded at a time; 1 is soonest heard.
        """
        choice = self.chosen(speculative, method)
        if not SLOWEST <= speed <= FASTEST:
            raise InvalidArgument(f"speed={speed} is not possible; it must be from {SLOWEST} to {FASTEST:g}.")
        (row_seed,) = seeds(seed, 1, "text")
        sampling = self.sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty
        )
        script = self.family.read(text)
        speaker = self.family.voice(voice, reference, reference_text)
        prompts = [self.prompt(said, speaker, row_seed, place, sampling) for place, said in enumerate(script.sentences)]
        said = Said(text, script, speaker, row_seed)
        return SpeechStream(self, self.method(choice), prompts, said, speed, together, on_step)


@dataclass(frozen=True)
class Said:
    """What was asked for, and how it was read."""

    text: str
    script: Script
    voice: Voice
    seed: int


class SpeechStream(Iterator[SpeechChunk]):
    """Sound of one text, sentence after sentence."""

    def __init__(
        self, pipe: SpeechPipeline, method: Method, prompts: list[Prompt], said: Said, speed: float, together: int,
        on_step: OnStep | None,
    ) -> None:  # fmt: skip
        self.pipe, self.method, self.prompts, self.said, self.on_step = pipe, method, prompts, said, on_step
        family, pace = pipe.family, Pace.of(pipe.family)
        self.spoken = [Spoken(family.stream(said.voice, speed), pace) for _ in prompts]
        self.together, self.begun, self.count = together, 0, 0
        self.batch: Batch | None = None
        self.stats: list[DecodeStats] = []
        self.heard: list[NDArray[np.float32]] = []
        self.chunks = self._chunks()
        self.expected = sum(family.usual(sentence) for sentence in said.script.sentences)  # codes

    def __next__(self) -> SpeechChunk:
        return next(self.chunks)

    def close(self) -> None:
        """Stop here."""
        self.chunks.close()  # type: ignore[attr-defined]

    def _chunks(self) -> Iterator[SpeechChunk]:
        sounding = 0
        try:
            for last in self._steps():
                while sounding < self.begun:
                    sentence = self.spoken[sounding]
                    audio = sentence.hear().numpy()
                    if len(audio):
                        self.heard.append(audio)
                        yield SpeechChunk(audio, self.pipe.sample_rate, sounding, len(sentence.codes), last)
                    if sentence.finish is None:
                        break
                    sounding += 1
        finally:
            self._count()

    def _steps(self) -> Iterator[Step]:
        """Target passes over a few sentences at a time."""
        while self.begun < len(self.prompts):
            end = min(self.begun + self.together, len(self.prompts))
            ids = list(range(self.begun, end))
            self.batch, self.begun = start(self.method, self.prompts[self.begun : end], ids), end
            while len(self.batch):
                done = step(self.method, self.batch)
                self.count += 1
                self._take(done)
                if self.on_step is not None:
                    self.on_step(sum(len(sentence.codes) for sentence in self.spoken), self.expected, done)
                yield done
            self._count()

    def _take(self, done: Step) -> None:
        """What a pass has committed."""
        assert self.batch is not None
        loops = {}
        for request, new in zip(done.requests, done.committed, strict=True):
            sentence = self.spoken[request]
            if request in done.ended:
                sentence.finish = self.batch.requests[request].finish
            sentence.add(self.pipe.family.codes(torch.tensor(new)), self.count)
            if sentence.finish == "loop":
                loops[request] = "loop"
        leave(self.batch, loops)

    def _count(self) -> None:
        """Statistics of the sentences decoded together last."""
        if self.batch is not None:
            rows = DecodeStats.total(list(self.batch.stats.values()))
            rows.time(self.batch.watch)
            self.stats.append(rows)
            self.batch = None

    def result(self) -> SpeechResult:
        """Sound, tokens and statistics of what was said so far."""
        self.close()
        reasons = [sentence.finish for sentence in self.spoken]
        cut = [reason for reason in reasons if reason != "eos"]
        audio = np.concatenate(self.heard) if self.heard else np.zeros(0, np.float32)
        return SpeechResult(
            audio, self.pipe.sample_rate, torch.cat([sentence.codes for sentence in self.spoken]),
            torch.cat([sentence.passes for sentence in self.spoken]), DecodeStats.in_sequence(self.stats),
            "eos" if not cut else "cancelled" if None in cut else str(cut[0]), self.said.script.ignored,
            self.said.text, self.said.script.sentences, [len(sentence.codes) for sentence in self.spoken],
            self.said.voice.name, self.said.seed, self.pipe.card.name, self.method.name, self.pipe.family.silent,
        )  # fmt: skip


__all__ = ["SpeechChunk", "SpeechPipeline", "SpeechResult", "SpeechStream", "generate_speech"]
