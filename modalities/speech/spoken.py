"""A sentence under way: its codes as passes commit them, where it loops, and when there is enough to sound."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.modalities.speech.family import CHUNK, FIRST_CHUNK, SoundStream, SpeechFamily

LONGEST_PERIOD = 0.5  # seconds of what a loop repeats, or less
LOOP = 4  # times so much is a loop


@dataclass(frozen=True)
class Pace:
    """Lengths in codes: of the first and later chunks, of a loop and of the longest thing it may repeat."""

    first: int
    chunk: int
    loop: int
    period: int

    @staticmethod
    def of(family: SpeechFamily) -> Pace:
        period = family.span(LONGEST_PERIOD)
        return Pace(family.span(FIRST_CHUNK), family.span(CHUNK), LOOP * period, period)


@dataclass
class Spoken:
    """codes: `[T]`; passes: `[T]`, which target pass committed each; fed: codes that sound."""

    sound: SoundStream
    pace: Pace
    codes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    passes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    finish: str | None = None
    fed: int = 0

    def add(self, codes: Tensor, count: int) -> int:
        """Take codes that pass `count` has committed, up to where a loop is first seen, and return how many."""
        before, loop, period = len(self.codes), self.pace.loop, self.pace.period
        self.codes = torch.cat([self.codes, codes])
        for end in range(max(loop, before // period * period), len(self.codes) + 1, period):
            # the same places whatever the passes
            if end > before and repeats(self.codes[end - loop : end], period):
                self.codes, self.finish = self.codes[:end], "loop"
                break
        kept = len(self.codes) - before
        self.passes = torch.cat([self.passes, torch.full((kept,), count)])
        return kept

    def hear(self) -> Tensor:
        """New sound: all of it at the end of the sentence, before that when there is enough.

        Pieces are of the same sizes whenever codes come, so that the same codes are the same sound to the bit.
        """
        heard = [torch.empty(0)]
        while len(self.codes) - self.fed >= (size := self.pace.chunk if self.fed else self.first):
            heard.append(self.sound.push(self.codes[self.fed : self.fed + size]))
            self.fed += size
        if self.finish is not None:
            heard += [self.sound.push(self.codes[self.fed :]), self.sound.finish()]
            self.fed = len(self.codes)
        return torch.cat(heard)

    @property
    def first(self) -> int:
        """Codes of the first piece."""
        return self.pace.first + self.sound.look_ahead


def repeats(codes: Tensor, longest: int) -> bool:
    """Whether codes `[T]` only repeat their last `longest` or fewer."""
    return any(torch.equal(codes[period:], codes[:-period]) for period in range(1, longest + 1))
