"""Principled coarse-grained acceptance for speech codes (PCG): groups of like codes are verified, not codes.

Every code t seeds a group G(t) of codes near it and shares its own mass equally among the groups that hold it. A
drafted code names one of its groups at random, and it is the group that is tested with P(G)/Q(G): which groups come out
follows the target exactly, which code of a group does not. Ids without neighbours are groups of their own, and exact.

members: `[V, m]` from `neighbours.groups`. Groups overlap, so the group of a token is what was drawn, and cannot be
told from the token again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Law
from polydraft.core.verdict import Verdict
from polydraft.core.verify.chain import closing, column, proposal
from polydraft.core.verify.rules import Match, at, emitted, normalised


def holds(members: Tensor, group: Tensor, ids: Tensor) -> Tensor:
    """`[...]` bool: ids belong to the groups that `group` seeds."""
    return (members[group] == ids[..., None]).any(-1)


def within(members: Tensor, law: Tensor, group: Tensor) -> Tensor:
    """What each member gives to `group` `[..., K]`, `[..., K, m]`: its mass under `law` `[..., V]`, shared out."""
    inside = members[group]
    shared = law / (members >= 0).sum(-1)
    given = shared.gather(-1, inside.clamp(min=0).flatten(-2)).unflatten(-1, inside.shape[-2:])
    return given * (inside >= 0)


def owner(members: Tensor, ids: Tensor, spot: Tensor) -> Tensor:
    """`[...]`: of the groups that hold `ids` the one at `spot` in 0..1, all of one size there."""
    owners = members[ids]  # to be near is mutual
    return at(owners, (spot * (owners >= 0).sum(-1)).long())


@dataclass(frozen=True)
class SharedGroup(Match):
    """c may stand for y if it is in the group drawn for y, uniformly among those that hold y, from the tape."""

    members: Tensor = field(repr=False)

    draws = 1

    def draw(self, law: Law, spot: Tensor, y: Tensor) -> Tensor:
        return owner(self.members, y, spot)

    def match(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return holds(self.members, draws[..., 0], c)


@dataclass(frozen=True)
class GroupSampling:
    """Speculative sampling of groups; at temperature 0 what shares the group of the argmax is kept."""

    members: Tensor = field(repr=False)

    on_tape = False
    guarantee = "lossy"

    def verify(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> Verdict:
        p = law.p
        accepted = torch.zeros(len(p), dtype=torch.long, device=p.device)
        rejected, correction = accepted.bool(), accepted
        if draft.size:
            q = proposal(draft, p) * (p[:, :-1] > 0)  # what is impossible stands for nothing
            kept, _ = self.judge(p[:, :-1], q, draft.tokens, noise)
            accepted = (draft.valid & kept).cumprod(1).sum(1)
            failed = accepted.clamp(max=draft.size - 1)
            rejected = (accepted < draft.size) & draft.valid.gather(1, failed[:, None])[:, 0] & ~noise.greedy
            correction, _ = self.corrected(column(p, failed), column(q, failed), noise)
        supplied = emitted(column(p, accepted), noise.gumbel(1)[:, 0], noise.greedy)
        return closing(draft, accepted, torch.where(rejected, correction, supplied))

    def judge(self, p: Tensor, q: Tensor, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Which of x `[B, N]` are kept under p and q `[B, N, V]`, and the group each was drawn into."""
        possible = at(p, x) > 0
        likeliest = p.argmax(-1)
        group = owner(self.members, x, noise.uniform(x.shape[1]))
        mass_p, mass_q = (within(self.members, law, group[..., None]).sum((-1, -2)) for law in (p, q))
        kept = noise.uniform(x.shape[1]) * mass_q < mass_p
        greedy = noise.greedy[:, None]
        kept = torch.where(greedy, holds(self.members, likeliest, x), kept)
        return possible & kept, torch.where(greedy, likeliest, group)

    def corrected(self, p: Tensor, q: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """A token and its group, `[B]` each: the group from norm([P - Q]_+), the token from its share of p."""
        every = torch.arange(p.shape[-1], device=p.device).expand_as(p)
        mass_p, mass_q = (within(self.members, law, every).sum(-1) for law in (p, q))
        left = normalised((mass_p - mass_q).clamp(min=0), mass_p)
        group = emitted(left, noise.gumbel(1)[:, 0], noise.greedy)
        inside, given = self.members[group], within(self.members, p, group[:, None])[:, 0]
        return at(inside, emitted(given, noise.gumbel(1)[:, 0, : inside.shape[1]], noise.greedy)), group
