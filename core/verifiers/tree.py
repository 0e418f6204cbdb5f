"""Recursive rejection: children of a node are tested in the order they were drawn, each against the residual of p.

Exact for children sampled from q with or without replacement (Miao et al. 2024, SpecInfer, arXiv 2305.09781; Jeon et
al. 2024, arXiv 2402.14160); a deterministic child is one whose q is one-hot. It is not exact for children that were
sampled and then dropped (a re-ranked tree). With a lossy rule it is how LANTERN verifies a tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.verification import VerificationResult, accept_to_node
from polydraft.core.verifiers.rules import (
    RatioRule,
    acceptance_probability,
    normalise_or,
    one_hot,
    residual_distribution,
    sample_with_gumbel,
    verification_probs,
)


@dataclass(frozen=True)
class RecursiveRejection:
    """Verifier of trees by recursive rejection sampling."""

    rule: RatioRule = RatioRule()
    exact_only_tokens: Tensor | None = field(default=None, repr=False)  # [V] bool, tokens that no lossy rule applies to
    replacement: bool = False  # siblings were drawn with replacement, so q stays as it is after a rejection

    uses_shared_noise = False

    @property
    def guarantee(self) -> str:
        """Return "exact" if the output has the target's distribution under this rule, else "lossy"."""
        return "exact" if self.rule.exact else "lossy"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Descend from the root: test the children of the last accepted node until one is accepted, and go on there.

        Where none is, or there are none, a bonus token is sampled from what the rejections have left of p.

        Args:
            draft (Draft): tree of N nodes, siblings in the order they were drawn.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft, unused.
        """
        # Nodes are visited once, in order: parents come before children, and siblings as they were drawn.
        p = verification_probs(self.rule, distribution)  # [B, N+1, V]
        q = None if draft.q is None else draft.q.exp()
        uniforms = noise.fresh_uniforms(draft.size)
        batch_rows = torch.arange(len(p), device=p.device)
        current = torch.zeros_like(batch_rows)  # [B] tree index of the last accepted node
        # [B, V] distributions that the next child of `current` is tested with and was drawn from
        residual, current_q = p[:, 0], None if q is None else q[:, 0]
        for node in range(draft.size):
            draft_ids = draft.tokens[:, node]
            # batch rows where this node is a child of the last accepted one; the others ignore it
            is_tested = draft.valid[:, node] & (draft.parents[:, node] + 1 == current)
            node_q = one_hot(draft_ids, residual) if current_q is None else current_q
            depth = draft.depth[:, node + 1] - 1
            f = acceptance_probability(
                self.rule, self.exact_only_tokens, residual, node_q, draft_ids, depth, noise.greedy
            )
            is_accepted = is_tested & (uniforms[:, node] < f)
            is_rejected = (is_tested & ~is_accepted)[:, None]

            # after a rejection: p becomes the residual, and q loses the token if siblings are drawn without replacement
            next_residual = residual_distribution(self.rule, self.exact_only_tokens, residual, node_q, depth[:, None])
            residual = torch.where(is_rejected, next_residual, residual)
            if current_q is not None and not self.replacement:
                remaining_q = normalise_or(current_q * (1 - one_hot(draft_ids, current_q)), current_q)
                current_q = torch.where(is_rejected, remaining_q, current_q)

            # after an acceptance: the node becomes the current one
            current = torch.where(is_accepted, node + 1, current)
            residual = torch.where(is_accepted[:, None], p[batch_rows, current], residual)
            if current_q is not None and q is not None:
                current_q = torch.where(is_accepted[:, None], q[batch_rows, current], current_q)

        # Greedy rows emit the argmax of p, whatever was rejected.
        residual = torch.where(noise.greedy[:, None], p[batch_rows, current], residual)
        bonus = sample_with_gumbel(residual, noise.fresh_gumbel(1)[:, 0], noise.greedy)
        target_tokens = torch.zeros_like(draft.depth).scatter_(1, current[:, None], bonus[:, None])
        return accept_to_node(current, draft, target_tokens)
