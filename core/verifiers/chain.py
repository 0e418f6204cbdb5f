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
    """Return the distribution q `[B, N, V]` that every node of a chain was drawn from; one-hot if `draft.q` is None.

    Args:
        draft (Draft): chain of N nodes.
        p (Tensor): `[B, N+1, V]` target probabilities, whose data type a one-hot q gets.
    """
    # `draft.q` is stored by parent: entry i of a chain is what node i was drawn from, and the last one is not used.
    return one_hot(draft.tokens, like=p[:, 1:]) if draft.q is None else draft.q[:, : draft.size].exp()


def accept_and_sample(draft: Draft, num_accepted: Tensor, probs: Tensor, noise: Noise) -> VerificationResult:
    """Accept the first `num_accepted` `[B]` nodes of a chain and emit a bonus token sampled from `probs` `[B, V]`."""
    bonus = sample_with_gumbel(probs, noise.fresh_gumbel(1)[:, 0], noise.greedy)
    return accept_and_emit(draft, num_accepted, bonus)


def accept_and_emit(draft: Draft, num_accepted: Tensor, bonus: Tensor) -> VerificationResult:
    """Accept the first `num_accepted` `[B]` nodes of a chain, followed by the bonus tokens `[B]`."""
    # In a chain, tree index `num_accepted` is the last accepted node; other entries are not read.
    target_tokens = torch.zeros_like(draft.depth).scatter_(1, num_accepted[:, None], bonus[:, None])
    return accept_to_node(num_accepted, draft, target_tokens)


def select_index(values: Tensor, index: Tensor) -> Tensor:
    """Return `values[b, index[b]]` of every batch row b, `[B, V]`; `values` is `[B, T, V]`, `index` `[B]`."""
    return values[torch.arange(len(values), device=values.device), index]


