"""Noise of a batch of rows: the tape, tied to places, and the second stream, fresh in every pass.

The token at position t of a row is `argmax_v(log p_t(v) + g_t(v))` with g from the row's tape, a pure function of
(seed, segment, position, token). A latent has normal noise by the same key, a step of its chain in the token's place
(`core.latent`). Plain decoding is then a deterministic function of prompt and seed, and drafting is
guessing that argmax (Gumbel coupling; Daliri, Musco and Suresh 2024, "Coupling without Communication and
Drafter-Invariant Speculative Decoding", arXiv 2408.07978). Published rules draw from the second stream instead, keyed
by (seed, segment, the row's pass, which draw of the pass it is): tape noise would be used twice there, which is biased.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from polydraft.core.rows import Rows, following

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
SECOND = 0x5EC0DD  # keeps the second stream apart from the tape
STEP = 2.0**-31  # of the 31 bits that a draw has


def shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed 64-bit integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """The SplitMix64 finaliser (Steele, Lea and Flood 2014): a counter in, 64 well-mixed bits out, on any device."""
    x = (x ^ shifted(x, 30)) * MIX_1
    x = (x ^ shifted(x, 27)) * MIX_2
    return x ^ shifted(x, 31)


def uniform(*keys: Tensor) -> Tensor:
    """Float64 uniforms strictly inside (0, 1), a pure function of integer keys (broadcast together)."""
    state = torch.zeros((), dtype=torch.long, device=keys[0].device)
    for key in keys:
        state = mix((state + GOLDEN) ^ mix(key.long() * GOLDEN + GOLDEN))
    return unit(state)


def unit(bits: Tensor) -> Tensor:
    """Random bits as float64 strictly inside (0, 1)."""
    return (shifted(bits, 12).double() + 0.5) * 2.0**-52


@lru_cache(maxsize=8)
def token_keys(vocab: int, device: torch.device) -> Tensor:
    """64 random bits for every token, `[V]`."""
    with torch.inference_mode(False):
        return mix(torch.arange(1, vocab + 1, device=device) * GOLDEN)


def row_keys(seeds: Tensor, segments: Tensor) -> Tensor:
    """`[B]`: one key for seed and segment."""
    return mix(mix(seeds * GOLDEN + GOLDEN) + segments)


def gumbel(keys: Tensor, t: Tensor, vocab: int) -> Tensor:
    """Gumbel noise `[B, K, V]` float32 for positions `t` `[B, K]` of rows with `keys` `[B]`, see `row_keys`.

    A place has two keys and a token one; multiply-shift hashing of their sum gives 31 bits (Dietzfelbinger et al. 1997,
    "A Reliable Randomized Algorithm for the Closest-Pair Problem"). Small exponentials decide who wins and keep all
    their bits: `-log1p(-u)` of small u.
    """
    place = mix(keys[:, None] * GOLDEN + t)
    bits = token_keys(vocab, t.device) + place[..., None]
    bits.mul_((place * MIX_2 | 1)[..., None]).bitwise_right_shift_(33).bitwise_and_((1 << 31) - 1)
    # u = (bits + 1/2) / 2^31, kept below 1 where float32 rounds up
    draws = bits.float().mul_(-STEP * (1 - 2.0**-23)).sub_(STEP / 2)
    return draws.log1p_().neg_().log_().neg_()


def lanes(place: Tensor, count: int) -> Tensor:
    """`[..., count]` float64 in (0, 1), of keys `place` `[...]`."""
    return unit(mix(place[..., None] + token_keys(count, place.device)))


def normals(first: Tensor, second: Tensor) -> Tensor:
    """Standard normal float64 of two uniforms in (0, 1) (Box and Muller 1958)."""
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


@dataclass
class Noise(Rows):
    """What every row draws. on_tape: whether drafts are ranked with the tape, or with draws of their own.

    seeds, segments, passes, greedy: `[B]`; a greedy row's Gumbel noise is zero, so that argmax alone decides.
    temperatures: the rows', on the host. draws: how many a pass has made so far. drawn: of the tape in this pass, and
    behind which counts.
    """

    seeds: Tensor
    segments: Tensor
    passes: Tensor
    greedy: Tensor
    temperatures: list[float]
    vocab: int
    on_tape: bool
    draws: int = 0
    keyed: tuple[Tensor, Tensor] | None = None  # seeds, and the keys made of them
    drawn: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Tensor:
        """`[B]`: of seeds and segments; made anew when rows join or leave."""
        if self.keyed is None or self.keyed[0] is not self.seeds:
            self.keyed = self.seeds, row_keys(self.seeds, self.segments)
        return self.keyed[1]

    @property
    def sampled(self) -> bool:
        """Whether any row is not greedy."""
        return any(self.temperatures)

    def turn(self) -> None:
        """A pass is over."""
        self.passes = self.passes + 1
        self.draws, self.drawn = 0, None

    def tape(self, t: Tensor) -> Tensor:
        """`[B, K, V]` of the tape at positions t `[B, K]`."""
        return self.quiet(self.keys, t)

    def behind(self, count: Tensor, ahead: int) -> Tensor:
        """The tape at `ahead` positions behind `count` `[B]` tokens, drawn once a pass for drafter and judge."""
        if self.drawn is None or self.drawn[0] is not count or self.drawn[1].shape[1] < ahead:
            self.drawn = count, self.tape(following(count, ahead))
        return self.drawn[1][:, :ahead]

    def latent(self, t: Tensor, steps: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of the tape at positions t `[B, K]`, for chains of `steps` steps over `size` coordinates, float64: standard
        normals `[B, K, size]` to begin with, and for every step the root of a χ²₃ and a uniform, `[steps, B, K, size]`.

        What a step draws does not depend on how many steps follow.
        """
        place = mix(self.keys[:, None] * GOLDEN + t)
        drawn = lanes(place, (1 + 2 * steps) * 2 * size).view(*t.shape, 1 + 2 * steps, 2, size)
        first, second = drawn.movedim((2, 3), (0, 1)).unbind(1)  # [1 + 2 * steps, B, K, size]
        begin = normals(first[0], second[0])
        # χ²₃ is an exponential, twice, and the square of a normal, which three uniforms make; the fourth is the offset
        widths = (first[1::2].log() * -2 + normals(second[1::2], first[2::2]).square()).sqrt()
        return begin, widths, second[2::2]

    def normal(self, columns: int, size: int) -> Tensor:
        """`[B, columns, size]` float64 standard normals of the second stream; another draw."""
        drawn = lanes(mix(self.fresh() ^ mix(self.seeds ^ SECOND)), 2 * columns * size)
        return normals(*drawn.view(-1, 2, columns, size).unbind(1))

    def spots(self, t: Tensor, further: int) -> Tensor:
        """`[B, K]` float64 in (0, 1) of the tape, one a position, for rules that draw again; 0 for greedy rows."""
        bits = mix((self.keys + further)[:, None] * GOLDEN + t)
        return unit(bits).masked_fill(self.greedy[:, None], 0)

    def window(self, count: Tensor, ahead: int) -> Tensor:
        """`[B, ahead, V]` to rank candidates with for what follows `count` `[B]` tokens: the tape's, or fresh."""
        return self.behind(count, ahead) if self.on_tape else self.gumbel(ahead)

    def gumbel(self, columns: int) -> Tensor:
        """`[B, columns, V]` of the second stream; another draw."""
        places = torch.arange(columns, device=self.seeds.device).expand(len(self.seeds), -1)
        return self.quiet(row_keys(self.seeds ^ SECOND, self.fresh()), places)

    def uniform(self, columns: int) -> Tensor:
        """`[B, columns]` float64 in (0, 1) of the second stream, at any temperature; another draw."""
        keys = self.fresh()
        places = torch.arange(columns, device=keys.device)
        return uniform((self.seeds ^ SECOND)[:, None], keys[:, None], places)

    def tries(self, columns: int) -> Tries:
        """Of places `[B, columns]` that draw until one draw passes, of the second stream; another draw."""
        keys = mix(self.fresh() ^ mix(self.seeds ^ SECOND))
        return Tries(mix(keys[:, None] * GOLDEN + torch.arange(columns, device=keys.device)))

    def at(self, t: Tensor) -> Places:
        """What laws draw at positions t `[B, K]`."""
        return Places(self, t)

    def ahead(self, count: Tensor, places: int) -> Ahead:
        """What drafts draw at the `places` positions behind `count` `[B]` tokens."""
        return Ahead(self, following(count, places), count)

    def fresh(self) -> Tensor:
        """`[B]`: a key of segment, pass and draw."""
        self.draws += 1
        return mix(mix(self.segments * GOLDEN + self.passes) * GOLDEN + self.draws)

    def quiet(self, keys: Tensor, t: Tensor) -> Tensor:
        """Gumbel noise, zero for greedy rows."""
        if not self.sampled:
            return torch.zeros(1, 1, 1, device=t.device).expand(*t.shape, self.vocab)
        drawn = gumbel(keys, t, self.vocab)
        return drawn if all(self.temperatures) else drawn.masked_fill_(self.greedy[:, None, None], 0)


