"""Counter-based noise of a batch of rows: shared noise, keyed by position, and fresh noise, new in every pass.

The token at position t of a row is `argmax_v(log p_t(v) + g_t(v))`, where the shared Gumbel noise g is a pure function
of (seed, segment, position, token). A latent uses shared normal noise with the same key, a step of its denoising chain
in the token's place (`core.continuous`). Plain decoding is then a deterministic function of prompt and seed, and
drafting means to guess that argmax (Gumbel coupling; Daliri, Musco and Suresh 2024, "Coupling without Communication and
Drafter-Invariant Speculative Decoding", arXiv 2408.07978). Published acceptance rules draw fresh noise instead, keyed
by (seed, segment, the row's pass, index of the draw in the pass): with shared noise they would use the same noise
twice, which is biased.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, next_positions

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
FRESH = 0x5EC0DD  # separates the keys of fresh noise from those of shared noise
RESOLUTION = 2.0**-31  # of the 31 bits that a Gumbel draw has


def logical_right_shift(x: Tensor, bits: int) -> Tensor:
    """Shift signed 64-bit integers right, filling with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(x: Tensor) -> Tensor:
    """Return 64 well-mixed bits for a counter, on any device: the SplitMix64 finaliser (Steele, Lea and Flood 2014)."""
    x = (x ^ logical_right_shift(x, 30)) * MIX_1
    x = (x ^ logical_right_shift(x, 27)) * MIX_2
    return x ^ logical_right_shift(x, 31)


def uniform_from_keys(*keys: Tensor) -> Tensor:
    """Return float64 uniforms strictly inside (0, 1), a pure function of integer keys (broadcast together)."""
    state = torch.zeros((), dtype=torch.long, device=keys[0].device)
    for key in keys:
        state = splitmix64((state + GOLDEN) ^ splitmix64(key.long() * GOLDEN + GOLDEN))
    return bits_to_uniform(state)


def bits_to_uniform(bits: Tensor) -> Tensor:
    """Convert random bits to float64 strictly inside (0, 1)."""
    return (logical_right_shift(bits, 12).double() + 0.5) * 2.0**-52


@lru_cache(maxsize=8)
def token_keys(vocab_size: int, device: torch.device) -> Tensor:
    """Return 64 random bits for every token, `[V]`."""
    with torch.inference_mode(False):
        return splitmix64(torch.arange(1, vocab_size + 1, device=device) * GOLDEN)


def row_keys(seeds: Tensor, segments: Tensor) -> Tensor:
    """Return one key `[B]` for the seed and segment of every row."""
    return splitmix64(splitmix64(seeds * GOLDEN + GOLDEN) + segments)


