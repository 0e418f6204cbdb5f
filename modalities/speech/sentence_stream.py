"""A sentence during synthesis: committed codes, detection of loops, and the audio decoded so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.modalities.speech.family import CHUNK, FIRST_CHUNK, AudioStream, SpeechFamily

LONGEST_PERIOD = 0.5  # seconds; longest period of a loop
LOOP = 4  # repetitions of the longest period that count as a loop


@dataclass(frozen=True)
class ChunkSizes:
    """Lengths of audio chunks and of loops, in codes."""

    first: int  # of the first chunk
    chunk: int  # of later chunks
    loop: int  # of a stretch that counts as a loop
    period: int  # longest period of a loop

    @staticmethod
    def for_family(family: SpeechFamily) -> ChunkSizes:
        period = family.codes_in_seconds(LONGEST_PERIOD)
        return ChunkSizes(family.codes_in_seconds(FIRST_CHUNK), family.codes_in_seconds(CHUNK), LOOP * period, period)


@dataclass
class SentenceStream:
    """Codes of one sentence and their audio."""

    audio_stream: AudioStream
    chunk_sizes: ChunkSizes
    codes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    passes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    finish: str | None = None
    num_decoded: int = 0

    def append_codes(self, codes: Tensor, pass_index: int) -> int:
        """Append the codes that a pass committed, up to the end of the first detected loop, and return their number."""
        before, loop, period = len(self.codes), self.chunk_sizes.loop, self.chunk_sizes.period
        self.codes = torch.cat([self.codes, codes])
        for end in range(max(loop, before // period * period), len(self.codes) + 1, period):
            # Ends are checked at multiples of the period, so that the result does not depend on how passes chunk codes.
            if end > before and is_periodic(self.codes[end - loop : end], period):
                self.codes, self.finish = self.codes[:end], "loop"
                break
        num_kept = len(self.codes) - before
        self.passes = torch.cat([self.passes, torch.full((num_kept,), pass_index)])
        return num_kept

    def pop_audio(self) -> Tensor:
        """Return new samples: all that remain at the end of the sentence, whole chunks before that.

        Chunk sizes do not depend on when codes arrive, so that equal codes give bitwise equal audio.
        """
        pieces = [torch.empty(0)]
        while len(self.codes) - self.num_decoded >= (
            size := self.chunk_sizes.chunk if self.num_decoded else self.first_chunk_size
        ):
            pieces.append(self.audio_stream.push(self.codes[self.num_decoded : self.num_decoded + size]))
            self.num_decoded += size
        if self.finish is not None:
            pieces += [self.audio_stream.push(self.codes[self.num_decoded :]), self.audio_stream.finish()]
            self.num_decoded = len(self.codes)
        return torch.cat(pieces)

    @property
    def first_chunk_size(self) -> int:
        """Return the number of codes of the first chunk."""
        return self.chunk_sizes.first + self.audio_stream.look_ahead


def is_periodic(codes: Tensor, longest: int) -> bool:
    """Check whether codes `[T]` repeat with a period of at most `longest`."""
    return any(torch.equal(codes[period:], codes[:-period]) for period in range(1, longest + 1))
