"""Counter-based noise of a batch of rows: shared noise, keyed by position, and fresh noise, new in every pass.

The token at position t of a row is `argmax_v(log p_t(v) + g_t(v))`, where the shared Gumbel noise g is a pure function
of (seed, segment, position, token). A latent uses shared normal noise with the same key, a denoising step
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

# constants of SplitMix64, as signed 64-bit integers
GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, 2^64 over the golden ratio: spreads successive counters
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9, first multiplier of the finaliser
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB, second multiplier
FRESH = 0x5EC0DD  # separates the keys of fresh noise from those of shared noise
RESOLUTION = 2.0**-31  # of the 31 bits that a Gumbel draw has


def logical_right_shift(x: Tensor, bits: int) -> Tensor:
    """Shift signed 64-bit integers right by `bits`, filling with zeros; elementwise."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(x: Tensor) -> Tensor:
    """Hash int64 counters to 64 well-mixed bits each, on any device: SplitMix64's finaliser (Steele et al. 2014)."""
    x = (x ^ logical_right_shift(x, 30)) * MIX_1
    x = (x ^ logical_right_shift(x, 27)) * MIX_2
    return x ^ logical_right_shift(x, 31)


def uniform_from_keys(*keys: Tensor) -> Tensor:
    """Return float64 uniforms strictly inside (0, 1), a pure function of integer keys, which are broadcast together."""
    hashed = torch.zeros((), dtype=torch.long, device=keys[0].device)
    for key in keys:
        hashed = splitmix64((hashed + GOLDEN) ^ splitmix64(key.long() * GOLDEN + GOLDEN))
    return bits_to_uniform(hashed)


def bits_to_uniform(bits: Tensor) -> Tensor:
    """Convert 64 random bits each to float64 uniforms strictly inside (0, 1); elementwise."""
    return (logical_right_shift(bits, 12).double() + 0.5) * 2.0**-52


@lru_cache(maxsize=8)
def token_keys(vocab_size: int, device: torch.device) -> Tensor:
    """Return 64 pseudorandom bits for every token id, `[V]` int64, the same in every run."""
    with torch.inference_mode(False):
        return splitmix64(torch.arange(1, vocab_size + 1, device=device) * GOLDEN)


def row_keys(seeds: Tensor, segments: Tensor) -> Tensor:
    """Return one hash key `[B]` int64 for the seed `[B]` and segment `[B]` of every batch row."""
    return splitmix64(splitmix64(seeds * GOLDEN + GOLDEN) + segments)


