"""Speech requests: state of the sentences during decoding, streamed audio, and the final result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.decode import Method, StepResult
from polydraft.core.stopping import StopPoint
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.request import GenerationRequest, GenerationStream
from polydraft.modalities.speech.crossfade import crossfade_parts
from polydraft.modalities.speech.family import AudioStream, Script, Voice
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.speech.sentence_stream import ChunkSizes, SentenceStream

if TYPE_CHECKING:
    from polydraft.modalities.speech.pipeline import SpeechPipeline

OnStep = Callable[[int, int, StepResult], None]  # codes so far, expected number of codes, and the step


@dataclass(frozen=True)
class SpeechChunk:
    """Audio that continues the chunk before without a seam."""

    audio: NDArray[np.float32] = field(repr=False)  # [S]
    sample_rate: int
    sentence: int  # index of the sentence
    codes: int  # committed so far in this sentence
    step: StepResult = field(repr=False)  # of the decoding loop


@dataclass(frozen=True)
class SpeechProgress:
    """Audio that continues the piece before without a seam, and the progress of the whole text."""

    audio: NDArray[np.float32] = field(repr=False)  # [S], may be empty
    sample_rate: int
    sentence: int  # index of the sentence
    codes: int  # committed so far in this sentence
    tokens_done: int
    passes: int
    committed_at: Tensor = field(repr=False)  # [codes] pass that committed each code of this sentence, from 1
    expected: int  # estimate of the codes of the whole text
    seconds: float  # of decoding


@dataclass(frozen=True)
class SpeechRequestInfo:
    """Arguments of a speech request, and the sentences that its text was split into."""

    text: str
    script: Script
    voice: Voice
    seed: int


class SpeechGenerationRequest(GenerationRequest[SpeechProgress, SpeechResult]):
    """Request for one text; its sentences are prompts that decode together and are emitted in order."""

    def __init__(
        self,
        pipe: SpeechPipeline,
        method: Method,
        prompts: list[PromptInputs],
        info: SpeechRequestInfo,
        speed: float,
        together: int,
    ) -> None:
        super().__init__(method, prompts, together)
        self.pipe: SpeechPipeline = pipe
        self.info: SpeechRequestInfo = info
        streams: list[AudioStream] = [pipe.family.open_audio_stream(info.voice, speed) for _ in prompts]
        if info.script.marks:
            streams = crossfade_parts(
                streams, info.script.marks, pipe.sample_rate, speed, pipe.family.comma_pause(info.voice)
            )
        self.sentences: list[SentenceStream]
        self.sentences = [SentenceStream(stream, ChunkSizes.for_family(pipe.family)) for stream in streams]
        self.token_ids: list[list[int]] = [[] for _ in prompts]
        self.audio_pieces: list[NDArray[np.float32]] = []
        self.current_sentence: int = 0
        self.expected: int = sum(pipe.family.expected_codes(sentence) for sentence in info.script.sentences)  # codes

    @property
    def has_failed(self) -> bool:
        """Check whether any sentence failed, since audio with a gap is not a valid result."""
        return bool(self.errors)

    @property
    def codes(self) -> int:
        """Return the number of codes committed so far."""
        return sum(len(sentence.codes) for sentence in self.sentences)

    def on_tokens(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, StopPoint]:
        loops = {}
        for index, (num_before, tokens) in committed.items():
            sentence = self.sentences[index]
            if index in ended:
                sentence.finish = self.rows[index].finish
            num_kept = sentence.append_codes(self.extract_codes(tokens), self.passes)
            if sentence.finish == "loop":
                tokens = self.tokens_up_to_code(tokens, num_kept)
                loops[index] = StopPoint("loop", num_before + len(tokens))
            self.token_ids[index] += tokens
        return loops

    def extract_codes(self, tokens: list[int]) -> Tensor:
        """Return the codes among tokens."""
        return self.pipe.family.extract_codes(torch.tensor(tokens, dtype=torch.long))

    def tokens_up_to_code(self, tokens: list[int], count: int) -> list[int]:
        """Return the shortest prefix of `tokens` that contains `count` codes."""
        return next(
            prefix for end in range(len(tokens) + 1) if len(self.extract_codes(prefix := tokens[:end])) == count
        )

    def poll_events(self) -> list[SpeechProgress]:
        events = []
        while self.current_sentence < self.num_started:
            sentence = self.sentences[self.current_sentence]
            audio = sentence.pop_audio().numpy()
            if len(audio):
                self.audio_pieces.append(audio)
                events.append(
                    SpeechProgress(
                        audio,
                        self.pipe.sample_rate,
                        self.current_sentence,
                        len(sentence.codes),
                        self.num_generated,
                        self.passes,
                        sentence.passes.clone(),
                        self.expected,
                        self.decode_seconds,
                    )
                )
            if sentence.finish is None:
                break
            self.current_sentence += 1
        return events

    def result(self) -> SpeechResult:
        """Return audio, tokens and statistics of what was emitted so far."""
        reasons = [sentence.finish for sentence in self.sentences]
        cut = [reason for reason in reasons if reason != "eos"]
        audio = np.concatenate(self.audio_pieces) if self.audio_pieces else np.zeros(0, np.float32)
        return SpeechResult(
            audio, self.pipe.sample_rate, torch.cat([sentence.codes for sentence in self.sentences]),
            torch.cat([sentence.passes for sentence in self.sentences]), self.total_stats(),
            "eos" if not cut else "cancelled" if None in cut else str(cut[0]), self.info.script.ignored,
            self.info.text, self.info.script.sentences, [len(sentence.codes) for sentence in self.sentences],
            self.info.voice.name, self.info.seed, self.pipe.card.name, self.method.name,
            self.pipe.family.no_audio_reason,
            [list(tokens) for tokens in self.token_ids], (self.info.voice.note,) if self.info.voice.note else (),
        )  # fmt: skip


class SpeechStream(GenerationStream[SpeechGenerationRequest], Iterator[SpeechChunk]):
    """Iterator over the audio of one text, sentence after sentence."""

    def __init__(self, run: SpeechGenerationRequest, on_step: OnStep | None = None) -> None:
        super().__init__(run)
        self.on_step: OnStep | None
        self.chunks: Iterator[SpeechChunk]
        self.on_step, self.chunks = on_step, self._chunks()

    def __next__(self) -> SpeechChunk:
        return next(self.chunks)

    def close(self) -> None:
        """End the stream."""
        super().close()
        self.chunks.close()  # type: ignore[attr-defined]

    def _chunks(self) -> Iterator[SpeechChunk]:
        for step in self.steps():
            if self.on_step is not None:
                self.on_step(self.request.codes, self.request.expected, step)
            with self.request.pipe.lock:
                events = self.request.poll_events()
            for event in events:
                yield SpeechChunk(event.audio, event.sample_rate, event.sentence, event.codes, step)

    def result(self) -> SpeechResult:
        """Return audio, tokens and statistics of what was synthesised so far, and end the stream."""
        self.close()
        return self.request.result()
