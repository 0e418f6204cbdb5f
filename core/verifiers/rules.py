"""Acceptance rules: when a drafted token that is not the target's own token may be accepted.

A rule has up to two forms. As a ratio test (`RatioRule`) it gives f(x), the probability that a drafted x ~ q is
accepted, and a rejected x is replaced by a draw from norm([p - q f]_+), which keeps the output as near to p as that f
allows. As a `TokenMatchRule` it is a weaker notion of equality for verification with noise that drafter and target
share: a drafted token may be accepted in place of the token that the target sampled.

p and q are the target's and the drafter's probabilities, `[..., V]`; `draft_ids` and `target_ids` are token ids
`[...]`; `depth` `[...]` is the index of a drafted token in its draft, from 0. Every rule is one small class here;
`acceptance_probability`, `residual_distribution` and `tokens_match` apply it, and exclude exact-only tokens (end of
sequence, syntax), which are tested exactly and match only themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydraft.core.checks.arguments import format_value
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.filters import fast_topk
from polydraft.core.sampling.sampler import TokenDistribution


def gather_last(values: Tensor, index: Tensor) -> Tensor:
    """Gather one entry of the last dimension: values `[..., V]`, index `[...]` → `[...]`."""
    return values.gather(-1, index[..., None])[..., 0]


def acceptance_ratio(p: Tensor, q: Tensor) -> Tensor:
    """Return min(1, p/q) elementwise, of target and draft probabilities of any shape; 1 where q is 0."""
    # `clamp(min=…)` only avoids divisions by 0, whose results `where` discards
    return torch.where(q > 0, p / q.clamp(min=torch.finfo(q.dtype).tiny), 1.0).clamp(max=1)


def normalise_or(mass: Tensor, fallback: Tensor) -> Tensor:
    """Return `mass` `[..., V]` divided by its sum over V; `fallback` `[..., V]` where that sum is 0."""
    total = mass.sum(-1, keepdim=True)
    # `clamp` only avoids divisions by 0, whose results `where` discards
    return torch.where(total > 0, mass / total.clamp(min=torch.finfo(mass.dtype).tiny), fallback)


def one_hot(ids: Tensor, like: Tensor) -> Tensor:
    """Return one-hot probabilities of `ids` `[...]`, in the shape of `like` `[..., V]`."""
    return torch.zeros_like(like).scatter_(-1, ids[..., None], 1.0)


class RatioRule:
    """Ratio test of speculative sampling itself: f = min(1, p/q), exact.

    Leviathan et al. 2023, arXiv 2211.17192, section 2.3.
    """

    exact = True  # the output has the target's distribution

    def acceptance_prob(self, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return the probability f(x), `[...]`, that each drafted token x is accepted; values above 1 count as 1.

        Args:
            p (Tensor): `[..., V]` target probabilities.
            q (Tensor): `[..., V]` draft probabilities.
            draft_ids (Tensor): `[...]` drafted tokens x.
            depth (Tensor): `[...]` index of each drafted token in its draft, from 0; only some rules read it.
        """
        return acceptance_ratio(gather_last(p, draft_ids), gather_last(q, draft_ids))

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """Return f(v) of every id v, `[..., V]`, for the residual after a rejection, max(p - q f, 0) normalised.

        p and q are target and draft probabilities `[..., V]`; `depth` `[...]` is the index in the draft, from 0. If
        1 >= f >= min(1, p/q), then max(p - q f, 0) = max(p - q, 0): rules that accept at least as often as speculative
        sampling have its residual, and need not override this method.
        """
        return acceptance_ratio(p, q)

    def greedy_acceptance_prob(self, p: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return the acceptance probabilities `[...]` of `draft_ids` `[...]` in greedy batch rows.

        p `[..., V]` is the target's distribution at temperature 1, and q is one-hot, because greedy drafts are not
        sampled. `depth` `[...]` is the index of each drafted token in its draft, from 0.
        """
        return self.acceptance_prob(p, one_hot(draft_ids, p), draft_ids, depth)

    def target_probs(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the distribution `[..., V]` that the rule is to sample from, p itself unless a rule mixes in q.

        p and q are the target's and the drafter's probabilities `[..., V]`.
        """
        return p


BLOCK = 64  # ids whose probabilities are summed together
BELOW_ONE = 1 - 1e-12  # largest factor that keeps a product below the other factor


def sample_inverse_cdf(p: Tensor, uniforms: Tensor) -> Tensor:
    """Sample ids by inverse transform sampling: the first id whose cumulative probability exceeds a uniform.

    The vocabulary is divided into blocks of `BLOCK` ids. First the block that holds the id is searched, then the id in
    it, because a cumulative sum over a whole vocabulary is slow.

    Args:
        p (Tensor): `[..., V]` probabilities, which need not be normalised.
        uniforms (Tensor): `[...]` uniforms between 0 and 1; each is multiplied by the sum of p.

    Returns:
        Tensor: `[...]` ids.
    """
    blocks = torch.nn.functional.pad(p, (0, -p.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))  # [..., V / BLOCK, BLOCK]
    block_cdf = blocks.sum(-1).double().cumsum(-1)  # [..., V / BLOCK]
    threshold = (uniforms.clamp(max=BELOW_ONE) * block_cdf[..., -1])[..., None]  # [..., 1]
    # no block exceeds the threshold if p is all 0; then the last one is taken
    block = torch.searchsorted(block_cdf, threshold, right=True).clamp(max=block_cdf.shape[-1] - 1)  # [..., 1]
    mass_before_block = torch.nn.functional.pad(block_cdf, (1, 0)).gather(-1, block)
    cdf_in_block = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK))[..., 0, :].double().cumsum(-1)
    # The two cumulative sums round differently, so the threshold is kept below the total of the block.
    threshold_in_block = torch.minimum(threshold - mass_before_block, cdf_in_block[..., -1:] * BELOW_ONE)
    index_in_block = torch.searchsorted(cdf_in_block, threshold_in_block, right=True)
    return (block * BLOCK + index_in_block)[..., 0].clamp(max=p.shape[-1] - 1)  # the last block is padded