def gumbel_from_keys(keys: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Return Gumbel noise as a pure function of the batch row's key, the position and the token id.

    A position has two keys and a token one; multiply-shift hashing of their sum gives 31 bits (Dietzfelbinger et al.
    1997, "A Reliable Randomized Algorithm for the Closest-Pair Problem"). The exponential variates -log(1 - u) are
    computed as `-log1p(-u)`, because the small ones decide which token wins and so keep all their bits.

    Args:
        keys (Tensor): `[B]` of `row_keys`.
        positions (Tensor): `[B, K]` positions in the generated sequence.
        vocab_size (int): V.

    Returns:
        Tensor: `[B, K, V]` float32.
    """
    return hash_to_gumbel(token_keys(vocab_size, positions.device), keys, positions)


def gumbel_of_ids(keys: Tensor, positions: Tensor, ids: Tensor, vocab_size: int) -> Tensor:
    """Return the entries of `gumbel_from_keys` at some token ids, without computing the others.

    Args:
        keys (Tensor): `[B]` of `row_keys`.
        positions (Tensor): `[B, K]` positions in the generated sequence.
        ids (Tensor): `[B, K, M]` token ids at every position.
        vocab_size (int): V.

    Returns:
        Tensor: `[B, K, M]` float32.
    """
    return hash_to_gumbel(token_keys(vocab_size, positions.device).take(ids), keys, positions)


def hash_to_gumbel(hashed_tokens: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Return Gumbel noise of hashed token ids `[V]` or `[B, K, M]` at `positions` `[B, K]` for row `keys` `[B]`."""
    position_keys = splitmix64(keys[:, None] * GOLDEN + positions)  # [B, K], the first key of each position
    bits = hashed_tokens + position_keys[..., None]
    # times the position's second key, made odd as multiply-shift requires; the upper 31 of 64 bits are kept
    bits.mul_((position_keys * MIX_2 | 1)[..., None]).bitwise_right_shift_(33).bitwise_and_((1 << 31) - 1)
    # u = (bits + 1/2) / 2^31, kept below 1 where float32 rounds up
    negative_u = bits.float().mul_(-RESOLUTION * (1 - 2.0**-23)).sub_(RESOLUTION / 2)  # [B, K, V]
    return negative_u.log1p_().neg_().log_().neg_()  # -log(-log(1 - u))


def uniforms_from_key(keys: Tensor, count: int) -> Tensor:
    """Return `count` float64 uniforms in (0, 1) for every hash key `[...]`, `[..., count]`."""
    return bits_to_uniform(splitmix64(keys[..., None] + token_keys(count, keys.device)))


def box_muller(first: Tensor, second: Tensor) -> Tensor:
    """Convert pairs of uniforms in (0, 1) to float64 standard normals, elementwise (Box and Muller 1958)."""
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


@dataclass
class Noise(BatchedState):
    """Random numbers of a batch: shared noise, keyed by position, and fresh noise, new in every pass.

    The Gumbel noise of greedy batch rows is zero, so that they take the argmax.
    """

    seeds: Tensor  # [B]
    segments: Tensor  # [B] index of a part of a request that is split, such as a sentence of a text
    pass_index: Tensor  # [B] target passes that the batch row has taken part in
    greedy: Tensor  # [B] bool, temperature 0
    temperatures: list[float]  # of the batch rows, on the host
    vocab_size: int
    uses_shared_noise: bool  # drafters rank candidates with the shared noise; else with fresh noise
    num_draws: int = 0  # calls for fresh noise in this pass so far
    cached_keys: tuple[Tensor, Tensor] | None = None  # seeds [B], and the keys [B] computed from them
    # token counts [B], and the shared Gumbel noise [B, K, V] after so many tokens, in this pass
    cached_gumbel: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Tensor:
        """Return the hash keys `[B]` of seeds and segments; recomputed when batch rows are added or removed."""
        if self.cached_keys is None or self.cached_keys[0] is not self.seeds:
            self.cached_keys = self.seeds, row_keys(self.seeds, self.segments)
        return self.cached_keys[1]

    @property
    def any_sampled(self) -> bool:
        """Return True if any batch row has a temperature above 0."""
        return any(self.temperatures)

    def next_pass(self) -> None:
        """End a pass: the next one draws new fresh noise."""
        self.pass_index = self.pass_index + 1
        self.num_draws, self.cached_gumbel = 0, None

    def gumbel_at(self, positions: Tensor) -> Tensor:
        """Return position-keyed Gumbel noise `[B, K, V]` at positions `[B, K]`; drafter and target share it."""
        return self.gumbel_or_zero(self.keys, positions)

    def gumbel_after(self, num_generated: Tensor, num_positions: int) -> Tensor:
        """Return position-keyed Gumbel noise at the positions after the first `num_generated` `[B]` tokens.

        It is computed once per pass and cached, because drafter and verifier both use it.

        Returns:
            Tensor: `[B, num_positions, V]`.
        """
        cached = self.cached_gumbel
        # The cache is identified by the tensor object, since comparing values would need a device sync.
        if cached is None or cached[0] is not num_generated or cached[1].shape[1] < num_positions:
            gumbel = self.gumbel_at(next_positions(num_generated, num_positions))
            cached = self.cached_gumbel = num_generated, gumbel
        return cached[1][:, :num_positions]

    def latent_noise(self, positions: Tensor, num_steps: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return position-keyed noise to sample latents by denoising, float64; drafter and target share it.

        The noise of a denoising step does not depend on the number of steps after it. A step samples a normal by
        dithered quantisation: to a lattice whose random width follows from χ²₃ (chi-squared with three degrees of
        freedom) and whose offset is uniform (`LatentDistribution.shared_noise_states`).

        Args:
            positions (Tensor): `[B, K]` positions of the latents.
            num_steps (int): T, denoising steps.
            size (int): C, coordinates of a latent.

        Returns:
            Tensor: `[B, K, C]` standard normals, the initial state of the denoising.
            Tensor: `[T, B, K, C]` square roots of χ²₃ variates, one per step: widths of lattices.
            Tensor: `[T, B, K, C]` uniforms in (0, 1), one per step: offsets of lattices.
        """
        keys = splitmix64(self.keys[:, None] * GOLDEN + positions)
        uniforms = uniforms_from_key(keys, (1 + 2 * num_steps) * 2 * size)
        uniforms = uniforms.view(*positions.shape, 1 + 2 * num_steps, 2, size)
        # one pair of uniforms for the initial state, two pairs for every step
        first, second = uniforms.movedim((2, 3), (0, 1)).unbind(1)  # [1 + 2 * T, B, K, C] each
        initial = box_muller(first[0], second[0])
        # χ²₃ is twice an exponential plus the square of a normal, from three uniforms; the fourth is returned as it is
        widths = (first[1::2].log() * -2 + box_muller(second[1::2], first[2::2]).square()).sqrt()
        return initial, widths, second[2::2]

    def fresh_normals(self, num: int, size: int) -> Tensor:
        """Return standard normals, new in every call, `[B, num, size]` float64: `num` vectors of `size` coordinates."""
        keys = splitmix64(self.next_key() ^ splitmix64(self.seeds ^ FRESH))
        first, second = uniforms_from_key(keys, 2 * num * size).view(-1, 2, num, size).unbind(1)
        return box_muller(first, second)

    def uniforms_at(self, positions: Tensor, draw_index: int) -> Tensor:
        """Return position-keyed uniforms in (0, 1), for match rules that draw additional tokens at a position.

        Args:
            positions (Tensor): `[B, K]`.
            draw_index (int): number of the additional draw, from 1 (0 is the key of the Gumbel noise); each has other
                uniforms.

        Returns:
            Tensor: `[B, K]` float64, 0 for greedy batch rows.
        """
        bits = splitmix64((self.keys + draw_index)[:, None] * GOLDEN + positions)
        return bits_to_uniform(bits).masked_fill(self.greedy[:, None], 0)

    def gumbel_of_ids(self, positions: Tensor, ids: Tensor) -> Tensor | None:
        """Return position-keyed Gumbel noise of some token ids; None if all rows are greedy.

        Args:
            positions (Tensor): `[B, K]`.
            ids (Tensor): `[B, K, M]` token ids at every position.

        Returns:
            Tensor | None: `[B, K, M]`, zero for greedy batch rows.
        """
        if not self.any_sampled:
            return None
        return self.zero_if_greedy(gumbel_of_ids(self.keys, positions, ids, self.vocab_size))

    def candidate_gumbel(self, num_generated: Tensor, num_positions: int) -> Tensor:
        """Return the Gumbel noise that a drafter ranks candidate tokens with.

        It is the noise that the verifier samples with if the verifier uses shared noise, else fresh noise.

        Args:
            num_generated (Tensor): `[B]` tokens before the first position.
            num_positions (int): positions after them.

        Returns:
            Tensor: `[B, num_positions, V]`, zero for greedy batch rows.
        """
        if self.uses_shared_noise:
            return self.gumbel_after(num_generated, num_positions)
        return self.fresh_gumbel(num_positions)

    def fresh_gumbel(self, num: int) -> Tensor:
        """Return Gumbel noise, new in every call, `[B, num, V]`; zero for greedy batch rows."""
        index = torch.arange(num, device=self.seeds.device).expand(len(self.seeds), -1)
        return self.gumbel_or_zero(row_keys(self.seeds ^ FRESH, self.next_key()), index)

    def fresh_uniforms(self, num: int) -> Tensor:
        """Return uniforms in (0, 1), new in every call, `[B, num]` float64; for greedy batch rows as well."""
        keys = self.next_key()
        index = torch.arange(num, device=keys.device)
        return uniform_from_keys((self.seeds ^ FRESH)[:, None], keys[:, None], index)

    def rejection_draws(self, num: int) -> RejectionDraws:
        """Return independent streams of fresh noise, `[B, num]`, for rejection sampling with any number of draws."""
        keys = splitmix64(self.next_key() ^ splitmix64(self.seeds ^ FRESH))
        return RejectionDraws(splitmix64(keys[:, None] * GOLDEN + torch.arange(num, device=keys.device)))

    def at_positions(self, positions: Tensor) -> NoisePositions:
        """Return the noise at positions `[B, K]`, as `TokenDistribution.sample` takes it."""
        return NoisePositions(self, positions)

    def draft_positions(self, num_generated: Tensor, num_positions: int) -> DraftPositions:
        """Return the noise that a drafter uses at the positions after the first `num_generated` `[B]` tokens."""
        return DraftPositions(self, next_positions(num_generated, num_positions), num_generated)

    def next_key(self) -> Tensor:
        """Return a hash key `[B]` of segment, pass and call within the pass, and count the call in `num_draws`."""
        self.num_draws += 1
        return splitmix64(splitmix64(self.segments * GOLDEN + self.pass_index) * GOLDEN + self.num_draws)

    def gumbel_or_zero(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Return Gumbel noise `[B, K, V]` for hash keys `[B]` and positions `[B, K]`; zero for greedy batch rows."""
        if not self.any_sampled:  # every batch row is greedy; the view of a single zero needs no memory
            return torch.zeros(1, 1, 1, device=positions.device).expand(*positions.shape, self.vocab_size)
        return self.zero_if_greedy(gumbel_from_keys(keys, positions, self.vocab_size))

    def zero_if_greedy(self, noise: Tensor) -> Tensor:
        """Return Gumbel noise `[B, K, …]`, set to zero in place for greedy batch rows."""
        # `all`: no temperature is 0, so no batch row is greedy
        return noise if all(self.temperatures) else noise.masked_fill_(self.greedy[:, None, None], 0)


@dataclass(frozen=True)
class NoisePositions:
    """Noise at K positions of every batch row, to sample token ids (Gumbel noise) or latents (normal noise) with."""

    noise: Noise
    positions: Tensor  # [B, K]

    def gumbel(self) -> Tensor | None:
        """Return Gumbel noise `[B, K, V]`, shared or fresh as the verifier requires; None if all rows are greedy."""
        if not self.noise.any_sampled:
            return None
        if self.noise.uses_shared_noise:
            return self.noise.gumbel_at(self.positions)
        return self.noise.fresh_gumbel(self.positions.shape[1])

    def latent_noise(self, num_steps: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the noise `[B, K, C]`, `[T, B, K, C]`, `[T, B, K, C]` to sample latents; see `Noise.latent_noise`."""
        return self.noise.latent_noise(self.positions, num_steps, size)


@dataclass(frozen=True)
class DraftPositions(NoisePositions):
    """Noise that a drafter uses at the K positions after the committed tokens of every batch row."""

    num_generated: Tensor  # [B] tokens before the first position

    def gumbel(self) -> Tensor | None:
        """Return Gumbel noise `[B, K, V]`, shared with the verifier if it uses shared noise; None if all are greedy."""
        if not self.noise.any_sampled:
            return None
        num_positions = self.positions.shape[1]
        # The verifier needs one more position, for the bonus token; the noise is computed once for both.
        return self.noise.candidate_gumbel(self.num_generated, num_positions + 1)[:, :num_positions]


@dataclass(frozen=True)
class RejectionDraws:
    """Independent streams of random numbers, each of which yields as many draws as rejection sampling needs."""

    keys: Tensor  # […] int64, hash key of every stream

    def select(self, index: tuple[Tensor, ...]) -> RejectionDraws:
        """Return the N streams at `index`, one tensor `[N]` per dimension of the streams."""
        return RejectionDraws(self.keys[index])

    def draw(self, first: int, count: int, size: int) -> tuple[Tensor, Tensor]:
        """Return draws `first` to `first + count - 1` of N streams; a draw is a point of `size` normals and a uniform.

        Returns:
            Tensor: `[N, count, size]` standard normals, the proposed points.
            Tensor: `[N, count]` uniforms in (0, 1), to accept or reject each.
        """
        draw_index = first + torch.arange(count, device=self.keys.device)  # draws of a stream, numbered from 0
        # [N, count, 2 * size + 1]: two uniforms per normal, and the uniform that is returned
        uniforms = uniforms_from_key(splitmix64(self.keys[:, None] * GOLDEN + draw_index), 2 * size + 1)
        return box_muller(uniforms[..., :size], uniforms[..., size : 2 * size]), uniforms[..., -1]
