"""Principled coarse-grained acceptance for speech codes (PCG): groups of similar codes are verified instead of codes.

Every code t seeds a group G(t) of codes near it and divides its own mass equally among the groups that contain it. For
a drafted code one of the groups that contain it is drawn at random, and that group is tested with P(G)/Q(G): the groups
follow the target's distribution exactly, the code within a group does not. An id without neighbours is a group by
itself, and exact.

A group is named by the id that seeds it. Groups overlap, so the group that was drawn for a token cannot be recovered
from the token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.verification import VerificationResult
from polydraft.core.verifiers.chain import accept_and_emit, draft_probs, select_index
from polydraft.core.verifiers.rules import TokenMatchRule, gather_last, normalise_or, sample_with_gumbel


def group_contains(members: Tensor, group: Tensor, ids: Tensor) -> Tensor:
    """Return `[...]` bool: which `ids` `[...]` are in the groups that the ids `group` `[...]` seed.

    `members` `[V, m]` are the ids of the group that each id seeds, padded with -1.
    """
    return (members[group] == ids[..., None]).any(-1)


def shared_group_mass(members: Tensor, probs: Tensor, group: Tensor) -> Tensor:
    """Return the probability mass that every member of a group contributes to it.

    A token divides its probability equally among the groups that contain it.

    Args:
        members (Tensor): `[V, m]` ids of the group that each id seeds, padded with -1.
        probs (Tensor): `[..., V]` probabilities.
        group (Tensor): `[..., K]` ids that seed the K groups of interest.

    Returns:
        Tensor: `[..., K, m]` masses in the order of `members[group]`, 0 for padding.
    """
    member_ids = members[group]  # [..., K, m]
    # [..., V]; similarity is symmetric, so as many groups contain a token as the group that it seeds has members
    mass_per_group = probs / (members >= 0).sum(-1)
    mass = mass_per_group.gather(-1, member_ids.clamp(min=0).flatten(-2)).unflatten(-1, member_ids.shape[-2:])
    return mass * (member_ids >= 0)  # padding has gathered id 0, and gets 0


def pick_group(members: Tensor, ids: Tensor, uniforms: Tensor) -> Tensor:
    """Draw uniformly one of the groups that contain each id.

    Args:
        members (Tensor): `[V, m]` ids of the group that each id seeds, padded with -1.
        ids (Tensor): `[...]` token ids.
        uniforms (Tensor): `[...]` uniforms in (0, 1) to draw with.

    Returns:
        Tensor: `[...]` ids that seed the groups drawn.
    """
    containing_groups = members[ids]  # similarity is symmetric, so these are also the seeds of groups that contain it
    # index floor(u n) of the n groups, which come before the padding
    return gather_last(containing_groups, (uniforms * (containing_groups >= 0).sum(-1)).long())


@dataclass(frozen=True)
class SharedGroupMatch(TokenMatchRule):
    """Match rule of PCG: accept a drafted code in a group that is drawn among those that contain the target's code."""

    members: Tensor = field(repr=False)  # [V, m] ids of the group that each id seeds, padded with -1

    num_draws = 1

    def draw_extra(self, distribution: TokenDistribution, uniforms: Tensor, target_ids: Tensor) -> Tensor:
        """Draw one of the groups that contain the target's token, at each of the T tree indices of a draft.

        Args:
            distribution (TokenDistribution): not read.
            uniforms (Tensor): `[B, T]` uniforms to draw with.
            target_ids (Tensor): `[B, T]` tokens that the target sampled.

        Returns:
            Tensor: `[B, T]` ids that seed the groups drawn.
        """
        return pick_group(self.members, target_ids, uniforms)

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return `[...]` bool: `draft_ids` `[...]` that are in the group that `draw_extra` drew, `draws` `[..., 1]`."""
        return group_contains(self.members, draws[..., 0], draft_ids)


@dataclass(frozen=True)
class GroupSpeculativeSampling:
    """Speculative sampling of groups; at temperature 0 codes of the argmax's group are accepted."""

    members: Tensor = field(repr=False)  # [V, m] ids of the group that each id seeds, padded with -1

    uses_shared_noise = False
    guarantee = "lossy"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept drafted tokens until a group is rejected, then sample a group and one of its tokens.

        Args:
            draft (Draft): chain of N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft, unused.
        """
        p = distribution.probs  # [B, N+1, V]
        num_accepted = torch.zeros(len(p), dtype=torch.long, device=p.device)
        is_rejected, correction = num_accepted.bool(), num_accepted  # False, and a placeholder that is not used
        if draft.size:
            q = draft_probs(draft, p) * (p[:, :-1] > 0)  # tokens that the target never emits count for no group
            is_accepted, _ = self.verify_groups(p[:, :-1], q, draft.tokens, noise)
            num_accepted = (draft.valid & is_accepted).cumprod(1).sum(1)
            rejected_node = num_accepted.clamp(max=draft.size - 1)  # not used where all were accepted
            # a chain also ends before an invalid node, where nothing was rejected
            is_rejected = (num_accepted < draft.size) & draft.valid.gather(1, rejected_node[:, None])[:, 0]
            is_rejected = is_rejected & ~noise.greedy  # greedy rows emit the argmax of p after a rejection too
            correction, _ = self.sample_correction(
                select_index(p, rejected_node), select_index(q, rejected_node), noise
            )
        bonus = sample_with_gumbel(select_index(p, num_accepted), noise.fresh_gumbel(1)[:, 0], noise.greedy)
        return accept_and_emit(draft, num_accepted, torch.where(is_rejected, correction, bonus))

    def verify_groups(self, p: Tensor, q: Tensor, draft_ids: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Draw a group that contains each drafted token, and accept the token with probability min(1, P(G)/Q(G)).

        Args:
            p (Tensor): `[B, N, V]` target probabilities.
            q (Tensor): `[B, N, V]` draft probabilities.
            draft_ids (Tensor): `[B, N]` drafted tokens.
            noise (Noise): random numbers of the batch rows.

        Returns:
            Tensor: `[B, N]` bool, tokens that are accepted.
            Tensor: `[B, N]` ids that seed the groups drawn; in greedy rows the argmax of p.
        """
        is_possible = gather_last(p, draft_ids) > 0  # the grammar may forbid a drafted token, though not its group
        argmax = p.argmax(-1)  # [B, N]; greedy rows accept the tokens of the group that it seeds
        group = pick_group(self.members, draft_ids, noise.fresh_uniforms(draft_ids.shape[1]))
        mass_p, mass_q = (shared_group_mass(self.members, probs, group[..., None]).sum((-1, -2)) for probs in (p, q))
        is_accepted = noise.fresh_uniforms(draft_ids.shape[1]) * mass_q < mass_p  # u < P(G)/Q(G)
        greedy = noise.greedy[:, None]
        is_accepted = torch.where(greedy, group_contains(self.members, argmax, draft_ids), is_accepted)
        return is_possible & is_accepted, torch.where(greedy, argmax, group)

    def sample_correction(self, p: Tensor, q: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Sample a group, then one of its tokens in proportion to the probability mass that it contributes.

        Groups have probabilities proportional to max(P - Q, 0), where P and Q are their masses under p and q.

        Args:
            p (Tensor): `[B, V]` target probabilities at the rejected token.
            q (Tensor): `[B, V]` draft probabilities there.
            noise (Noise): random numbers of the batch rows.

        Returns:
            Tensor: `[B]` token ids.
            Tensor: `[B]` ids that seed the groups.
        """
        all_ids = torch.arange(p.shape[-1], device=p.device).expand_as(p)
        mass_p, mass_q = (shared_group_mass(self.members, probs, all_ids).sum(-1) for probs in (p, q))
        residual = normalise_or((mass_p - mass_q).clamp(min=0), mass_p)
        group = sample_with_gumbel(residual, noise.fresh_gumbel(1)[:, 0], noise.greedy)
        member_ids = self.members[group]  # [B, m]
        member_mass = shared_group_mass(self.members, p, group[:, None])[:, 0]  # [B, m]
        # a Gumbel number per member, the first m of V
        member = sample_with_gumbel(member_mass, noise.fresh_gumbel(1)[:, 0, : member_ids.shape[1]], noise.greedy)
        return gather_last(member_ids, member), group
