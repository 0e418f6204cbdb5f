"""Verification with shared noise: from the root follow the child that is the token the target itself samples.

The result is identical to plain decoding with the same seed, whatever drafted the tree (arXiv 2408.07978). Temperature
0 is the same with Gumbel noise of zero. With a match rule a child may also be accepted in place of the target's token
(a near neighbour in the codebook), which is lossy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.batched_state import next_positions
from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise, NoisePositions
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.tokens import batch_gather, tokens_equal
from polydraft.core.verification import VerificationResult, accept_to_node
from polydraft.core.verifiers.rules import TokenMatchRule, gather_last, tokens_match


@dataclass(frozen=True)
class TreeNoise(NoisePositions):
    """Shared noise at every tree index of a draft: all nodes of one depth use the noise of their position.

    `positions` `[B, D+1]` are those of the depths 0 … D (D = `draft.max_depth`).
    """

    draft: Draft
    num_generated: Tensor  # [B] tokens before the first position

    def gumbel(self) -> Tensor | None:
        """Return position-keyed Gumbel noise at every tree index, `[B, N+1, V]`; None if every batch row is greedy."""
        if not self.noise.any_sampled:
            return None
        return gather_by_depth(self.noise.gumbel_after(self.num_generated, self.positions.shape[1]), self.draft)


@dataclass(frozen=True)
class FreshTreeNoise(TreeNoise):
    """Fresh noise at every tree index of a draft, new in every pass."""

    def gumbel(self) -> Tensor | None:
        """Return fresh Gumbel noise, `[B, N+1, V]`, equal for nodes of one depth; None if every batch row is greedy."""
        if not self.noise.any_sampled:
            return None
        return gather_by_depth(self.noise.fresh_gumbel(self.draft.max_depth + 1), self.draft)


@dataclass(frozen=True)
class SharedNoiseVerifier:
    """Verifier that samples the target's token at every tree index and accepts the nodes that match it."""

    match_rule: TokenMatchRule | None = None  # None accepts equal tokens only
    exact_only_tokens: Tensor | None = field(default=None, repr=False)  # [V] bool, tokens that no match rule applies to

    uses_shared_noise = True

    @property
    def guarantee(self) -> str:
        """Return "identical" (the tokens of plain decoding with the same seed), or "lossy" with a match rule."""
        return "identical" if self.match_rule is None else "lossy"

    def noise_positions(self, draft: Draft, noise: Noise, num_generated: Tensor) -> NoisePositions:
        """Return the noise that the target's tokens at the tree indices of `draft` are sampled with.

        `num_generated` `[B]` counts the tokens that every batch row has generated before the draft.
        """
        return TreeNoise(noise, next_positions(num_generated, draft.max_depth + 1), draft, num_generated)

    def extra_uniforms(self, draft: Draft, noise: Noise, num_generated: Tensor, draw_index: int) -> Tensor:
        """Return uniforms `[B, N+1]` at the tree indices of `draft` for the match rule's extra draw `draw_index` ≥ 1.

        `num_generated` `[B]` counts the tokens that every batch row has generated before the draft.
        """
        return gather_by_depth(noise.uniforms_at(next_positions(num_generated, draft.max_depth + 1), draw_index), draft)

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Sample the target's token at every tree index, and accept the deepest path of nodes that match them.

        Args:
            draft (Draft): tree of N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft.
        """
        return accept_matching_path(draft, *self.match_draft(draft, distribution, noise, num_generated))

    def match_draft(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sample the target's token at every tree index, and find the nodes that match the one at their parent.

        Args:
            draft (Draft): tree of N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft.

        Returns:
            Tensor: `[B, N+1]` (latents: `[B, N+1, C]`) the target's token at every tree index.
            Tensor: `[B, N]` bool, nodes that are accepted if their parent is.
        """
        target_tokens = distribution.sample(self.noise_positions(draft, noise, num_generated))
        if self.match_rule is None:
            token_after_parent = batch_gather(target_tokens, draft.parents + 1)
            return target_tokens, draft.valid & tokens_equal(draft.tokens, token_after_parent)
        draws = []
        for draw_index in range(1, self.match_rule.num_draws + 1):
            uniforms = self.extra_uniforms(draft, noise, num_generated, draw_index)
            draws.append(self.match_rule.draw_extra(distribution, uniforms, target_tokens))
        return target_tokens, self.best_matching_children(draft, distribution, target_tokens, draws)

    def best_matching_children(
        self, draft: Draft, distribution: TokenDistribution, target_tokens: Tensor, draws: list[Tensor]
    ) -> Tensor:
        """Select at most one child of every parent: the target's token, or else the likeliest child that matches it.

        Args:
            draft (Draft): tree of N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            target_tokens (Tensor): `[B, N+1]` the target's token at every tree index.
            draws (list[Tensor]): `[B, N+1]` each, the match rule's additional draws at every tree index.

        Returns:
            Tensor: `[B, N]` bool, nodes that are accepted if their parent is.
        """
        assert self.match_rule is not None
        # For every node: distribution, target's token and additional draws at its parent, where the node was drafted.
        parent = draft.parents + 1  # [B, N] tree index
        p, target_ids = batch_gather(distribution.probs, parent), batch_gather(target_tokens, parent)
        node_draws = [draw.gather(1, parent) for draw in draws]
        # [B, N, num_draws]; `stack` of no tensors is an error, so an empty tensor is made from another
        extra = torch.stack(node_draws, -1) if draws else target_ids[..., None][..., :0]
        matches = tokens_match(self.match_rule, self.exact_only_tokens, p, target_ids, draft.tokens, extra)
        matches = draft.valid & matches

        # Score siblings by probability; the target's token scores above all probabilities (2), nodes that do not match
        # below all (-1).
        score = gather_last(p, draft.tokens) + 2.0 * (draft.tokens == target_ids)
        score = torch.where(matches, score, -1.0)
        # entries (i, j) of [B, N, N]: is node j preferred to its sibling i? Of equal scores the earlier node is.
        is_sibling = parent[:, :, None] == parent[:, None, :]
        is_earlier = torch.ones(draft.size, draft.size, dtype=torch.bool, device=score.device).tril(-1)
        is_earlier_tie = (score[:, None, :] == score[:, :, None]) & is_earlier
        is_preferred = (score[:, None, :] > score[:, :, None]) | is_earlier_tie
        return matches & ~(is_sibling & is_preferred).any(-1)


