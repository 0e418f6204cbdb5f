"""Acceptance rules: when a drafted token that is not the target's own token may be accepted.

A rule has up to two forms. As a ratio test (`RatioRule`) it gives f(x), the probability that a drafted x ~ q is
accepted, and a rejected x is replaced by a draw from norm([p - q f]_+), which keeps the output as near to p as that f
allows. As a `TokenMatchRule` it is a weaker notion of equality for verification with shared noise: child c may be
accepted in place of the target's token y.

p and q are probabilities over the vocabulary, `[..., V]`; x, y, c are ids `[...]`; depth `[...]` counts drafted tokens
from 0. Every rule is one small class here; `acceptance_probability`, `residual_distribution` and `tokens_match` apply
it, and exclude exact-only tokens (end of sequence, syntax), which are tested exactly and match only themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.sampling.filters import fast_topk
from polydraft.core.sampling.sampler import TokenDistribution


def gather_last(values: Tensor, index: Tensor) -> Tensor:
    """Gather one entry of the last dimension: values `[..., V]`, index `[...]` → `[...]`."""
    return values.gather(-1, index[..., None])[..., 0]


def acceptance_ratio(p: Tensor, q: Tensor) -> Tensor:
    """Return min(1, p/q), 1 where q is 0 (nothing is drafted there)."""
    return torch.where(q > 0, p / q.clamp(min=torch.finfo(q.dtype).tiny), 1.0).clamp(max=1)


def normalise_or(mass: Tensor, fallback: Tensor) -> Tensor:
    """Return mass `[..., V]` divided by its sum; `fallback` where the sum is 0."""
    total = mass.sum(-1, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=torch.finfo(mass.dtype).tiny), fallback)


def one_hot(x: Tensor, like: Tensor) -> Tensor:
    """Return one-hot probabilities of ids x `[...]`, in the shape of `like` `[..., V]`."""
    return torch.zeros_like(like).scatter_(-1, x[..., None], 1.0)


class RatioRule:
    """Ratio test of speculative sampling itself: f = min(1, p/q), exact.

    Leviathan et al. 2023, arXiv 2211.17192, section 2.3.
    """

    exact = True

    def acceptance_prob(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        """Return f(x), `[...]`; values above 1 count as 1."""
        return acceptance_ratio(gather_last(p, x), gather_last(q, x))

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """Return f for all ids `[..., V]`, for the residual.

        A rule whose f is nowhere below min(1, p/q) has the same residual as speculative sampling.
        """
        return acceptance_ratio(p, q)

    def greedy_acceptance_prob(self, p: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        """Return f(x) at temperature 0, where p is taken at temperature 1 and q is one-hot."""
        return self.acceptance_prob(p, one_hot(x, p), x, depth)

    def target_probs(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the distribution that the rule samples from, where q is known."""
        return p


BLOCK = 64  # ids whose probabilities are summed at once
BELOW_ONE = 1 - 1e-12  # largest factor that keeps a product below the other factor


def sample_inverse_cdf(p: Tensor, u: Tensor) -> Tensor:
    """Sample ids by inversion: the first whose cumulative probability exceeds `u` of the total.

    First the block of ids is found, then the id in the block: a cumulative sum over a whole vocabulary is slow.

    Args:
        p (Tensor): `[..., V]`, need not be normalised.
        u (Tensor): `[...]` uniforms in 0..1.

    Returns:
        Tensor: `[...]` ids.
    """
    blocks = torch.nn.functional.pad(p, (0, -p.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    mass = blocks.sum(-1).double().cumsum(-1)
    sought = (u.clamp(max=BELOW_ONE) * mass[..., -1])[..., None]
    block = torch.searchsorted(mass, sought, right=True).clamp(max=mass.shape[-1] - 1)  # clamped where p is all 0
    before = torch.nn.functional.pad(mass, (1, 0)).gather(-1, block)
    in_block = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK))[..., 0, :].double().cumsum(-1)
    # the sums round differently: the sought value stays below the total of the block
    sought_in_block = torch.minimum(sought - before, in_block[..., -1:] * BELOW_ONE)
    index = torch.searchsorted(in_block, sought_in_block, right=True)
    return (block * BLOCK + index)[..., 0].clamp(max=p.shape[-1] - 1)


class FullVocabRatioRule(RatioRule):
    """Ratio test whose f is below min(1, p/q) for some ids, so that its residual needs f for the whole vocabulary."""

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return gather_last(self.acceptance_probs(p, q, depth), x)


class TokenMatchRule:
    """Weaker notion of equality between a drafted token and the target's token."""

    num_draws = 0  # additional draws at every tree index that `matches` needs

    def draw_extra(self, distribution: TokenDistribution, u: Tensor, y: Tensor) -> Tensor:
        """Draw once more at every tree index, with uniforms u `[B, C]`; greedy rows get y."""
        return torch.where(distribution.greedy[:, None], y, sample_inverse_cdf(distribution.probs, u))

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: c is accepted in place of y; draws `[..., num_draws]`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lenience(RatioRule):
    """Ratio test min(1, p / (l q)), 0 < l <= 1 (Leviathan et al. 2023, appendix A.5)."""

    lenience: float = 0.5

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return gather_last(p, x) / (self.lenience * gather_last(q, x))