@dataclass(frozen=True)
class SpeculativeSampling:
    """Speculative sampling of chains: accept x while u < f(x), then sample from the residual, or from p if all passed.

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """

    rule: RatioRule = RatioRule()
    exact_only_tokens: Tensor | None = field(default=None, repr=False)  # [V] bool, tokens that no lossy rule applies to

    uses_shared_noise = False

    @property
    def guarantee(self) -> str:
        """Return "exact" if the output has the target's distribution under this rule, else "lossy"."""
        return "exact" if self.rule.exact else "lossy"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept drafted tokens up to the first rejection, then sample one more token.

        It is sampled from the residual distribution after a rejection, and from p if every drafted token is accepted.

        Args:
            draft (Draft): chain of N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft, unused.
        """
        p = verification_probs(self.rule, distribution)  # [B, N+1, V]
        if draft.size == 0:  # nothing to test: accept 0 nodes, sample after the root
            return accept_and_sample(draft, torch.zeros(len(p), dtype=torch.long, device=p.device), p[:, 0], noise)

        # accept token x_i while the uniform u_i < f(x_i), the rule's acceptance probability
        q, depth = draft_probs(draft, p), draft.depth[:, 1:] - 1
        target = self.rule.target_probs(p[:, :-1], q)  # [B, N, V], p of every drafted token unless the rule mixes in q
        f = acceptance_probability(
            self.rule, self.exact_only_tokens, target, q, draft.tokens, depth, noise.greedy[:, None]
        )
        is_accepted = draft.valid & (noise.fresh_uniforms(draft.size) < f)
        num_accepted = is_accepted.cumprod(1).sum(1)

        # sample the token after them: from the residual after a rejection, else from p
        rejected_node = num_accepted.clamp(max=draft.size - 1)  # [B], not used where all were accepted
        residual = residual_distribution(
            self.rule,
            self.exact_only_tokens,
            select_index(target, rejected_node),
            select_index(q, rejected_node),
            depth=rejected_node[:, None],
        )
        # A chain also ends before an invalid node, where nothing was rejected.
        is_rejected = (num_accepted < draft.size) & draft.valid.gather(1, rejected_node[:, None])[:, 0]
        is_rejected = is_rejected & ~noise.greedy  # greedy rows emit the argmax of p after a rejection too
        probs = torch.where(is_rejected[:, None], residual, select_index(p, num_accepted))
        return accept_and_sample(draft, num_accepted, probs, noise)


@dataclass(frozen=True)
class BlockVerification:
    """Block verification: test the prefixes of a chain jointly; exact, and accepts no fewer tokens than token by token.

    Sun et al. 2024, arXiv 2403.10444.
    """

    uses_shared_noise = False
    guarantee = "exact"

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept the longest prefix that passes its test, then sample from the residual distribution after it.

        Args:
            draft (Draft): chain of N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft, unused.
        """
        p = verification_probs(RatioRule(), distribution)  # [B, N+1, V], one-hot in greedy rows
        if draft.size == 0:  # nothing to test: accept 0 nodes, sample after the root
            return accept_and_sample(draft, torch.zeros(len(p), dtype=torch.long, device=p.device), p[:, 0], noise)
        q = draft_probs(draft, p)
        num_nodes = draft.valid.cumprod(1).sum(1)  # [B], batch rows may have shorter drafts
        # [B, N + 1], π_0 … π_N: the acceptance ratio of the prefix of i tokens, π_i = min(1, π_(i-1) p(x_i) / q(x_i))
        weight = block_weights(p, q, draft)

        # h_i, the probability that the prefix of i nodes passes: M_i / (M_i + 1 - π_i), where M_i is the mass of the
        # residual max(π_i p - q, 0) after node i; π_i for the whole draft; 0 beyond it
        residual = (weight[:, :-1, None] * p[:, :-1] - q).clamp(min=0)  # [B, N, V]
        residual_mass = residual.sum(-1)  # [B, N]
        denominator = residual_mass + 1 - weight[:, :-1]
        tiny = torch.finfo(p.dtype).tiny  # avoids divisions by 0, whose results are discarded
        h = torch.where(denominator > 0, residual_mass / denominator.clamp(min=tiny), 1.0)
        h = torch.nn.functional.pad(h, (0, 1))  # [B, N + 1]; the next lines set the entries from the draft's end on
        prefix_len = torch.arange(draft.size + 1, device=p.device)
        h = torch.where(prefix_len == num_nodes[:, None], weight, torch.where(prefix_len < num_nodes[:, None], h, 0))
        num_accepted = last_true_index(noise.fresh_uniforms(draft.size + 1) <= h)

        # sample the token after the prefix: from p after the whole draft, else from the residual
        residual = normalise_or(torch.nn.functional.pad(residual, (0, 0, 0, 1)), p)  # [B, N + 1, V]
        all_accepted = (num_accepted == num_nodes)[:, None]
        probs = torch.where(all_accepted, select_index(p, num_accepted), select_index(residual, num_accepted))
        return accept_and_sample(draft, num_accepted, probs, noise)


def last_true_index(passed: Tensor) -> Tensor:
    """Return the last index `[B]` at which `passed` `[B, N + 1]` is true; 0 if it never is."""
    return torch.where(passed, torch.arange(passed.shape[1], device=passed.device), 0).amax(1)


def block_weights(p: Tensor, q: Tensor, draft: Draft) -> Tensor:
    """Return the weights π_0 = 1, π_i = min(1, π_(i-1) p(x_i) / q(x_i)) of block verification, `[B, N + 1]`.

    Args:
        p (Tensor): `[B, N + 1, V]` target probabilities.
        q (Tensor): `[B, N, V]` draft probabilities.
        draft (Draft): chain of the tokens x_1 … x_N.
    """
    ratios = gather_last(p[:, :-1], draft.tokens) / gather_last(q, draft.tokens)
    weights = [torch.ones_like(ratios[:, 0])]
    for index in range(draft.size):
        weights.append((weights[-1] * ratios[:, index]).clamp(max=1))
    return torch.stack(weights, 1)
