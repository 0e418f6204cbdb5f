"""Acceptance rules: when a drafted token that is not the target's own choice may stand.

A rule has up to two faces. As a ratio test (`Rule`) it gives f(x), the chance that a drafted x ~ q is kept, and a
rejected x is replaced from norm([p - q f]_+), which keeps the output as near to p as that f allows. As a `Match` it is
a weaker notion of equality for the tape walk: child c may stand for the target's choice y.

p and q are laws over the vocabulary, `[..., V]`; x, y, c are ids `[...]`; depth `[...]` counts drafted tokens from 0.
Every rule is one small class here; `chance`, `residual` and `may_stand` below apply it, and keep it off rigid ids (end
of sequence, syntax), which are tested exactly and stand only for themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.law.filters import highest
from polydraft.core.law.sampling import Law


def at(law: Tensor, ids: Tensor) -> Tensor:
    """law(ids): `[..., V]`, `[...]` → `[...]`."""
    return law.gather(-1, ids[..., None])[..., 0]


def ratio(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p/q), 1 where q is 0 (nothing is drafted there)."""
    return torch.where(q > 0, p / q.clamp(min=torch.finfo(q.dtype).tiny), 1.0).clamp(max=1)


def normalised(mass: Tensor, otherwise: Tensor) -> Tensor:
    """mass over its sum; `otherwise` where there is none."""
    total = mass.sum(-1, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=torch.finfo(mass.dtype).tiny), otherwise)