@dataclass(frozen=True)
class FreshNoiseVerifier(SharedNoiseVerifier):
    """Verifier that samples the target's tokens with fresh noise: exact for any tree, however it was chosen."""

    uses_shared_noise = False

    @property
    def guarantee(self) -> str:
        """Return "exact" (the output has the target's distribution), or "lossy" with a match rule."""
        return "exact" if self.match_rule is None else "lossy"

    def noise_positions(self, draft: Draft, noise: Noise, num_generated: Tensor) -> TreeNoise:
        """Return fresh noise at the tree indices of `draft`, after `num_generated` `[B]` tokens of every batch row."""
        return FreshTreeNoise(noise, next_positions(num_generated, draft.max_depth + 1), draft, num_generated)

    def extra_uniforms(self, draft: Draft, noise: Noise, num_generated: Tensor, draw_index: int) -> Tensor:
        """Return fresh uniforms `[B, N+1]`, new in every call, equal for tree indices of one depth."""
        return gather_by_depth(noise.fresh_uniforms(draft.max_depth + 1), draft)


def accept_matching_path(draft: Draft, target_tokens: Tensor, matches: Tensor) -> VerificationResult:
    """Accept the deepest path of matching nodes from the root, then emit the target's token after it.

    Args:
        draft (Draft): the verified draft.
        target_tokens (Tensor): `[B, N+1]` (latents: `[B, N+1, C]`) the target's token at every tree index.
        matches (Tensor): `[B, N]` bool, nodes that are accepted if their parent is.
    """
    matches = torch.nn.functional.pad(matches, (1, 0), value=True)  # the root is committed
    is_accepted = ~(draft.ancestor_mask & ~matches[:, None, :]).any(-1)  # [B, N+1], node and all ancestors match
    deepest_accepted = torch.where(is_accepted, draft.depth, -1).argmax(1)  # [B] tree index, at least the root
    return accept_to_node(deepest_accepted, draft, target_tokens)


def gather_by_depth(values: Tensor, draft: Draft) -> Tensor:
    """Expand `values` `[B, D+1, …]`, one entry per depth 0 … D, to the tree indices of `draft`, `[B, N+1, …]`."""
    return values if draft.is_chain else batch_gather(values, draft.depth)  # in a chain the index is the depth
