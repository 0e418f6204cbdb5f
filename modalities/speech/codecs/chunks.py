"""Sound of a growing stream of codes, for codecs that look around: chunks decoded with context that is dropped.

    stream = ChunkStream(window, decode, first=6, chunk=25)
    sound = stream.push(codes[:20]); …; stream.finish()

Chunks end at fixed codes, whatever arrives when, so the sound is a function of the codes alone: streamed is whole, bit
for bit. A codec that looks no further than its window sounds as if all had been decoded at once; one that looks at
everything (a transformer) sounds as its window allows, and its chunks are faded into each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Decode = Callable[[Tensor, int], Tensor]  # codes [T], place of the first → sound [T · samples]


@dataclass(frozen=True)
class DecodeWindow:
    """Context that a chunk is decoded with: codes before and after it, and how many of those fade it into the next.

    frame: codes that only sound together; samples: of a code.
    """

    samples: float
    before: int
    after: int
    fade: int = 0
    frame: int = 1

    def count(self, codes: int) -> int:
        return round(codes * self.samples)


class ChunkStream:
    """lead: codes heard before, which are context and do not sound."""

    def __init__(
        self, window: DecodeWindow, decode: Decode, first: int, chunk: int, lead: Tensor | None = None
    ) -> None:
        self.window, self.decode, self.size, self.end = window, decode, chunk, first
        self.codes = torch.empty(0, dtype=torch.long) if lead is None else lead[max(0, len(lead) - window.before) :]
        self.lead = len(self.codes)
        self.begin = 0  # the chunk under way is codes begin … end, counted from the first that sounds
        self.tail = torch.empty(0)  # what the last chunk made of the codes that begin this one

    @property
    def look_ahead(self) -> int:
        return self.window.after

    def push(self, codes: Tensor) -> Tensor:
        self.codes = torch.cat([self.codes, codes])
        sound = []
        while len(self.codes) - self.lead >= self.end + self.window.after:
            sound.append(self._chunk(self.end))
        return torch.cat(sound) if sound else torch.empty(0)

    def finish(self) -> Tensor:
        """The last sound; codes of an unfinished frame are left out."""
        known = len(self.codes) - self.lead
        known -= known % self.window.frame
        self.codes = self.codes[: self.lead + known]
        sound = []
        while self.begin < known:
            sound.append(self._chunk(min(self.end, known)))
        return torch.cat(sound) if sound else torch.empty(0)

    @torch.inference_mode()
    def _chunk(self, end: int) -> Tensor:
        """The sound of codes `begin … end`; the next chunk begins there."""
        window = self.window
        first = max(0, self.lead + self.begin - window.before)
        around = self.codes[first : self.lead + end + window.after]
        sound = self.decode(around, first - self.lead)[window.count(self.lead + self.begin - first) :]
        length, faded = window.count(end - self.begin), len(self.tail)
        if faded:
            rising = torch.linspace(0, 1, faded + 2)[1:-1]
            sound[:faded] = self.tail + (sound[:faded] - self.tail) * rising
        self.tail = sound[length : length + window.count(window.fade)].clone()
        self.begin, self.end = end, end + self.size
        return sound[:length]