class FullVocabRatioRule(RatioRule):
    """Ratio test whose f is below min(1, p/q) for some ids, so that its residual needs f for the whole vocabulary."""

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return the probability `[...]` that each of `draft_ids` `[...]` is accepted, from f of all ids.

        p and q are target and draft probabilities `[..., V]`; `depth` `[...]` is the index in the draft, from 0.
        """
        return gather_last(self.acceptance_probs(p, q, depth), draft_ids)


class TokenMatchRule(ABC):
    """Weaker notion of equality between a drafted token and the token that the target sampled."""

    num_draws = 0  # additional draws from p at every tree index that `matches` needs

    def draw_extra(self, distribution: TokenDistribution, uniforms: Tensor, target_ids: Tensor) -> Tensor:
        """Draw an additional token from the target's distribution at every tree index.

        Args:
            distribution (TokenDistribution): the target's, at the T tree indices of a draft.
            uniforms (Tensor): `[B, T]` uniforms to draw with.
            target_ids (Tensor): `[B, T]` tokens that the target sampled; greedy rows draw these again.

        Returns:
            Tensor: `[B, T]` ids.
        """
        return torch.where(distribution.greedy[:, None], target_ids, sample_inverse_cdf(distribution.probs, uniforms))

    @abstractmethod
    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: drafted tokens that are accepted in place of the target's token.

        Args:
            p (Tensor): `[..., V]` target probabilities.
            target_ids (Tensor): `[...]` tokens that the target sampled.
            draft_ids (Tensor): `[...]` drafted tokens.
            draws (Tensor): `[..., num_draws]` additional draws of `draw_extra`.
        """


