"""Verifiers of chains with fresh noise: speculative sampling under any acceptance rule, and block verification.

Uniforms and residual draws come from the fresh noise stream, as do the drafts.
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
    gather_last,
    normalise_or,
    one_hot,
    residual_distribution,
    sample_with_gumbel,
    verification_probs,
)


def draft_probs(draft: Draft, p: Tensor) -> Tensor:
    """Return q `[B, N, V]`, the distribution that every node was drawn from; one-hot if the draft has none."""
    return one_hot(draft.tokens, p[:, 1:]) if draft.q is None else draft.q[:, : draft.size].exp()


def accept_and_sample(draft: Draft, num_accepted: Tensor, probs: Tensor, noise: Noise) -> VerificationResult:
    """Accept the first `num_accepted` `[B]` nodes and emit a token sampled from `probs` `[B, V]`."""
    return accept_and_emit(draft, num_accepted, sample_with_gumbel(probs, noise.fresh_gumbel(1)[:, 0], noise.greedy))


def accept_and_emit(draft: Draft, num_accepted: Tensor, tokens: Tensor) -> VerificationResult:
    """Accept the first `num_accepted` `[B]` nodes and emit `tokens` `[B]`."""
    target_tokens = torch.zeros_like(draft.depth).scatter_(1, num_accepted[:, None], tokens[:, None])
    return accept_to_node(num_accepted, draft, target_tokens)


def at_index(values: Tensor, index: Tensor) -> Tensor:
    """Select one index `[B]` of values `[B, C, V]` per row, `[B, V]`."""
    return values[torch.arange(len(values), device=values.device), index]


@dataclass(frozen=True)
class SpeculativeSampling:
    """Speculative sampling: accept x while u < f(x), then sample from the residual, or from p if all were accepted.

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """

    rule: RatioRule = RatioRule()
    exact_only_tokens: Tensor | None = field(default=None, repr=False)  # [V] bool, tokens that no lossy rule applies to

    uses_shared_noise = False

    @property
    def guarantee(self) -> str:
        return "exact" if self.rule.exact else "lossy"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        p = verification_probs(self.rule, distribution)
        if draft.size == 0:
            return accept_and_sample(draft, torch.zeros(len(p), dtype=torch.long, device=p.device), p[:, 0], noise)
        q, depth = draft_probs(draft, p), draft.depth[:, 1:] - 1
        target = self.rule.target_probs(p[:, :-1], q)
        f = acceptance_probability(
            self.rule, self.exact_only_tokens, target, q, draft.tokens, depth, noise.greedy[:, None]
        )
        is_accepted = draft.valid & (noise.fresh_uniforms(draft.size) < f)
        num_accepted = is_accepted.cumprod(1).sum(1)
        rejected_node = num_accepted.clamp(max=draft.size - 1)
        residual = residual_distribution(
            self.rule,
            self.exact_only_tokens,
            at_index(target, rejected_node),
            at_index(q, rejected_node),
            rejected_node[:, None],
        )
        is_rejected = (num_accepted < draft.size) & draft.valid.gather(1, rejected_node[:, None])[:, 0]
        is_rejected = is_rejected & ~noise.greedy  # greedy rows emit the argmax of p after a rejection too
        probs = torch.where(is_rejected[:, None], residual, at_index(p, num_accepted))
        return accept_and_sample(draft, num_accepted, probs, noise)


@dataclass(frozen=True)
class BlockVerification:
    """Block verification of a whole chain; exact, and never accepts less than token-by-token verification.

    Sun et al. 2024, arXiv 2403.10444.
    """

    uses_shared_noise = False
    guarantee = "exact"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        p = verification_probs(RatioRule(), distribution)
        if draft.size == 0:
            return accept_and_sample(draft, torch.zeros(len(p), dtype=torch.long, device=p.device), p[:, 0], noise)
        q = draft_probs(draft, p)
        num_nodes = draft.valid.cumprod(1).sum(1)  # rows may have shorter drafts
        weight = block_weights(p, q, draft)  # [B, N + 1], π_0 … π_N
        residual = (weight[:, :-1, None] * p[:, :-1] - q).clamp(min=0)  # after node i, i < N
        mass = residual.sum(-1)
        total = mass + 1 - weight[:, :-1]
        h = torch.where(total > 0, mass / total.clamp(min=torch.finfo(p.dtype).tiny), 1.0)
        h = torch.nn.functional.pad(h, (0, 1))
        index = torch.arange(draft.size + 1, device=p.device)
        h = torch.where(index == num_nodes[:, None], weight, torch.where(index < num_nodes[:, None], h, 0))
        passed = noise.fresh_uniforms(draft.size + 1) <= h
        num_accepted = last_passed(passed)
        residuals = normalise_or(torch.nn.functional.pad(residual, (0, 0, 0, 1)), p)
        all_accepted = (num_accepted == num_nodes)[:, None]
        probs = torch.where(all_accepted, at_index(p, num_accepted), at_index(residuals, num_accepted))
        return accept_and_sample(draft, num_accepted, probs, noise)


def last_passed(passed: Tensor) -> Tensor:
    """Return the last index that passed `[B, N + 1]`, whatever failed before it; 0 if none did."""
    return torch.where(passed, torch.arange(passed.shape[1], device=passed.device), 0).amax(1)


def block_weights(p: Tensor, q: Tensor, draft: Draft) -> Tensor:
    """Return π_i = min(1, π_(i-1) p(x_i) / q(x_i)), `[B, N + 1]`."""
    ratios = gather_last(p[:, :-1], draft.tokens) / gather_last(q, draft.tokens)
    weights = [torch.ones_like(ratios[:, 0])]
    for index in range(draft.size):
        weights.append((weights[-1] * ratios[:, index]).clamp(max=1))
    return torch.stack(weights, 1)