class Rule:
    """Speculative sampling itself: f = min(1, p/q), exact (Leviathan et al. 2023, arXiv 2211.17192, section 2.3)."""

    exact = True

    def accept(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        """f(x), `[...]`; more than 1 is 1."""
        return ratio(at(p, x), at(q, x))

    def everywhere(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """f, `[..., V]`, for the residual. A rule that is nowhere below min(1, p/q) has the same residual as it."""
        return ratio(p, q)

    def greedy(self, p: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        """f(x) at temperature 0: p is read at temperature 1, q is one-hot."""
        return self.accept(p, one_hot(x, p), x, depth)

    def target(self, p: Tensor, q: Tensor) -> Tensor:
        """The law that is verified against where q is known."""
        return p


BLOCK = 64  # ids whose chances are summed at once
BELOW = 1 - 1e-12  # the greatest place in 0..1 that stays below 1 when it is multiplied


def drawn(p: Tensor, spot: Tensor) -> Tensor:
    """The first ids by which p `[..., V]` has summed up to more than `spot` `[...]` in 0..1 of it.

    First which block of ids, then which of the block: a running sum over a whole vocabulary is what takes time.
    """
    parts = torch.nn.functional.pad(p, (0, -p.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    mass = parts.sum(-1).double().cumsum(-1)
    sought = (spot.clamp(max=BELOW) * mass[..., -1])[..., None]
    block = torch.searchsorted(mass, sought, right=True).clamp(max=mass.shape[-1] - 1)  # where nothing has a chance
    before = torch.nn.functional.pad(mass, (1, 0)).gather(-1, block)
    inside = parts.gather(-2, block[..., None].expand(*block.shape, BLOCK))[..., 0, :].double().cumsum(-1)
    # sums round apart: what is sought stays below what the block has
    place = torch.searchsorted(inside, torch.minimum(sought - before, inside[..., -1:] * BELOW), right=True)
    return (block * BLOCK + place)[..., 0].clamp(max=p.shape[-1] - 1)


def one_hot(x: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(-1, x[..., None], 1.0)


class Mixed(Rule):
    """A rule that is somewhere below min(1, p/q): its residual needs f everywhere."""

    exact = False

    def accept(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return at(self.everywhere(p, q, depth), x)


class Match:
    """draws: further draws at every column that `match` wants to see."""

    draws = 0

    def draw(self, law: Law, spot: Tensor, y: Tensor) -> Tensor:
        """`[B, C]`: what is drawn once more at every column, by its place `spot` in 0..1; y there at temperature 0."""
        return torch.where(law.greedy[:, None], y, drawn(law.p, spot))

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        """`[...]` bool: c may stand for y; draws `[..., self.draws]`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lenience(Rule):
    """min(1, p / (l q)), 0 < l <= 1 (Leviathan et al. 2023, appendix A.5)."""

    lenience: float = 0.5

    exact = False

    def accept(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return at(p, x) / (self.lenience * at(q, x))


@dataclass(frozen=True)
class Ensemble(Rule):
    """Sample w p + (1 - w) q, where p is not 0, exactly (Fu et al. 2025, Speculative Ensemble)."""

    weight: float = 0.8

    exact = False

    def target(self, p: Tensor, q: Tensor) -> Tensor:
        return normalised((self.weight * p + (1 - self.weight) * q) * (p > 0), p)


@dataclass(frozen=True)
class Tolerance(Rule):
    """min(1, p/q + beta) (speech: SSD)."""

    beta: float = 0.4

    exact = False

    def accept(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return at(p, x) / at(q, x) + self.beta


@dataclass(frozen=True)
class CoolSD(Rule):
    """min(1, w_i p/q), w_i = max(1, delta e^(-nu i)): loose early in a draft, tight late (Cool-SD)."""

    delta: float = 1.5
    nu: float = 0.7

    exact = False

    def accept(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return (self.delta * torch.exp(-self.nu * depth)).clamp(min=1) * at(p, x) / at(q, x)


@dataclass(frozen=True)
class Typical(Mixed, Match):
    """p(x) > min(epsilon, delta e^(-H(p))) (Cai et al. 2024, Medusa, arXiv 2401.10774, section 2.3.1)."""

    epsilon: float = 0.09
    delta: float = 0.3

    def everywhere(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        return (p > self.bar(p)).to(p.dtype)

    def bar(self, p: Tensor) -> Tensor:
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        return (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return at(p, c) > self.bar(p)[..., 0]


@dataclass(frozen=True)
class TopK(Mixed, Match):
    """x is among the k likeliest (Llasa+); impossible ids never are."""

    k: int = 50

    def everywhere(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        least = highest(p, min(self.k, p.shape[-1]))[0][..., -1:]
        return ((p >= least) & (p > 0)).to(p.dtype)

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return at(self.everywhere(p, p, y), c) > 0


@dataclass(frozen=True)
class Tolerant(Match):
    """Any of `count` draws from p stands for the first (VADUSA's tolerance; 1 is the exact walk)."""

    count: int = 2

    @property
    def draws(self) -> int:  # type: ignore[override]
        return self.count - 1

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return (draws == c[..., None]).any(-1)


@dataclass(frozen=True)
class Lantern(Rule, Match):
    """min(1, p~/q): p~ adds the codebook neighbours' mass, nearest first, while it stays within a bound.

    The bound is `delta`, the total variation it may cost (Jang et al. 2024, LANTERN, arXiv 2410.03355, section 3.2).
    neighbours: `[V, k]` int64 nearest first, -1 for none; rigid ids have none and are nobody's.
    """

    neighbours: Tensor = field(repr=False)
    delta: float = 0.1

    exact = False

    def bound(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.full_like(at(p, x), self.delta)

    def around(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Neighbours of x `[..., k]`, which of them are near enough, and the mass of those `[...]`."""
        ids = self.neighbours[x]
        mass = p.gather(-1, ids.clamp(min=0)) * (ids >= 0)
        inside = (mass.cumsum(-1) <= self.bound(p, x)[..., None]) & (ids >= 0)
        return ids, inside, (mass * inside).sum(-1)

    def accept(self, p: Tensor, q: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        return (at(p, x) + self.around(p, x)[2]) / at(q, x)

    def greedy(self, p: Tensor, x: Tensor, depth: Tensor) -> Tensor:
        """x is the argmax once p(x) is replaced by p~(x)."""
        return (at(p, x) + self.around(p, x)[2] >= p.amax(-1)).to(p.dtype)

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        ids, inside, _ = self.around(p, c)
        return (inside & (ids == y[..., None])).any(-1)


@dataclass(frozen=True)
class LanternPlus(Lantern):
    """LANTERN++: the bound is (lam - 1) p(x), so doubtful tokens borrow little (Park et al. 2025, arXiv 2502.06352)."""

    lam: float = 5.0

    def bound(self, p: Tensor, x: Tensor) -> Tensor:
        return (self.lam - 1) * at(p, x)


@dataclass(frozen=True)
class Grouped(Mixed, Match):
    """min(1, sum_C p / sum_C q): C are the `size` ranks of p nearest to x, less those that differ (GSD).

    Left out are ids whose probability differs by `delta` or more, and codes `distance` or more away (So et al. 2025,
    Grouped Speculative Decoding, arXiv 2508.07747). codes: `[V, D]` embeddings, nan for ids that are no codes.
    """

    size: int = 25
    delta: float = 0.15
    distance: float = math.inf
    codes: Tensor | None = field(default=None, repr=False)

    def shifts(self, p: Tensor) -> range:
        half = min(self.size // 2, p.shape[-1] - 1)
        return range(-half, half + 1)

    def everywhere(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        order = p.argsort(dim=-1, descending=True, stable=True)
        ps, qs = p.gather(-1, order), q.gather(-1, order)
        mass_p, mass_q = torch.zeros_like(p), torch.zeros_like(p)
        for shift in self.shifts(p):
            member = self.member(ps, order, shift)
            mass_p += torch.where(member, ps.roll(-shift, -1), 0)
            mass_q += torch.where(member, qs.roll(-shift, -1), 0)
        return torch.zeros_like(p).scatter_(-1, order, ratio(mass_p, mass_q))

    def member(self, ps: Tensor, order: Tensor, shift: int) -> Tensor:
        """`[..., V]` by rank: whether the id `shift` ranks further belongs to the group."""
        ranks = torch.arange(ps.shape[-1], device=ps.device) + shift
        inside = (ranks >= 0) & (ranks < ps.shape[-1]) & ((ps - ps.roll(-shift, -1)).abs() < self.delta)
        return inside & self.near(order, order.roll(-shift, -1)) if shift else torch.ones_like(inside)

    def near(self, x: Tensor, y: Tensor) -> Tensor:
        if self.codes is None or self.distance == math.inf:
            return torch.ones_like(x, dtype=torch.bool)
        return (self.codes[x] - self.codes[y]).norm(dim=-1) < self.distance

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        """y is in the group around c."""
        rank = p.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        close = (at(rank, y) - at(rank, c)).abs() <= self.size // 2
        return close & ((at(p, y) - at(p, c)).abs() < self.delta) & self.near(c, y)


def judged_law(rule: Rule, law: Law) -> Tensor:
    """p; at temperature 0 one-hot for an exact rule, while a lossy one reads it at temperature 1."""
    p = law.p
    return torch.where(law.greedy[:, None, None], one_hot(p.argmax(-1), p), p) if rule.exact else p


def chance(rule: Rule, rigid: Tensor | None, p: Tensor, q: Tensor, x: Tensor, depth: Tensor, greedy: Tensor) -> Tensor:
    """f(x); for rigid ids `[V]` bool the exact rule. What is impossible (another slot's id) is never kept.

    greedy: rows at temperature 0, bool, as wide as x or one of it.
    """
    given, exact = rule.accept(p, q, x, depth), ratio(at(p, x), at(q, x))
    if not rule.exact:
        given = torch.where(greedy, rule.greedy(p, x, depth), given)
        exact = torch.where(greedy, (p.argmax(-1) == x).to(p.dtype), exact)
    given = given * (at(p, x) > 0)
    return given if rigid is None else torch.where(rigid[x], exact, given)


def residual(rule: Rule, rigid: Tensor | None, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
    """norm([p - q f]_+), `[..., V]`; p where that is nothing."""
    f = rule.everywhere(p, q, depth)
    if rigid is not None:
        f = torch.where(rigid, ratio(p, q), f)
    return normalised((p - q * f).clamp(min=0), p)


def emitted(law: Tensor, noise: Tensor, greedy: Tensor) -> Tensor:
    """A draw from law `[..., V]` with Gumbel noise; its argmax for greedy rows, `[...]` or one of it."""
    return torch.where(greedy, law.argmax(-1), (law.log() + noise).argmax(-1))


def may_stand(rule: Match, rigid: Tensor | None, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
    """`[...]` bool: c is y or matches it; impossible and rigid ids are only themselves."""
    given = rule.match(p, y, c, draws) & (at(p, c) > 0)
    if rigid is not None:
        given &= ~rigid[y] & ~rigid[c]
    return given | (c == y)
