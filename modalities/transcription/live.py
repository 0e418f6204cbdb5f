"""Live captions: sound that grows is transcribed again and again, and words that stay the same are final.

    for caption in pipe.listen(chunks, language="en"):      # chunks: float32 [S] at 16 kHz, of any length
        print(caption.final, caption.tentative)

A word is final once two transcripts in turn agree on it and on all before it (local agreement; Liu et al. 2020, and
Macháček et al. 2023, arXiv 2307.14743). Once a whole segment is final the window begins after it. Every transcript is
drafted from the one before (`core/drafters/hypothesis.py`), which holds nearly all of it, so it takes few passes; when
the window moves, from the part of it that is still in the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.stats import DecodeStats
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT
from polydraft.modalities.transcription.segments import FRAMES_PER_STEP
from polydraft.modalities.transcription.sound import SAMPLE_RATE

if TYPE_CHECKING:
    from polydraft.modalities.transcription.features import LogMelStream
    from polydraft.modalities.transcription.pipeline import WhisperPipeline

INTERVAL = 1.0  # seconds of new sound between two transcripts
LONGEST = 0.8  # share of a window from which on final segments leave it


@dataclass(frozen=True)
class Caption:
    """Text of live sound after a transcript."""

    final: str  # text that has become final since the last caption
    tentative: str  # text after it, which may change
    seconds: float  # of sound heard
    stats: DecodeStats  # of this transcript


@dataclass(frozen=True)
class LiveOptions:
    """Settings of live captions."""

    language: str | None
    task: str
    interval: float  # seconds of new sound between two transcripts
    seed: int


class LiveTranscript:
    """Transcript of sound that grows, of one window at a time.

    Args:
        pipe (WhisperPipeline): the pipeline.
        method (Method): the decoding method.
        options (LiveOptions): settings.
    """

    def __init__(self, pipe: WhisperPipeline, method: Method, options: LiveOptions) -> None:
        self.pipe: WhisperPipeline = pipe
        self.method: Method = method
        self.options: LiveOptions = options
        self.features: LogMelStream = pipe.log_mel.stream()
        self.first_frame: int = 0  # of the window
        self.ids: list[int] = []  # the window's last transcript, timestamps included
        self.num_final: int = 0  # words among its tokens that are final
        self.heard: int = 0  # samples at the last transcript

    @property
    def num_frames(self) -> int:
        """Return the number of frames of sound in the window."""
        return self.features.num_samples // self.pipe.log_mel.hop_length - self.first_frame

    def push(self, samples: NDArray[np.float32]) -> Iterator[Caption]:
        """Append sound at 16 kHz, and yield a caption for every interval that it completes."""
        step = max(1, round(self.options.interval * SAMPLE_RATE))
        while len(samples):
            missing = self.heard + step - self.features.num_samples
            self.features.push(samples[:missing])
            samples = samples[missing:]
            if self.features.num_samples == self.heard + step:
                yield self.transcribe()

    def append(self, samples: NDArray[np.float32]) -> Caption:
        """Append sound at 16 kHz of any length and transcribe once: who is behind catches up by longer pieces."""
        self.features.push(samples)
        return self.transcribe()

    def close(self) -> None:
        """Give the features' memory back, where the sound is not finished."""
        self.features.close()

    def finish(self) -> Iterator[Caption]:
        """Yield the last captions, whose text is all final, and end."""
        if self.features.num_samples > self.heard:
            yield self.transcribe()
        words = self.words(self.ids)[self.num_final :]
        self.num_final += len(words)
        self.features.close()
        yield Caption(self.pipe.decode_text(words), "", self.features.duration, DecodeStats(self.method.name, ""))

    def transcribe(self) -> Caption:
        """Transcribe the window anew."""
        self.heard = self.features.num_samples
        final = self.make_room()
        before, (self.ids, stats) = self.words(self.ids), self.decode_window()
        now = self.words(self.ids)
        agreeing = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
        final += now[self.num_final : agreeing]
        self.num_final = max(self.num_final, agreeing)
        tentative = now[self.num_final :]
        return Caption(self.pipe.decode_text(final), self.pipe.decode_text(tentative), self.features.duration, stats)

    def decode_window(self) -> tuple[list[int], DecodeStats]:
        """Return the transcript of the window's sound so far, without its end, drafted from the last one."""
        pipe, options = self.pipe, self.options
        num_frames = min(self.num_frames, pipe.window_frames)
        if num_frames < 1:  # the last window has just left
            return [], DecodeStats(self.method.name, self.method.effective_guarantee)
        given = pipe.encoder_input(self.features, self.first_frame, num_frames)
        prompt_ids = pipe.control_tokens.prompt(options.language, options.task, timestamps=True)
        prompt = PromptInputs(
            (prompt_ids,), pipe.context_len - len(prompt_ids), options.seed, self.first_frame, {ENCODER_INPUT: given},
            pipe.sampling_params(temperature=0.0), tuple(self.ids),
        )  # fmt: skip
        with pipe.lock:
            batch = start_batch(self.method, [prompt])
            for _ in decode(self.method, batch):
                pass
        ids: list[int] = batch.outputs()[0].tolist()
        return [token for token in ids if token != pipe.control_tokens.end], batch.stats[0]

    def make_room(self) -> list[int]:
        """Let the window begin after final segments once it is long; return words that become final because they leave.

        Where no segment is final and the window is full, all of it leaves.
        """
        full = self.pipe.window_frames
        if self.num_frames < LONGEST * full:
            return []
        cut = self.last_final_pair()
        if cut is not None:
            first = self.pipe.control_tokens.first_timestamp
            num_steps = self.ids[cut] - first
            self.first_frame += min(num_steps * FRAMES_PER_STEP, self.num_frames)  # a timestamp may lie after the sound
            self.num_final -= len(self.words(self.ids[:cut]))
            # what follows is the transcript of the new window so far, with times from its start
            self.ids = [token - num_steps if token >= first else token for token in self.ids[cut:]]
            return []
        if self.num_frames < full:
            return []
        words = self.words(self.ids)[self.num_final :]
        self.first_frame += full
        self.ids, self.num_final = [], 0
        return words

    def last_final_pair(self) -> int | None:
        """Return the index of the second timestamp of the last pair before which all words are final; None for none."""
        first = self.pipe.control_tokens.first_timestamp
        pairs = [index + 1 for index, both in enumerate(pairwise(self.ids)) if min(both) >= first and both[1] > first]
        final = [index for index in pairs if len(self.words(self.ids[:index])) <= self.num_final]
        return final[-1] if final else None

    def words(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that are no timestamps."""
        return [token for token in ids if token < self.pipe.control_tokens.end]


def listen(live: LiveTranscript, chunks: Iterable[NDArray[np.float32]]) -> Iterator[Caption]:
    """Yield captions of sound that comes in chunks, float32 `[S]` at 16 kHz."""
    for chunk in chunks:
        yield from live.push(np.asarray(chunk, np.float32))
    yield from live.finish()