def gumbel_from_keys(keys: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Return Gumbel noise as a pure function of row key, position and token.

    A position has two keys and a token one; multiply-shift hashing of their sum gives 31 bits (Dietzfelbinger et al.
    1997, "A Reliable Randomized Algorithm for the Closest-Pair Problem"). Small exponentials decide which token wins
    and keep all their bits: `-log1p(-u)` of small u.

    Args:
        keys (Tensor): `[B]`, see `row_keys`.
        positions (Tensor): `[B, K]`.
        vocab_size (int): V.

    Returns:
        Tensor: `[B, K, V]` float32.
    """
    position_keys = splitmix64(keys[:, None] * GOLDEN + positions)
    bits = token_keys(vocab_size, positions.device) + position_keys[..., None]
    bits.mul_((position_keys * MIX_2 | 1)[..., None]).bitwise_right_shift_(33).bitwise_and_((1 << 31) - 1)
    # u = (bits + 1/2) / 2^31, kept below 1 where float32 rounds up
    draws = bits.float().mul_(-RESOLUTION * (1 - 2.0**-23)).sub_(RESOLUTION / 2)
    return draws.log1p_().neg_().log_().neg_()


def uniforms_from_key(keys: Tensor, count: int) -> Tensor:
    """Return `count` float64 uniforms in (0, 1) for every key `[...]`, `[..., count]`."""
    return bits_to_uniform(splitmix64(keys[..., None] + token_keys(count, keys.device)))


def box_muller(first: Tensor, second: Tensor) -> Tensor:
    """Convert two uniforms in (0, 1) to a float64 standard normal (Box and Muller 1958)."""
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


@dataclass
class Noise(BatchedState):
    """Random numbers of every row of a batch; a greedy row's Gumbel noise is zero, so that argmax alone decides."""

    seeds: Tensor  # [B]
    segments: Tensor  # [B] part of a request that is split, such as the sentence of a text
    pass_index: Tensor  # [B] passes that the row has taken part in
    greedy: Tensor  # [B] bool
    temperatures: list[float]  # of the rows, on the host
    vocab_size: int
    uses_shared_noise: bool  # drafters rank candidates with the shared noise; else with fresh noise
    num_draws: int = 0  # fresh draws that the pass has made so far
    cached_keys: tuple[Tensor, Tensor] | None = None  # seeds, and the keys made of them
    cached_gumbel: tuple[Tensor, Tensor] | None = None  # token counts, and the shared noise after them in this pass

    @property
    def keys(self) -> Tensor:
        """Return the keys `[B]` of seeds and segments, computed again when rows are added or removed."""
        if self.cached_keys is None or self.cached_keys[0] is not self.seeds:
            self.cached_keys = self.seeds, row_keys(self.seeds, self.segments)
        return self.cached_keys[1]

    @property
    def any_sampled(self) -> bool:
        """Return True if any row is not greedy."""
        return any(self.temperatures)

    def next_pass(self) -> None:
        """End a pass: the next one draws new fresh noise."""
        self.pass_index = self.pass_index + 1
        self.num_draws, self.cached_gumbel = 0, None

    def gumbel_at(self, positions: Tensor) -> Tensor:
        """Return shared Gumbel noise `[B, K, V]` at positions `[B, K]`."""
        return self.gumbel_or_zero(self.keys, positions)

    def gumbel_after(self, counts: Tensor, num: int) -> Tensor:
        """Return shared Gumbel noise `[B, num, V]` at the `num` positions after the first `counts` `[B]` tokens.

        It is computed once in a pass for both drafter and verifier.
        """
        cached = self.cached_gumbel
        if cached is None or cached[0] is not counts or cached[1].shape[1] < num:
            cached = self.cached_gumbel = counts, self.gumbel_at(next_positions(counts, num))
        return cached[1][:, :num]

    def latent_noise(self, positions: Tensor, num_steps: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return shared noise of denoising chains, float64.

        What a step draws does not depend on how many steps follow.

        Args:
            positions (Tensor): `[B, K]`.
            num_steps (int): T, steps of the chain.
            size (int): C, coordinates of a latent.

        Returns:
            Tensor: `[B, K, C]` standard normals that the chain begins with.
            Tensor: `[T, B, K, C]` roots of χ²₃ variates, one per step.
            Tensor: `[T, B, K, C]` uniforms in (0, 1), one per step.
        """
        keys = splitmix64(self.keys[:, None] * GOLDEN + positions)
        uniforms = uniforms_from_key(keys, (1 + 2 * num_steps) * 2 * size)
        uniforms = uniforms.view(*positions.shape, 1 + 2 * num_steps, 2, size)
        first, second = uniforms.movedim((2, 3), (0, 1)).unbind(1)  # [1 + 2 * T, B, K, C]
        initial = box_muller(first[0], second[0])
        # χ²₃ is twice an exponential plus the square of a normal, from three uniforms; the fourth is the offset
        widths = (first[1::2].log() * -2 + box_muller(second[1::2], first[2::2]).square()).sqrt()
        return initial, widths, second[2::2]

    def fresh_normals(self, num: int, size: int) -> Tensor:
        """Return fresh standard normals, `[B, num, size]` float64."""
        keys = splitmix64(self.next_key() ^ splitmix64(self.seeds ^ FRESH))
        return box_muller(*uniforms_from_key(keys, 2 * num * size).view(-1, 2, num, size).unbind(1))

    def uniforms_at(self, positions: Tensor, draw_index: int) -> Tensor:
        """Return shared uniforms in (0, 1), one per position, for rules that draw more than one token there.

        Args:
            positions (Tensor): `[B, K]`.
            draw_index (int): which of the additional draws, from 1.

        Returns:
            Tensor: `[B, K]` float64, 0 for greedy rows.
        """
        bits = splitmix64((self.keys + draw_index)[:, None] * GOLDEN + positions)
        return bits_to_uniform(bits).masked_fill(self.greedy[:, None], 0)

    def candidate_gumbel(self, counts: Tensor, num: int) -> Tensor:
        """Return Gumbel noise `[B, num, V]` to rank candidates for the positions after `counts` `[B]` tokens."""
        return self.gumbel_after(counts, num) if self.uses_shared_noise else self.fresh_gumbel(num)

    def fresh_gumbel(self, num: int) -> Tensor:
        """Return fresh Gumbel noise, `[B, num, V]`."""
        index = torch.arange(num, device=self.seeds.device).expand(len(self.seeds), -1)
        return self.gumbel_or_zero(row_keys(self.seeds ^ FRESH, self.next_key()), index)

    def fresh_uniforms(self, num: int) -> Tensor:
        """Return fresh uniforms in (0, 1) at any temperature, `[B, num]` float64."""
        keys = self.next_key()
        index = torch.arange(num, device=keys.device)
        return uniform_from_keys((self.seeds ^ FRESH)[:, None], keys[:, None], index)

    def rejection_draws(self, num: int) -> RejectionDraws:
        """Return fresh streams `[B, num]` for rejection sampling, which may take any number of draws."""
        keys = splitmix64(self.next_key() ^ splitmix64(self.seeds ^ FRESH))
        return RejectionDraws(splitmix64(keys[:, None] * GOLDEN + torch.arange(num, device=keys.device)))

    def at_positions(self, positions: Tensor) -> NoisePositions:
        """Return the noise that distributions sample with at positions `[B, K]`."""
        return NoisePositions(self, positions)

    def draft_positions(self, counts: Tensor, num: int) -> DraftPositions:
        """Return the noise that drafts sample with at the `num` positions after the first `counts` `[B]` tokens."""
        return DraftPositions(self, next_positions(counts, num), counts)

    def next_key(self) -> Tensor:
        """Return a key `[B]` of segment, pass and draw, and count the draw."""
        self.num_draws += 1
        return splitmix64(splitmix64(self.segments * GOLDEN + self.pass_index) * GOLDEN + self.num_draws)

    def gumbel_or_zero(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Return Gumbel noise `[B, K, V]`, zero for greedy rows."""
        if not self.any_sampled:
            return torch.zeros(1, 1, 1, device=positions.device).expand(*positions.shape, self.vocab_size)
        noise = gumbel_from_keys(keys, positions, self.vocab_size)
        return noise if all(self.temperatures) else noise.masked_fill_(self.greedy[:, None, None], 0)


@dataclass(frozen=True)
class NoisePositions:
    """Noise at K positions of every row, of the kind that a distribution needs: Gumbel for ids, normal for latents."""

    noise: Noise
    positions: Tensor  # [B, K]

    def gumbel(self) -> Tensor | None:
        """Return Gumbel noise `[B, K, V]`; None if every row is greedy."""
        if not self.noise.any_sampled:
            return None
        if self.noise.uses_shared_noise:
            return self.noise.gumbel_at(self.positions)
        return self.noise.fresh_gumbel(self.positions.shape[1])

    def latent_noise(self, num_steps: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the noise of denoising chains; see `Noise.latent_noise`."""
        return self.noise.latent_noise(self.positions, num_steps, size)


@dataclass(frozen=True)
class DraftPositions(NoisePositions):
    """Noise at the next positions, for a drafter; the verifier uses the same in this pass, at one more position."""

    counts: Tensor  # [B] tokens before the first position

    def gumbel(self) -> Tensor | None:
        num = self.positions.shape[1]
        return self.noise.candidate_gumbel(self.counts, num + 1)[:, :num] if self.noise.any_sampled else None


@dataclass(frozen=True)
class RejectionDraws:
    """Independent streams of random numbers, of which each yields as many draws as rejection sampling takes."""

    keys: Tensor  # […] int64

    def select(self, index: tuple[Tensor, ...]) -> RejectionDraws:
        """Return the streams at `index`, `[N]`."""
        return RejectionDraws(self.keys[index])

    def draw(self, first: int, count: int, size: int) -> tuple[Tensor, Tensor]:
        """Return draws `first` to `first + count` of streams `[N]`.

        Returns:
            Tensor: `[N, count, size]` standard normals.
            Tensor: `[N, count]` uniforms in (0, 1).
        """
        draw_index = first + torch.arange(count, device=self.keys.device)
        uniforms = uniforms_from_key(splitmix64(self.keys[:, None] * GOLDEN + draw_index), 2 * size + 1)
        return box_muller(uniforms[..., :size], uniforms[..., size : 2 * size]), uniforms[..., -1]
