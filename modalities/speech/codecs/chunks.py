"""Chunked decoding of a growing stream of codes; the audio of the context around a chunk is dropped.

    stream = ChunkStream(window, decode, first=6, chunk=25)
    audio = stream.push(codes[:20]); …; stream.finish()

Chunk boundaries do not depend on when codes arrive, so the audio is a function of the codes alone: streamed and whole
audio are bitwise equal. A codec whose receptive field fits into the window gives the audio of a single decode; one with
global attention (a transformer) is approximated by its window, and its chunks are crossfaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Decode = Callable[[Tensor, int], Tensor]  # codes [T], index of the first code → audio [T · samples]


@dataclass(frozen=True)
class DecodeWindow:
    """Context in codes that a chunk is decoded with."""

    samples_per_code: float
    before: int  # codes of left context
    after: int  # codes of right context
    fade: int = 0  # codes over which a chunk is crossfaded into the next
    frame: int = 1  # codes that can only be decoded together

    def num_samples(self, codes: int) -> int:
        """Return the number of samples of `codes` codes."""
        return round(codes * self.samples_per_code)


class ChunkStream:
    """Audio stream that decodes codes in chunks; the codes of `lead` are context only."""

    def __init__(
        self, window: DecodeWindow, decode: Decode, first: int, chunk: int, lead: Tensor | None = None
    ) -> None:
        self.window: DecodeWindow = window
        self.decode: Decode = decode
        self.size: int = chunk
        self.end: int = first
        self.codes: Tensor
        self.codes = torch.empty(0, dtype=torch.long) if lead is None else lead[max(0, len(lead) - window.before) :]
        self.lead: int = len(self.codes)
        self.begin: int = 0  # the current chunk is codes begin … end, counted after `lead`
        self.tail: Tensor = torch.empty(0)  # audio of this chunk's first codes, as decoded with the previous chunk

    @property
    def look_ahead(self) -> int:
        return self.window.after

    def push(self, codes: Tensor) -> Tensor:
        self.codes = torch.cat([self.codes, codes])
        audio = []
        while len(self.codes) - self.lead >= self.end + self.window.after:
            audio.append(self._chunk(self.end))
        return torch.cat(audio) if audio else torch.empty(0)

    def finish(self) -> Tensor:
        """Return the last samples; codes of an incomplete frame are dropped."""
        num_known = len(self.codes) - self.lead
        num_known -= num_known % self.window.frame
        self.codes = self.codes[: self.lead + num_known]
        audio = []
        while self.begin < num_known:
            audio.append(self._chunk(min(self.end, num_known)))
        return torch.cat(audio) if audio else torch.empty(0)

    @torch.inference_mode()
    def _chunk(self, end: int) -> Tensor:
        """Decode codes `begin … end`; the next chunk begins there."""
        window = self.window
        first = max(0, self.lead + self.begin - window.before)
        window_codes = self.codes[first : self.lead + end + window.after]
        audio = self.decode(window_codes, first - self.lead)[window.num_samples(self.lead + self.begin - first) :]
        length, num_faded = window.num_samples(end - self.begin), len(self.tail)
        if num_faded:
            fade_in = torch.linspace(0, 1, num_faded + 2)[1:-1]
            audio[:num_faded] = self.tail + (audio[:num_faded] - self.tail) * fade_in
        self.tail = audio[length : length + window.num_samples(window.fade)].clone()
        self.begin, self.end = end, end + self.size
        return audio[:length]
