"""The second stream: noise that is fresh in every pass, for verifiers that do not walk the tape.

Drafts, uniforms, residuals and bonus tokens of the published rules come from here, keyed by (seed, segment, the row's
pass number, which draw of the pass it is): row i of a batch draws what it would draw alone, and nothing of it is ever
shared with the noise tape, whose g would bias a residual.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from polydraft.core.tape import GOLDEN, NoiseTape, gumbel, mix, uniform

SECOND = 0x5EC0DD


class SecondStream:
    """Streams of a batch of rows. Every call is another draw; `turn` ends a pass."""

    def __init__(
        self, seeds: list[int], vocab: int, *, greedy: bool = False, segments: list[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.seeds, self.segments = list(seeds), list(segments or [0] * len(seeds))
        self.passes, self.draws = [0] * len(seeds), 0
        self.vocab, self.greedy, self.device = vocab, greedy, device

    def turn(self) -> None:
        """A pass is over."""
        self.passes = [number + 1 for number in self.passes]
        self.draws = 0

    def window(self, starts: list[int], width: int) -> Tensor:
        """Gumbel noise `[B, width, V]` to rank candidates with; zeros at temperature 0."""
        return self.gumbel(width)

    def further(self, starts: list[int], width: int, count: int) -> list[Tensor]:
        """`count` more windows, for rules that draw more than one token a node."""
        return [self.gumbel(width) for _ in range(count)]

    def gumbel(self, columns: int) -> Tensor:
        """`[B, columns, V]`; zeros at temperature 0, where the argmax alone decides."""
        if self.greedy:
            return torch.zeros(len(self.seeds), 1, 1, device=self.device).expand(-1, columns, self.vocab)
        seeds, keys = self._keys()
        return gumbel(seeds, keys, torch.arange(columns, device=self.device).expand(len(seeds), -1), self.vocab)

    def uniform(self, columns: int) -> Tensor:
        """`[B, columns]` float64 in (0, 1), at any temperature."""
        seeds, keys = self._keys()
        return uniform(seeds[:, None], keys[:, None], torch.arange(columns, device=self.device))

    def _keys(self) -> tuple[Tensor, Tensor]:
        """Seeds, and a key of segment, pass and draw."""
        seeds, segments, passes = (
            torch.tensor(x, device=self.device) for x in (self.seeds, self.segments, self.passes)
        )
        self.draws += 1
        return seeds ^ SECOND, mix(mix(segments * GOLDEN + passes) * GOLDEN + self.draws)

    def select(self, rows: list[int]) -> SecondStream:
        chosen = SecondStream(
            [self.seeds[row] for row in rows], self.vocab, greedy=self.greedy,
            segments=[self.segments[row] for row in rows], device=self.device,
        )  # fmt: skip
        chosen.passes, chosen.draws = [self.passes[row] for row in rows], self.draws
        return chosen

    @staticmethod
    def concat(streams: list[SecondStream]) -> SecondStream:
        joined = streams[0].select(list(range(len(streams[0].seeds))))
        for stream in streams[1:]:
            joined.seeds += stream.seeds
            joined.segments += stream.segments
            joined.passes += stream.passes
        return joined


Noise: TypeAlias = NoiseTape | SecondStream
