"""Text to speech with an autoregressive model: what users call.

    from polydraft import generate_speech, load
    generate_speech("We will meet again tomorrow.").save("out.wav")
    pipe = load("tiny-speech", method="vadusa")
    for chunk in pipe.stream("We will meet again tomorrow."): play(chunk.audio)

The same seed says the same thing the same way with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.decode import Batch, Method, Step, retire, start, step
from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.stats import DecodeStats
from polydraft.core.target import Prompt
from polydraft.modalities.loading import ModelCard, load, read_weights
from polydraft.modalities.pipeline import Pipeline, seeds
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codec import CodecStream, SpeechCodec
from polydraft.modalities.speech.lexicon import symbols
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.speech.text import read
from polydraft.modalities.speech.vocoder import SAMPLE_RATE

LONGEST_PROMPT = 136  # symbols and specials
USUAL = 3.7  # codes a symbol
CODES_A_SYMBOL, CODES_MORE, MOST_CODES = 5, 44, 600  # most codes a sentence may take
LARGEST_DRAFT = 48
SLOWEST, FASTEST = 0.25, 4.0
FIRST_CHUNK, CHUNK = 6, 25  # codes sounded at a time: soon at first, then half a second
TOGETHER = 8  # sentences decoded together when nobody waits for the first
LOOP_CODES, LONGEST_PERIOD = 100, 25  # two seconds that only repeat half a second or less


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
    text: str, *, voice: str | None = None, speculative: bool = True, model: str = "tiny-speech",
    method: str | None = None, seed: int = 0, speed: float = 1.0, temperature: float | None = None,
    top_k: int | None = None, top_p: float | None = None, device: str = "auto", dtype: str = "auto",
    on_step: OnStep | None = None,
) -> SpeechResult:  # fmt: skip
    """Say `text`.

    voice: one of the model's (`polydraft models tiny-speech`). speculative: True uses the model's best identical
    method, False plain decoding; the speech is the same. speed: from 0.25 to 4, at the same pitch. None means the
    model's own default; temperature 0 is greedy. Raises a PolydraftError that says what to change.
    """
    return _cached_pipeline(model, device, dtype)(
        text, voice=voice, speculative=speculative, method=method, seed=seed, speed=speed, temperature=temperature,
        top_k=top_k, top_p=top_p, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, device: str, dtype: str) -> SpeechPipeline:
    return load(model, device=device, dtype=dtype, modality="speech")


class SpeechPipeline(Pipeline):
    """A text-to-speech model with its weights, ready to speak with any of its methods."""

    sample_rate = SAMPLE_RATE

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.words = read_weights("vocabulary", card.path, lambda: vocabulary.load(card.path / "target"))
        self.code_offset = read_weights("vocabulary", card.path, lambda: vocabulary.code_offset(self.words))
        folder = card.path / "codec"
        self.codec = read_weights("codec", folder, lambda: SpeechCodec.from_folder(folder))
        wanted, vocab = self.code_offset + self.codec.config.codebook_size, self.target_model.config.vocab_size
        if wanted != vocab:
            raise WeightsError(
                f"the symbols and codes in {card.path} are {wanted} ids and its target knows {vocab}; "
                "its parts are of several models, install it again."
            )
        self.capacity = LONGEST_PROMPT + MOST_CODES + LARGEST_DRAFT
        self.eos = frozenset({vocabulary.END})

    @property
    def voices(self) -> list[str]:
        return self.card.manifest["voices"]

    @cached_property
    def mask(self) -> Tensor:
        """`[1, V]` bool: codes and the end."""
        ids = torch.arange(self.target_model.config.vocab_size, device=self.device)
        return ((ids >= self.code_offset) | (ids == vocabulary.END))[None]

    @cached_property
    def rigid(self) -> Tensor:  # type: ignore[override]
        return torch.arange(self.mask.shape[1], device=self.device) < self.code_offset

    @cached_property
    def codes(self) -> Tensor:
        vectors = self.codec.codebook
        codes = torch.full((self.mask.shape[1], vectors.shape[1]), torch.nan)
        codes[self.code_offset :] = vectors
        return codes.to(self.device)

    def sample_prompts(self) -> list[Prompt]:
        return [self.prompt(symbols(["yes", "."]), self.voices[0], 0, 0)]

    def prompt(self, written: list[str], voice: str, seed: int, sentence: int) -> Prompt:
        """A sentence in symbols, said by `voice`."""
        budget = min(len(written) * CODES_A_SYMBOL + CODES_MORE, MOST_CODES)
        return Prompt((tuple(vocabulary.prompt_ids(self.words, voice, written)),), budget, seed, sentence)

    def __call__(self, text: str, *, on_step: OnStep | None = None, **options: Any) -> SpeechResult:
        """As `generate_speech`, without model, device and dtype."""
        stream = self.stream(text, together=TOGETHER, on_step=on_step, **options)
        for _ in stream:
            pass
        return stream.result()

    def stream(
        self, text: str, *, voice: str | None = None, speculative: bool = True, method: str | None = None,
        seed: int = 0, speed: float = 1.0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, together: int = 1, on_step: OnStep | None = None,
    ) -> SpeechStream:  # fmt: skip
        """An iterator of sound; leave it at any time, `result()` is what was said so far.

        together: sentences decoded at a time; 1 is soonest heard.
        """
        choice = self.chosen(speculative, method)
        voice = self.voices[0] if voice is None else voice
        if voice not in self.voices:
            raise InvalidArgument(f"voice {voice!r} is unknown; {self.card.name} has {', '.join(self.voices)}.")
        if not SLOWEST <= speed <= FASTEST:
            raise InvalidArgument(f"speed={speed} is not possible; it must be from {SLOWEST} to {FASTEST:g}.")
        reading = read(text)
        (row_seed,) = seeds(seed, 1, "text")
        prompts = [self.prompt(symbols(words), voice, row_seed, place) for place, words in enumerate(reading.sentences)]
        run = self.method(choice, self.sampling(temperature=temperature, top_k=top_k, top_p=top_p))
        said = Said(text, [" ".join(words) for words in reading.sentences], reading.ignored, voice, row_seed)
        return SpeechStream(self, run, prompts, said, speed, together, on_step)


@dataclass(frozen=True)
class Said:
    """What was asked for, and how it was read."""

    text: str
    sentences: list[str]
    ignored: tuple[str, ...]
    voice: str
    seed: int


@dataclass
class Spoken:
    """A sentence under way. codes: `[T]`; passes: `[T]`, which target pass committed each; fed: codes that sound."""

    sound: CodecStream
    codes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    passes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    finish: str | None = None
    fed: int = 0

    def add(self, codes: Tensor, count: int) -> None:
        """Codes that pass `count` has committed; a loop ends the sentence where it is first seen."""
        before = len(self.codes)
        self.codes = torch.cat([self.codes, codes])
        looked = range(max(LOOP_CODES, before // LONGEST_PERIOD * LONGEST_PERIOD), len(self.codes) + 1, LONGEST_PERIOD)
        for end in looked:  # the same places whatever the passes
            if end > before and repeats(self.codes[end - LOOP_CODES : end]):
                self.codes, self.finish = self.codes[:end], "loop"
                break
        self.passes = torch.cat([self.passes, torch.full((len(self.codes) - before,), count)])

    def hear(self) -> Tensor:
        """New sound: all of it at the end of the sentence, before that when there is enough."""
        waiting = len(self.codes) - self.fed
        if self.finish is None and waiting < (CHUNK if self.fed else FIRST_CHUNK + self.sound.look_ahead):
            return torch.empty(0)
        new, self.fed = self.codes[self.fed :], len(self.codes)
        sound = self.sound.push(new)
        return sound if self.finish is None else torch.cat([sound, self.sound.finish()])


def repeats(codes: Tensor) -> bool:
    """Whether codes `[LOOP_CODES]` only repeat their last half second or less."""
    return any(torch.equal(codes[period:], codes[:-period]) for period in range(1, LONGEST_PERIOD + 1))


class SpeechStream(Iterator[SpeechChunk]):
    """Sound of one text, sentence after sentence."""

    def __init__(
        self, pipe: SpeechPipeline, method: Method, prompts: list[Prompt], said: Said, speed: float, together: int,
        on_step: OnStep | None,
    ) -> None:  # fmt: skip
        self.pipe, self.method, self.prompts, self.said, self.on_step = pipe, method, prompts, said, on_step
        self.spoken = [Spoken(CodecStream(pipe.codec, pipe.voices.index(said.voice), speed)) for _ in prompts]
        self.together, self.begun, self.count = together, 0, 0
        self.batch: Batch | None = None
        self.stats: list[DecodeStats] = []
        self.heard: list[NDArray[np.float32]] = []
        self.chunks = self._chunks()
        self.expected = round(USUAL * sum(len(prompt.branches[0]) for prompt in prompts))  # codes

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
            while len(self.batch.state):
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
        rows = {request: self.batch.state.output(row) for row, request in enumerate(self.batch.state.ids)}
        for request, before in zip(done.requests, done.generated, strict=True):
            ids, reason = self.batch.done[request] if request in self.batch.done else (rows[request], None)
            sentence, new = self.spoken[request], ids[before:].cpu()
            sentence.finish = reason
            sentence.add(new[new >= self.pipe.code_offset] - self.pipe.code_offset, self.count)
            if sentence.finish == "loop" and request in rows:
                self.batch.state.finish[self.batch.state.ids.index(request)] = "loop"
        retire(self.method, self.batch)

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
            "eos" if not cut else "cancelled" if None in cut else str(cut[0]), self.said.ignored, self.said.text,
            self.said.sentences, [len(sentence.codes) for sentence in self.spoken], self.said.voice, self.said.seed,
            self.pipe.card.name, self.method.name,
        )  # fmt: skip


__all__ = ["SpeechChunk", "SpeechPipeline", "SpeechResult", "SpeechStream", "generate_speech"]
