"""Principled coarse-grained acceptance for speech codes (PCG): groups of similar codes are verified instead of codes.

Every code t seeds a group G(t) of codes near it and shares its own mass equally among the groups that contain it. A
drafted code names one of its groups at random, and that group is tested with P(G)/Q(G): which groups come out follows
the target exactly, which code of a group does not. Ids without neighbours are groups of their own, and exact.

members: `[V, m]` from `codebook_neighbours.similarity_groups`. Groups overlap, so the group of a token is the one that
was drawn, and cannot be recovered from the token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.verification import VerificationResult
from polydraft.core.verifiers.chain import accept_and_emit, at_index, draft_probs
from polydraft.core.verifiers.rules import TokenMatchRule, gather_last, normalise_or, sample_with_gumbel


def group_contains(members: Tensor, group: Tensor, ids: Tensor) -> Tensor:
    """Return `[...]` bool: ids that are in the groups seeded by `group` `[...]`."""
    return (members[group] == ids[..., None]).any(-1)


def shared_group_mass(members: Tensor, probs: Tensor, group: Tensor) -> Tensor:
    """Return the mass that each member shares with a group.

    Args:
        members (Tensor): `[V, m]`.
        probs (Tensor): `[..., V]`.
        group (Tensor): `[..., K]` ids that seed groups.

    Returns:
        Tensor: `[..., K, m]`, 0 for padding.
    """
    ids = members[group]
    shares = probs / (members >= 0).sum(-1)
    mass = shares.gather(-1, ids.clamp(min=0).flatten(-2)).unflatten(-1, ids.shape[-2:])
    return mass * (ids >= 0)


def pick_group(members: Tensor, ids: Tensor, u: Tensor) -> Tensor:
    """Pick uniformly one of the groups that contain `ids` `[...]`, with uniforms `u` `[...]`."""
    containing = members[ids]  # nearness is mutual
    return gather_last(containing, (u * (containing >= 0).sum(-1)).long())


@dataclass(frozen=True)
class SharedGroupMatch(TokenMatchRule):
    """Match rule of PCG: c is accepted for y if it is in a group drawn uniformly among those that contain y."""

    members: Tensor = field(repr=False)

    num_draws = 1

    def draw_extra(self, distribution: TokenDistribution, u: Tensor, y: Tensor) -> Tensor:
        return pick_group(self.members, y, u)

    def matches(self, p: Tensor, y: Tensor, c: Tensor, draws: Tensor) -> Tensor:
        return group_contains(self.members, draws[..., 0], c)


@dataclass(frozen=True)
class GroupSpeculativeSampling:
    """Speculative sampling of groups; at temperature 0 codes of the argmax's group are accepted."""

    members: Tensor = field(repr=False)

    uses_shared_noise = False
    guarantee = "lossy"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        p = distribution.probs
        num_accepted = torch.zeros(len(p), dtype=torch.long, device=p.device)
        is_rejected, correction = num_accepted.bool(), num_accepted
        if draft.size:
            q = draft_probs(draft, p) * (p[:, :-1] > 0)  # tokens that the target never emits count for no group
            is_accepted, _ = self.verify_groups(p[:, :-1], q, draft.tokens, noise)
            num_accepted = (draft.valid & is_accepted).cumprod(1).sum(1)
            rejected_node = num_accepted.clamp(max=draft.size - 1)
            is_rejected = (num_accepted < draft.size) & draft.valid.gather(1, rejected_node[:, None])[:, 0]
            is_rejected = is_rejected & ~noise.greedy
            correction, _ = self.sample_correction(at_index(p, rejected_node), at_index(q, rejected_node), noise)
        bonus = sample_with_gumbel(at_index(p, num_accepted), noise.fresh_gumbel(1)[:, 0], noise.greedy)
        return accept_and_emit(draft, num_accepted, torch.where(is_rejected, correction, bonus))

    def verify_groups(self, p: Tensor, q: Tensor, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Draw a group for every drafted token and test it.

        Args:
            p (Tensor): `[B, N, V]` target probabilities.
            q (Tensor): `[B, N, V]` draft probabilities.
            x (Tensor): `[B, N]` drafted tokens.
            noise (Noise): noise of the batch.

        Returns:
            Tensor: `[B, N]` bool, tokens that are accepted.
            Tensor: `[B, N]`, the group that was drawn for each.
        """
        is_possible = gather_last(p, x) > 0
        argmax = p.argmax(-1)
        group = pick_group(self.members, x, noise.fresh_uniforms(x.shape[1]))
        mass_p, mass_q = (shared_group_mass(self.members, probs, group[..., None]).sum((-1, -2)) for probs in (p, q))
        is_accepted = noise.fresh_uniforms(x.shape[1]) * mass_q < mass_p
        greedy = noise.greedy[:, None]
        is_accepted = torch.where(greedy, group_contains(self.members, argmax, x), is_accepted)
        return is_possible & is_accepted, torch.where(greedy, argmax, group)

    def sample_correction(self, p: Tensor, q: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Sample a group from norm([P - Q]_+) and a token of it in proportion to p; return token and group, `[B]`."""
        all_ids = torch.arange(p.shape[-1], device=p.device).expand_as(p)
        mass_p, mass_q = (shared_group_mass(self.members, probs, all_ids).sum(-1) for probs in (p, q))
        residual = normalise_or((mass_p - mass_q).clamp(min=0), mass_p)
        group = sample_with_gumbel(residual, noise.fresh_gumbel(1)[:, 0], noise.greedy)
        ids, mass = self.members[group], shared_group_mass(self.members, p, group[:, None])[:, 0]
        member = sample_with_gumbel(mass, noise.fresh_gumbel(1)[:, 0, : ids.shape[1]], noise.greedy)
        return gather_last(ids, member), group
