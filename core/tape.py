"""The noise tape: Gumbel noise tied to (seed, segment, position, token), not to the pass that asks for it.

The token at position t of a row is `argmax_v(log p_t(v) + g_t(v))`. Plain decoding is then a deterministic function of
prompt and seed, and drafting is guessing that argmax (Gumbel coupling; Daliri, Musco and Suresh 2024,
"Coupling without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed 64-bit integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """The SplitMix64 finaliser (Steele, Lea and Flood 2014): a counter in, 64 well-mixed bits out, on any device."""
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def uniform(*keys: Tensor) -> Tensor:
    """Float64 uniforms strictly inside (0, 1), a pure function of integer keys (broadcast together)."""
    state = torch.zeros((), dtype=torch.long, device=keys[0].device)
    for key in keys:
        state = mix((state + GOLDEN) ^ mix(key.long() * GOLDEN + GOLDEN))
    return (_shift(state, 12).double() + 0.5) * 2.0**-52


def gumbel(seeds: Tensor, segments: Tensor, t: Tensor, vocab: int) -> Tensor:
    """Gumbel noise `[B, K, V]` float32 for positions `t` `[B, K]` of rows with `seeds` `[B]` and `segments` `[B]`.

    One key is mixed per position, then one per token: drawn in float64, so it is always finite.
    """
    entries = torch.arange(vocab, device=t.device)
    place = mix(mix(mix(seeds * GOLDEN + GOLDEN) + segments)[:, None] * GOLDEN + t)
    bits = mix(place[..., None] + entries * GOLDEN)
    draws = (_shift(bits, 12).double() + 0.5).mul_(2.0**-52)
    return draws.log_().neg_().log_().neg_().float()


class NoiseTape:
    """Tapes of a batch of rows, each drawn once in order and kept in a ring while a draft can reach it.

    seeds: one per row. `temperature == 0` is a tape of zeros: the argmax alone decides.
    reach: the longest window anyone will ask for, in positions.
    """

    def __init__(
        self, seeds: list[int], vocab: int, reach: int, *, greedy: bool = False,
        segments: list[int] | None = None, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.seeds, self.segments = list(seeds), list(segments or [0] * len(seeds))
        self.vocab, self.greedy, self.device = vocab, greedy, device
        self.span = 0 if greedy else 2 * reach + 32
        self.ring = torch.zeros(len(seeds), self.span, vocab, device=device)
        self.drawn = [0] * len(seeds)

    def window(self, starts: list[int], width: int) -> Tensor:
        """Noise of positions `starts[b] … starts[b] + width - 1`, `[B, width, V]`; starts never move backwards."""
        if self.greedy:
            return torch.zeros(len(starts), 1, 1, device=self.device).expand(-1, width, self.vocab)
        for row, start in enumerate(starts):
            if start + width > self.drawn[row]:
                self._draw(row, max(start, self.drawn[row]), start + self.span - self.span // 3)
        places = torch.tensor(starts, device=self.device)[:, None] + torch.arange(width, device=self.device)
        rows = torch.arange(len(starts), device=self.device)[:, None]
        return self.ring[rows, places % self.span]

    def further(self, starts: list[int], width: int, count: int) -> list[Tensor]:
        """`count` more windows on tapes of their own, for rules that draw more than one token a node."""
        if self.greedy:
            return [self.window(starts, width)] * count
        seeds, segments, first = (torch.tensor(x, device=self.device) for x in (self.seeds, self.segments, starts))
        t = first[:, None] + torch.arange(width, device=self.device)
        return [gumbel(seeds, mix(segments * GOLDEN + index + 1), t, self.vocab) for index in range(count)]

    def turn(self) -> None:
        """A pass is over; the tape does not care."""

    def _draw(self, row: int, first: int, end: int) -> None:
        """Fill the ring from `first` up to `end`; older positions give way."""
        t = torch.arange(first, end, device=self.device)
        seed, segment = (torch.tensor([value], device=self.device) for value in (self.seeds[row], self.segments[row]))
        self.ring[row, t % self.span] = gumbel(seed, segment, t[None], self.vocab)[0]
        self.drawn[row] = end

    def select(self, rows: list[int]) -> NoiseTape:
        chosen = object.__new__(NoiseTape)
        chosen.__dict__.update(self.__dict__)
        chosen.seeds = [self.seeds[row] for row in rows]
        chosen.segments = [self.segments[row] for row in rows]
        chosen.drawn = [self.drawn[row] for row in rows]
        chosen.ring = self.ring[rows]
        return chosen

    @staticmethod
    def concat(tapes: list[NoiseTape]) -> NoiseTape:
        joined = tapes[0].select(list(range(len(tapes[0].seeds))))
        for tape in tapes[1:]:
            joined.seeds += tape.seeds
            joined.segments += tape.segments
            joined.drawn += tape.drawn
        joined.ring = torch.cat([tape.ring for tape in tapes])
        return joined
