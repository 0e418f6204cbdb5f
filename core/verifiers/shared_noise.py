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

    `positions` `[B, D+1]` are those of the depths 0 … D.
    """

    draft: Draft
    num_generated: Tensor  # [B] tokens before the first position

    def gumbel(self) -> Tensor | None:
        if not self.noise.any_sampled:
            return None
        return gather_by_depth(self.noise.gumbel_after(self.num_generated, self.positions.shape[1]), self.draft)


@dataclass(frozen=True)
class FreshTreeNoise(TreeNoise):
    """Fresh noise at every tree index of a draft, new in every pass."""

    def gumbel(self) -> Tensor | None:
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
        return "identical" if self.match_rule is None else "lossy"

    def noise_positions(self, draft: Draft, noise: Noise, num_generated: Tensor) -> NoisePositions:
        """Return the noise that the target's tokens are sampled with."""
        return TreeNoise(noise, next_positions(num_generated, draft.max_depth + 1), draft, num_generated)

    def extra_uniforms(self, draft: Draft, noise: Noise, num_generated: Tensor, draw_index: int) -> Tensor:
        """Return uniforms `[B, N+1]` for the match rule's extra draw number `draw_index`, from 1."""
        return gather_by_depth(noise.uniforms_at(next_positions(num_generated, draft.max_depth + 1), draw_index), draft)

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        return accept_matching_path(draft, *self.match_draft(draft, distribution, noise, num_generated))

    def match_draft(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sample the target's tokens and match the draft with them.

        Returns:
            Tensor: `[B, N+1, …]` the target's token at every tree index.
            Tensor: `[B, N]` bool, nodes that are accepted after their parent.
        """
        target_tokens = distribution.sample(self.noise_positions(draft, noise, num_generated))
        if self.match_rule is None:
            return target_tokens, draft.valid & tokens_equal(
                draft.tokens, batch_gather(target_tokens, draft.parents + 1)
            )
        uniforms = [
            self.extra_uniforms(draft, noise, num_generated, index + 1) for index in range(self.match_rule.num_draws)
        ]
        draws = [self.match_rule.draw_extra(distribution, u, target_tokens) for u in uniforms]
        return target_tokens, self.best_matching_children(draft, distribution, target_tokens, draws)

    def best_matching_children(
        self, draft: Draft, distribution: TokenDistribution, target_tokens: Tensor, draws: list[Tensor]
    ) -> Tensor:
        """Select at most one child of every parent: the target's token, or else the likeliest child that matches it.

        Returns:
            Tensor: `[B, N]` bool.
        """
        assert self.match_rule is not None
        parent = draft.parents + 1
        p, wanted = batch_gather(distribution.probs, parent), batch_gather(target_tokens, parent)
        extra = torch.stack([draw.gather(1, parent) for draw in draws], -1) if draws else wanted[..., None][..., :0]
        matches = tokens_match(self.match_rule, self.exact_only_tokens, p, wanted, draft.tokens, extra)
        matches = draft.valid & matches
        score = gather_last(p, draft.tokens) + 2.0 * (draft.tokens == wanted)
        score = torch.where(matches, score, -1.0)
        is_sibling = parent[:, :, None] == parent[:, None, :]
        is_earlier = torch.ones(draft.size, draft.size, dtype=torch.bool, device=score.device).tril(-1)
        ties = (score[:, None, :] == score[:, :, None]) & is_earlier
        is_better = (score[:, None, :] > score[:, :, None]) | ties
        return matches & ~(is_sibling & is_better).any(-1)


@dataclass(frozen=True)
class FreshNoiseVerifier(SharedNoiseVerifier):
    """Verifier that samples the target's tokens with fresh noise: exact for any tree, however it was chosen."""

    uses_shared_noise = False

    @property
    def guarantee(self) -> str:
        return "exact" if self.match_rule is None else "lossy"

    def noise_positions(self, draft: Draft, noise: Noise, num_generated: Tensor) -> TreeNoise:
        return FreshTreeNoise(noise, next_positions(num_generated, draft.max_depth + 1), draft, num_generated)

    def extra_uniforms(self, draft: Draft, noise: Noise, num_generated: Tensor, draw_index: int) -> Tensor:
        return gather_by_depth(noise.fresh_uniforms(draft.max_depth + 1), draft)


def accept_matching_path(draft: Draft, target_tokens: Tensor, matches: Tensor) -> VerificationResult:
    """Accept the deepest path of matching nodes from the root, then emit the target's token after it.

    Args:
        draft (Draft): the verified draft.
        target_tokens (Tensor): `[B, N+1, …]` the target's token at every tree index.
        matches (Tensor): `[B, N]` bool, nodes that are accepted after their parent.
    """
    matches = torch.nn.functional.pad(matches, (1, 0), value=True)  # the root is committed
    is_reached = ~(draft.ancestor_mask & ~matches[:, None, :]).any(-1)
    return accept_to_node(torch.where(is_reached, draft.depth, -1).argmax(1), draft, target_tokens)


def gather_by_depth(values: Tensor, draft: Draft) -> Tensor:
    """Gather values `[B, D+1, …]`, one per depth, at every tree index."""
    return values if draft.is_chain else batch_gather(values, draft.depth)