@dataclass(frozen=True)
class Lenience(RatioRule):
    """Ratio test min(1, p / (l q)), 0 < l <= 1 (Leviathan et al. 2023, appendix A.5)."""

    lenience: float = 0.5  # l; smaller values accept more

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return p(x) / (l q(x)), `[...]`, of `draft_ids` `[...]`; p and q are `[..., V]`."""
        return gather_last(p, draft_ids) / (self.lenience * gather_last(q, draft_ids))


@dataclass(frozen=True)
class Ensemble(RatioRule):
    """Exact sampling of w p + (1 - w) q where p is not 0 (Fu et al. 2025, Speculative Ensemble)."""

    weight: float = 0.8  # w

    exact = False

    def target_probs(self, p: Tensor, q: Tensor) -> Tensor:
        """Return w p + (1 - w) q, `[..., V]`, normalised over the ids that the target allows; w is `weight`.

        p and q are target and draft probabilities `[..., V]`.
        """
        return normalise_or((self.weight * p + (1 - self.weight) * q) * (p > 0), p)


@dataclass(frozen=True)
class SSDRule(RatioRule):
    """Ratio test min(1, p/q + beta) (SSD, for speech)."""

    beta: float = 0.4  # added to every acceptance probability

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return p(x) / q(x) + beta, `[...]`, of `draft_ids` `[...]`; p and q are `[..., V]`."""
        return gather_last(p, draft_ids) / gather_last(q, draft_ids) + self.beta