@dataclass(frozen=True)
class Ensemble(RatioRule):
    """Exact sampling of w p + (1 - w) q where p is not 0 (Fu et al. 2025, Speculative Ensemble)."""

    weight: float = 0.8

    exact = False

    def target_probs(self, p: Tensor, q: Tensor) -> Tensor:
        return normalise_or((self.weight * p + (1 - self.weight) * q) * (p > 0), p)


@dataclass(frozen=True)
class SSDRule(RatioRule):
    """Ratio test min(1, p/q + beta) (SSD, for speech)."""

    beta: float = 0.4

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return gather_last(p, x) / gather_last(q, x) + self.beta


@dataclass(frozen=True)
class CoolSD(RatioRule):
    """Ratio test min(1, w_i p/q), w_i = max(1, delta e^(-nu i)): loose early in a draft, tight late (Cool-SD)."""

    delta: float = 1.5
    nu: float = 0.7

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return (self.delta * torch.exp(-self.nu * depth)).clamp(min=1) * gather_last(p, x) / gather_last(q, x)


@dataclass(frozen=True)
class Typical(FullVocabRatioRule, TokenMatchRule):
    """Typical acceptance: p(x) > min(epsilon, delta e^(-H(p))).

    Cai et al. 2024, Medusa, arXiv 2401.10774, section 2.3.1.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        return (p > self.threshold(p)).to(p.dtype)

    def threshold(self, p: Tensor) -> Tensor:
        """Return the least probability that is accepted, `[..., 1]`."""
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        return (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return gather_last(p, c) > self.threshold(p)[..., 0]


@dataclass(frozen=True)
class TopK(FullVocabRatioRule, TokenMatchRule):
    """Acceptance of the k likeliest ids (Llasa+); ids of probability 0 are never accepted."""

    k: int = 50

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        threshold = fast_topk(p, min(self.k, p.shape[-1]))[0][..., -1:]
        return ((p >= threshold) & (p > 0)).to(p.dtype)

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return gather_last(self.acceptance_probs(p, p, y), c) > 0


@dataclass(frozen=True)
class MultiDrawMatch(TokenMatchRule):
    """Acceptance of any of `count` draws from p (VADUSA's tolerance; 1 is exact)."""

    count: int = 2

    @property
    def num_draws(self) -> int:  # type: ignore[override]
        return self.count - 1

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return (draws == c[..., None]).any(-1)


@dataclass(frozen=True)
class Lantern(RatioRule, TokenMatchRule):
    """LANTERN: min(1, p~/q), where p~ adds the mass of codebook neighbours, nearest first, up to a bound.

    Jang et al. 2024, LANTERN, arXiv 2410.03355, section 3.2.
    """

    neighbours: Tensor = field(repr=False)  # [V, k] int64, nearest first, -1 for none; exact-only tokens have none
    delta: float = 0.1  # bound of the total variation that it may cost

    exact = False

    def bound(self, p: Tensor, x: Tensor) -> Tensor:
        """Return the most mass `[...]` that the neighbours of x may add."""
        return torch.full_like(gather_last(p, x), self.delta)

    def neighbours_in_bound(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the neighbours of x.

        Returns:
            Tensor: `[..., k]` ids of the neighbours, -1 for none.
            Tensor: `[..., k]` bool, those whose mass is added.
            Tensor: `[...]`, the mass that is added.
        """
        ids = self.neighbours[x]
        mass = p.gather(-1, ids.clamp(min=0)) * (ids >= 0)
        in_bound = (mass.cumsum(-1) <= self.bound(p, x)[..., None]) & (ids >= 0)
        return ids, in_bound, (mass * in_bound).sum(-1)

    def acceptance_prob(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return (gather_last(p, x) + self.neighbours_in_bound(p, x)[2]) / gather_last(q, x)

    def greedy_acceptance_prob(self, p: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        """Return 1 where x is the argmax once p(x) is replaced by p~(x), else 0."""
        return (gather_last(p, x) + self.neighbours_in_bound(p, x)[2] >= p.amax(-1)).to(p.dtype)

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        ids, in_bound, _ = self.neighbours_in_bound(p, c)
        return (in_bound & (ids == y[..., None])).any(-1)


@dataclass(frozen=True)
class LanternPlus(Lantern):
    """LANTERN++: the bound is (lam - 1) p(x), so unlikely tokens borrow little (Park et al. 2025, arXiv 2502.06352)."""

    lam: float = 5.0

    def bound(self, p: Tensor, x: Tensor) -> Tensor:
        return (self.lam - 1) * gather_last(p, x)


@dataclass(frozen=True)
class GroupedRule(FullVocabRatioRule, TokenMatchRule):
    """Grouped speculative decoding (GSD): min(1, sum_C p / sum_C q), where C are the ids near x in the ranking of p.

    So et al. 2025, Grouped Speculative Decoding, arXiv 2508.07747.
    """

    size: int = 25  # ranks in a group, centred on x
    delta: float = 0.15  # ids whose probability differs by this much or more are left out
    distance: float = math.inf  # codes that are this far away or farther are left out
    codes: Tensor | None = field(default=None, repr=False)  # [V, D] codebook, NaN for ids that are no codes

    def rank_shifts(self, p: Tensor) -> range:
        """Return the rank offsets of a group."""
        half = min(self.size // 2, p.shape[-1] - 1)
        return range(-half, half + 1)

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        order = p.argsort(dim=-1, descending=True, stable=True)
        ranked_p, ranked_q = p.gather(-1, order), q.gather(-1, order)
        mass_p, mass_q = torch.zeros_like(p), torch.zeros_like(p)
        for shift in self.rank_shifts(p):
            is_member = self.is_member(ranked_p, order, shift)
            mass_p += torch.where(is_member, ranked_p.roll(-shift, -1), 0)
            mass_q += torch.where(is_member, ranked_q.roll(-shift, -1), 0)
        return torch.zeros_like(p).scatter_(-1, order, acceptance_ratio(mass_p, mass_q))

    def is_member(self, ranked_p: Tensor, order: Tensor, shift: int) -> Tensor:
        """Return `[..., V]` bool by rank: the id `shift` ranks further belongs to the group."""
        ranks = torch.arange(ranked_p.shape[-1], device=ranked_p.device) + shift
        in_range = (ranks >= 0) & (ranks < ranked_p.shape[-1])
        in_range = in_range & ((ranked_p - ranked_p.roll(-shift, -1)).abs() < self.delta)
        return in_range & self.is_near(order, order.roll(-shift, -1)) if shift else torch.ones_like(in_range)

    def is_near(self, x: Tensor, y: Tensor) -> Tensor:
        """Return `[...]` bool: the codes of x and y are nearer than `distance`."""
        if self.codes is None or self.distance == math.inf:
            return torch.ones_like(x, dtype=torch.bool)
        return (self.codes[x] - self.codes[y]).norm(dim=-1) < self.distance

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: y is in the group around c."""
        rank = p.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        in_ranks = (gather_last(rank, y) - gather_last(rank, c)).abs() <= self.size // 2
        return in_ranks & ((gather_last(p, y) - gather_last(p, c)).abs() < self.delta) & self.is_near(c, y)


def verification_probs(rule: RatioRule, distribution: TokenDistribution) -> Tensor:
    """Return p `[B, C, V]`; for greedy rows one-hot if the rule is exact, else p at temperature 1."""
    p = distribution.probs
    return torch.where(distribution.greedy[:, None, None], one_hot(p.argmax(-1), p), p) if rule.exact else p


def acceptance_probability(
    rule: RatioRule, exact_only: Tensor | None, p: Tensor, q: Tensor, x: Tensor, depth: Tensor, greedy: Tensor
) -> Tensor:
    """Return the probability f(x) that x is accepted.

    Ids of probability 0, such as those that the grammar forbids, are never accepted.

    Args:
        rule (RatioRule): rule for all ids but exact-only ones.
        exact_only (Tensor | None): `[V]` bool, ids that the exact rule applies to.
        p (Tensor): `[..., V]` target probabilities.
        q (Tensor): `[..., V]` draft probabilities.
        x (Tensor): `[...]` drafted ids.
        depth (Tensor): `[...]` drafted tokens before x.
        greedy (Tensor): bool, rows at temperature 0, broadcastable to x.
    """
    f, exact_f = rule.acceptance_prob(p, q, x, depth), acceptance_ratio(gather_last(p, x), gather_last(q, x))
    if not rule.exact:
        f = torch.where(greedy, rule.greedy_acceptance_prob(p, x, depth), f)
        exact_f = torch.where(greedy, (p.argmax(-1) == x).to(p.dtype), exact_f)
    f = f * (gather_last(p, x) > 0)
    return f if exact_only is None else torch.where(exact_only[x], exact_f, f)


def residual_distribution(rule: RatioRule, exact_only: Tensor | None, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
    """Return norm([p - q f]_+), `[..., V]`; p where that is 0 everywhere."""
    f = rule.acceptance_probs(p, q, depth)
    if exact_only is not None:
        f = torch.where(exact_only, acceptance_ratio(p, q), f)
    return normalise_or((p - q * f).clamp(min=0), p)


def sample_with_gumbel(probs: Tensor, gumbel: Tensor, greedy: Tensor) -> Tensor:
    """Sample ids `[...]` from probs `[..., V]` with Gumbel noise; the argmax where `greedy` (broadcastable)."""
    return torch.where(greedy, probs.argmax(-1), (probs.log() + gumbel).argmax(-1))


def tokens_match(
    rule: TokenMatchRule, exact_only: Tensor | None, p: Tensor, y: Tensor, c: Tensor, draws: Tensor
) -> Tensor:
    """Return `[...]` bool: c equals y or matches it; ids of probability 0 and exact-only ids only equal themselves."""
    matches = rule.matches(p, y, c, draws) & (gather_last(p, c) > 0)
    if exact_only is not None:
        matches &= ~exact_only[y] & ~exact_only[c]
    return matches | (c == y)