@dataclass(frozen=True)
class Places:
    """Positions t `[B, K]` of a batch's tape, where laws draw what they need: ids Gumbel noise, latents a chain's."""

    noise: Noise
    t: Tensor

    def gumbel(self) -> Tensor | None:
        """`[B, K, V]`; None where every row is greedy."""
        if not self.noise.sampled:
            return None
        return self.noise.tape(self.t) if self.noise.on_tape else self.noise.gumbel(self.t.shape[1])

    def latent(self, steps: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `Noise.latent`."""
        return self.noise.latent(self.t, steps, size)


@dataclass(frozen=True)
class Ahead(Places):
    """The next positions behind `count` `[B]` tokens, where the judge draws in the same pass, and at one more."""

    count: Tensor

    def gumbel(self) -> Tensor | None:
        places = self.t.shape[1]
        return self.noise.window(self.count, places + 1)[:, :places] if self.noise.sampled else None


@dataclass(frozen=True)
class Tries:
    """As many draws as it takes, at every place of its own; keys: `[…]` int64."""

    keys: Tensor

    def at(self, places: tuple[Tensor, ...]) -> Tries:
        """Of those places alone, `[N]`."""
        return Tries(self.keys[places])

    def draw(self, first: int, width: int, size: int) -> tuple[Tensor, Tensor]:
        """Draws `first` to `first + width` of places `[N]`: normals `[N, width, size]`, uniforms `[N, width]`."""
        tried = first + torch.arange(width, device=self.keys.device)
        drawn = lanes(mix(self.keys[:, None] * GOLDEN + tried), 2 * size + 1)
        return normals(drawn[..., :size], drawn[..., size : 2 * size]), drawn[..., -1]