@dataclass(frozen=True)
class CoolSD(RatioRule):
    """Ratio test min(1, w_i p/q), w_i = max(1, delta e^(-nu i)): loose early in a draft, tight late (Cool-SD)."""

    delta: float = 1.5  # w_0, the weight of the first drafted token
    nu: float = 0.7  # decay rate of the weight per token

    exact = False

    def acceptance_prob(self, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return w_i p(x) / q(x), `[...]`, of each x in `draft_ids` `[...]`, with w_i = max(1, delta e^(-nu i)).

        i is `depth` `[...]`, the index of x in its draft, from 0; p and q are target and draft probabilities
        `[..., V]`. Values above 1 count as 1.
        """
        weight = (self.delta * torch.exp(-self.nu * depth)).clamp(min=1)
        return weight * gather_last(p, draft_ids) / gather_last(q, draft_ids)


@dataclass(frozen=True)
class Typical(FullVocabRatioRule, TokenMatchRule):
    """Typical acceptance: p(x) > min(epsilon, delta e^(-H(p))), where H(p) is the entropy of p.

    Cai et al. 2024, Medusa, arXiv 2401.10774, section 2.3.1.
    """

    epsilon: float = 0.09  # largest threshold
    delta: float = 0.3  # factor of the threshold that depends on the entropy

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """Return 1 for ids whose probability in p `[..., V]` is above the threshold, else 0, `[..., V]`."""
        return (p > self.threshold(p)).to(p.dtype)

    def threshold(self, p: Tensor) -> Tensor:
        """Return the threshold min(epsilon, delta e^(-H(p))), `[..., 1]`; ids that are likelier are accepted.

        p is `[..., V]`, and H(p) its entropy.
        """
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        return (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: `draft_ids` `[...]` whose probability is above the threshold, whatever was sampled."""
        return gather_last(p, draft_ids) > self.threshold(p)[..., 0]


@dataclass(frozen=True)
class TopK(FullVocabRatioRule, TokenMatchRule):
    """Acceptance of the k likeliest ids (Llasa+); ids of probability 0 are never accepted."""

    k: int = 50

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """Return 1 for the k likeliest ids of p `[..., V]`, else 0, `[..., V]`."""
        threshold = fast_topk(p, min(self.k, p.shape[-1]))[0][..., -1:]
        return ((p >= threshold) & (p > 0)).to(p.dtype)

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: `draft_ids` `[...]` among the k likeliest of p `[..., V]`, whatever was sampled."""
        accepted_ids = self.acceptance_probs(p, q=p, depth=target_ids)  # reads neither q nor depth
        return gather_last(accepted_ids, draft_ids) > 0


@dataclass(frozen=True)
class MultiDrawMatch(TokenMatchRule):
    """Acceptance of any of `count` draws from p (VADUSA's tolerance; 1 is exact)."""

    count: int = 2

    @property
    def num_draws(self) -> int:  # type: ignore[override]
        """Return the draws besides the token that the target samples anyway."""
        return self.count - 1

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: `draft_ids` `[...]` that equal any of the additional `draws` `[..., count - 1]`."""
        return (draws == draft_ids[..., None]).any(-1)


@dataclass(frozen=True)
class Lantern(RatioRule, TokenMatchRule):
    """LANTERN: min(1, p~/q), where p~(x) is p(x) plus the p of its codebook neighbours, nearest first, up to a bound.

    Jang et al. 2024, LANTERN, arXiv 2410.03355, section 3.2.
    """

    neighbours: Tensor = field(repr=False)  # [V, k] int64, nearest first, -1 for none; exact-only tokens have none
    delta: float = 0.1  # bound of the mass that neighbours add, and so of the total variation distance that it costs

    exact = False

    def bound(self, p: Tensor, draft_ids: Tensor) -> Tensor:
        """Return the largest probability mass that neighbours may add to each of `draft_ids`, `[...]` both."""
        return torch.full_like(gather_last(p, draft_ids), self.delta)

    def neighbours_in_bound(self, p: Tensor, draft_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codebook neighbours of each drafted token, and which of them add their probability to its own.

        Args:
            p (Tensor): `[..., V]` target probabilities.
            draft_ids (Tensor): `[...]` drafted tokens.

        Returns:
            Tensor: `[..., k]` ids of the neighbours, nearest first, -1 for none.
            Tensor: `[..., k]` bool, the nearest ones, whose summed mass stays within `bound`.
            Tensor: `[...]` summed mass of those.
        """
        neighbour_ids = self.neighbours[draft_ids]
        is_neighbour = neighbour_ids >= 0  # False for padding
        mass = p.gather(-1, neighbour_ids.clamp(min=0)) * is_neighbour  # clamped padding gathers id 0, times False
        in_bound = (mass.cumsum(-1) <= self.bound(p, draft_ids)[..., None]) & is_neighbour
        return neighbour_ids, in_bound, (mass * in_bound).sum(-1)

    def acceptance_prob(self, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return p~(x) / q(x), `[...]`, of each x in `draft_ids` `[...]`; p~(x) includes the neighbours' mass.

        p and q are target and draft probabilities `[..., V]`. Values above 1 count as 1.
        """
        _, _, neighbour_mass = self.neighbours_in_bound(p, draft_ids)
        return (gather_last(p, draft_ids) + neighbour_mass) / gather_last(q, draft_ids)

    def greedy_acceptance_prob(self, p: Tensor, draft_ids: Tensor, depth: Tensor) -> Tensor:
        """Return 1 where p(x) plus the mass of x's neighbours reaches the largest p, else 0, `[...]`.

        x are the drafted tokens `draft_ids` `[...]`, and p `[..., V]` the target's distribution at temperature 1.
        """
        _, _, neighbour_mass = self.neighbours_in_bound(p, draft_ids)
        return (gather_last(p, draft_ids) + neighbour_mass >= p.amax(-1)).to(p.dtype)

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: the target's token is one of the drafted token's neighbours within the bound of mass."""
        neighbour_ids, in_bound, _ = self.neighbours_in_bound(p, draft_ids)
        return (in_bound & (neighbour_ids == target_ids[..., None])).any(-1)


@dataclass(frozen=True)
class LanternPlus(Lantern):
    """LANTERN++: the bound is (lam - 1) p(x), so unlikely tokens borrow little (Park et al. 2025, arXiv 2502.06352)."""

    lam: float = 5.0  # p~(x) is at most lam p(x)

    def bound(self, p: Tensor, draft_ids: Tensor) -> Tensor:
        """Return (lam - 1) p(x), `[...]`, the largest mass that neighbours may add to each x in `draft_ids` `[...]`."""
        return (self.lam - 1) * gather_last(p, draft_ids)


@dataclass(frozen=True)
class GroupedRule(FullVocabRatioRule, TokenMatchRule):
    """Grouped speculative decoding (GSD): min(1, P/Q), the masses of p and q in the group of ids ranked near x by p.

    So et al. 2025, Grouped Speculative Decoding, arXiv 2508.07747.
    """

    size: int = 25  # ranks in a group, centred on x
    delta: float = 0.15  # ids whose probability differs by this much or more are left out
    distance: float = math.inf  # codes that are this far away or farther are left out
    codes: Tensor | None = field(default=None, repr=False)  # [V, D] codebook, NaN for ids that are no codes

    def rank_shifts(self, p: Tensor) -> range:
        """Return the rank differences between x and the ids of its group, in the ranking of p `[..., V]`; 0 is x."""
        half = min(self.size // 2, p.shape[-1] - 1)  # of the group's `size` ranks; no ids differ by V ranks or more
        return range(-half, half + 1)

    def acceptance_probs(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """Return min(1, P/Q) of every id, `[..., V]`: P and Q are the masses of p and q `[..., V]` in its group.

        The group of an id are the ids near it in the ranking of p. Its mass is summed over rank differences (`shift`).
        """
        ids_by_rank = p.argsort(dim=-1, descending=True, stable=True)
        ranked_p, ranked_q = p.gather(-1, ids_by_rank), q.gather(-1, ids_by_rank)
        mass_p, mass_q = torch.zeros_like(p), torch.zeros_like(p)  # by rank of the id that the group is centred on
        for shift in self.rank_shifts(p):
            is_member = self.is_member(ranked_p, ids_by_rank, shift)
            # rolled by -shift, entry r is the id of rank r + shift
            mass_p += torch.where(is_member, ranked_p.roll(-shift, -1), 0)
            mass_q += torch.where(is_member, ranked_q.roll(-shift, -1), 0)
        return torch.zeros_like(p).scatter_(-1, ids_by_rank, acceptance_ratio(mass_p, mass_q))  # by id again

    def is_member(self, ranked_p: Tensor, ids_by_rank: Tensor, shift: int) -> Tensor:
        """Return `[..., V]` bool: the id at rank r + shift belongs to the group around the id at rank r.

        Args:
            ranked_p (Tensor): `[..., V]` target probabilities in descending order.
            ids_by_rank (Tensor): `[..., V]` the ids in that order.
            shift (int): difference of ranks; at 0 every id belongs to its own group.
        """
        ranks = torch.arange(ranked_p.shape[-1], device=ranked_p.device) + shift
        is_candidate = (ranks >= 0) & (ranks < ranked_p.shape[-1])  # `roll` wraps around at both ends
        is_candidate = is_candidate & ((ranked_p - ranked_p.roll(-shift, -1)).abs() < self.delta)
        if shift == 0:  # the id itself, whatever the limits of probability and distance
            return torch.ones_like(is_candidate)
        return is_candidate & self.is_near(ids_by_rank, ids_by_rank.roll(-shift, -1))

    def is_near(self, first_ids: Tensor, second_ids: Tensor) -> Tensor:
        """Return `[...]` bool: pairs of ids whose codebook embeddings are nearer than `distance` (L2)."""
        if self.codes is None or self.distance == math.inf:  # distances do not matter
            return torch.ones_like(first_ids, dtype=torch.bool)
        return (self.codes[first_ids] - self.codes[second_ids]).norm(dim=-1) < self.distance

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: the target's token is in the group of ids near the drafted token in the ranking of p.

        p `[..., V]` are target probabilities, `target_ids` and `draft_ids` token ids `[...]`; `draws` are not read.
        """
        rank = p.argsort(dim=-1, descending=True, stable=True).argsort(-1)  # [..., V] rank of every id in p
        is_near_in_rank = (gather_last(rank, target_ids) - gather_last(rank, draft_ids)).abs() <= self.size // 2
        is_near_in_prob = (gather_last(p, target_ids) - gather_last(p, draft_ids)).abs() < self.delta
        return is_near_in_rank & is_near_in_prob & self.is_near(draft_ids, target_ids)


def verification_probs(rule: RatioRule, distribution: TokenDistribution) -> Tensor:
    """Return the target probabilities p `[B, T, V]`, at T tree indices, that `rule` tests drafts against.

    For greedy rows an exact rule needs the distribution that they sample from, which is one-hot. Lossy rules need to
    know how likely other ids are, so they get p at temperature 1.
    """
    p = distribution.probs
    return torch.where(distribution.greedy[:, None, None], one_hot(p.argmax(-1), p), p) if rule.exact else p


def acceptance_probability(
    rule: RatioRule, exact_only: Tensor | None, p: Tensor, q: Tensor, draft_ids: Tensor, depth: Tensor, greedy: Tensor
) -> Tensor:
    """Return the probability f(x), `[...]`, that each drafted token x is accepted.

    Ids of target probability 0, such as those that the grammar forbids, are never accepted.

    Args:
        rule (RatioRule): rule for all ids but exact-only ones.
        exact_only (Tensor | None): `[V]` bool, ids (end of sequence, syntax) that the exact rule applies to instead.
        p (Tensor): `[..., V]` target probabilities.
        q (Tensor): `[..., V]` draft probabilities.
        draft_ids (Tensor): `[...]` drafted tokens.
        depth (Tensor): `[...]` index of each drafted token in its draft, from 0.
        greedy (Tensor): bool, batch rows at temperature 0, broadcastable to `draft_ids`.
    """
    f = rule.acceptance_prob(p, q, draft_ids, depth)
    exact_f = acceptance_ratio(gather_last(p, draft_ids), gather_last(q, draft_ids))
    if not rule.exact:
        f = torch.where(greedy, rule.greedy_acceptance_prob(p, draft_ids, depth), f)
        exact_f = torch.where(greedy, (p.argmax(-1) == draft_ids).to(p.dtype), exact_f)
    f = f * (gather_last(p, draft_ids) > 0)  # lossy rules may give f > 0 where p is 0
    return f if exact_only is None else torch.where(exact_only[draft_ids], exact_f, f)


def residual_distribution(rule: RatioRule, exact_only: Tensor | None, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
    """Return max(p - q f, 0), normalised, `[..., V]`: after a rejection a token is sampled from it.

    f is the acceptance probability of every id. Where p - q f is positive nowhere, the result is p.

    Args:
        rule (RatioRule): rule that gives f for all ids but exact-only ones.
        exact_only (Tensor | None): `[V]` bool, ids whose f is min(1, p/q) instead.
        p (Tensor): `[..., V]` target probabilities.
        q (Tensor): `[..., V]` draft probabilities.
        depth (Tensor): `[...]` or `[..., 1]` index of the rejected token in its draft, from 0.
    """
    f = rule.acceptance_probs(p, q, depth)
    if exact_only is not None:
        f = torch.where(exact_only, acceptance_ratio(p, q), f)
    return normalise_or((p - q * f).clamp(min=0), p)


def sample_with_gumbel(probs: Tensor, gumbel: Tensor, greedy: Tensor) -> Tensor:
    """Sample ids `[...]` from `probs` `[..., V]` by the Gumbel-max trick; rows that are `greedy` take the argmax.

    Args:
        probs (Tensor): `[..., V]` probabilities.
        gumbel (Tensor): `[..., V]` Gumbel noise.
        greedy (Tensor): bool, broadcastable to `[...]`.
    """
    return torch.where(greedy, probs.argmax(-1), (probs.log() + gumbel).argmax(-1))


def check_matches(rule: Any, matches: Any, draft_ids: Tensor) -> None:
    """Check what `matches` of a rule returns for the drafted ids `[B, N]`.

    Raises:
        InvalidArgument: It is no bool tensor of their shape.
    """
    if isinstance(matches, Tensor) and matches.dtype == torch.bool and matches.shape == draft_ids.shape:
        return
    found = f"{matches.dtype} of shape {tuple(matches.shape)}" if isinstance(matches, Tensor) else format_value(matches)
    raise InvalidArgument(
        f"the rule {type(rule).__name__} returned {found}; its `matches` has to return a bool tensor of shape "
        f"{tuple(draft_ids.shape)}, that of draft_ids."
    )


def tokens_match(
    rule: TokenMatchRule, exact_only: Tensor | None, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor
) -> Tensor:
    """Return `[...]` bool: drafted tokens that equal the target's token, or match it by `rule`.

    Ids of target probability 0 and exact-only ids match only themselves.

    Args:
        rule (TokenMatchRule): weaker notion of equality.
        exact_only (Tensor | None): `[V]` bool, ids (end of sequence, syntax) that the rule does not apply to.
        p (Tensor): `[..., V]` target probabilities.
        target_ids (Tensor): `[...]` tokens that the target sampled.
        draft_ids (Tensor): `[...]` drafted tokens.
        draws (Tensor): `[..., num_draws]` additional draws that the rule needs.
    """
    matched = rule.matches(p, target_ids, draft_ids, draws)
    check_matches(rule, matched, draft_ids)
    matches = matched & (gather_last(p, draft_ids) > 0)
    if exact_only is not None:
        matches &= ~exact_only[target_ids] & ~exact_only[draft_ids]
    return matches | (draft_ids == target_ids)
