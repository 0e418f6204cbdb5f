"""Verification of several open image rows at once with shared noise (`core.drafters.jacobi.parallel_rows`).

A row continues while its guesses are the tokens that the target samples, then takes the target's own token. Tokens that
are settled before the rows above are complete are committed later without another check: that makes it lossy, whatever
the match rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft, ParallelRowsLayout
from polydraft.core.sampling.noise import Noise, NoisePositions
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.verification import SettledRows, VerificationResult
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier


@dataclass(frozen=True)
class ParallelRowsVerifier(SharedNoiseVerifier):
    """Shared-noise verifier of every open row; a match rule, if any, applies to all of them."""

    guarantee = "lossy"

    def noise_positions(self, draft: Draft, noise: Noise, num_generated: Tensor) -> NoisePositions:
        return noise.at_positions(num_generated[:, None] + draft.depth)

    def extra_uniforms(self, draft: Draft, noise: Noise, num_generated: Tensor, draw_index: int) -> Tensor:
        return noise.uniforms_at(num_generated[:, None] + draft.depth, draw_index)

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        assert draft.parallel_rows is not None
        target_tokens, matches = self.match_draft(draft, distribution, noise, num_generated)
        row_tokens = target_tokens[:, 1:].clone()
        row_tokens[:, 0] = torch.where(draft.parallel_rows.starts_at_root, target_tokens[:, 0], row_tokens[:, 0])
        settled_rows, num_accepted = settle_rows(draft.parallel_rows, draft.tokens, row_tokens, matches)
        return commit_settled_rows(draft.parallel_rows, settled_rows, num_accepted, target_tokens)


def settle_rows(
    layout: ParallelRowsLayout, tokens: Tensor, target_tokens: Tensor, matches: Tensor
) -> tuple[SettledRows, Tensor]:
    """Settle the accepted guesses of every open row, and the target's token after them.

    Args:
        layout (ParallelRowsLayout): open rows before the pass.
        tokens (Tensor): `[B, N]` nodes; the first of a row is no guess.
        target_tokens (Tensor): `[B, N]`, the target's token for the position after each node.
        matches (Tensor): `[B, N]` bool, nodes that are accepted after their parent.

    Returns:
        SettledRows: open rows after the pass.
        Tensor: `[B, K]` accepted guesses of every row.
    """
    verified, num_settled = layout.verified, layout.num_settled
    guesses, target_tokens, matches = (part.view_as(verified) for part in (tokens, target_tokens, matches))
    num_accepted = matches[..., 1:].cumprod(-1).sum(-1)
    has_target_token = verified.gather(2, num_accepted[..., None])[..., 0]  # after the accepted guesses
    offset = torch.arange(verified.shape[2], device=num_accepted.device)
    is_accepted = offset < num_accepted[..., None]
    new_ids = torch.where(is_accepted, torch.cat([guesses[..., 1:], guesses[..., :1]], -1), target_tokens)
    # positions that are not verified are written past the row, and cut off
    width = layout.ids.shape[2]
    index = (num_settled[..., None] + offset).where(verified, width)
    ids, was_drafted = (torch.nn.functional.pad(part, (0, 1)) for part in (layout.ids, layout.was_drafted))
    ids = ids.scatter(2, index, new_ids)[..., :width]
    was_drafted = was_drafted.scatter(2, index, is_accepted)[..., :width]
    num_new = num_accepted + has_target_token
    num_guesses = torch.maximum(verified.sum(-1), layout.num_guesses) - num_new
    return SettledRows(ids, num_settled + num_new, num_guesses, was_drafted), num_accepted


def commit_settled_rows(
    layout: ParallelRowsLayout, settled_rows: SettledRows, num_accepted: Tensor, target_tokens: Tensor
) -> VerificationResult:
    """Commit the first row's settled tokens and, where that row is complete, the second's.

    The target's token after the accepted guesses has no keys and values yet: if it is the last of the first row it is
    the next root.

    Args:
        layout (ParallelRowsLayout): open rows before the pass.
        settled_rows (SettledRows): open rows after the pass.
        num_accepted (Tensor): `[B, K]` accepted guesses of every row.
        target_tokens (Tensor): `[B, N+1]` the target's token at every tree index.
    """
    batch, open_rows, width = settled_rows.ids.shape
    num_rows = min(open_rows, 2)
    num_settled = settled_rows.num_settled
    is_complete = (num_settled[:, 0] == width) & (layout.num_settled[:, 0] + num_accepted[:, 0] == width)
    num_committed = num_settled[:, 0] - layout.num_committed
    if num_rows == 2:
        num_committed = num_committed + torch.where(is_complete, num_settled[:, 1], 0)
    offset = torch.arange(num_rows * width, device=num_accepted.device)
    index = (layout.num_committed[:, None] + offset).clamp(max=num_rows * width - 1)
    tokens = settled_rows.ids[:, :num_rows].flatten(1).gather(1, index)
    row, column = index // width, index % width
    new_index = column - layout.num_settled.gather(1, row)  # negative for tokens that an earlier pass settled
    scored_per_row = layout.verified.shape[2]
    sampled_at = 1 + row * scored_per_row + new_index.clamp(max=scored_per_row - 1)
    sampled_at = torch.where((sampled_at == 1) & layout.starts_at_root[:, None], 0, sampled_at)
    sampled_at = sampled_at.where(new_index >= 0, -1)
    was_drafted = settled_rows.was_drafted[:, :num_rows].flatten(1).gather(1, index)
    was_drafted = was_drafted & (offset < num_committed[:, None])
    path = torch.full((batch, num_rows * width - 1), -1, device=num_accepted.device)
    return VerificationResult(
        path, tokens, was_drafted.sum(1), num_committed, target_tokens, torch.zeros_like(num_committed),
        is_contiguous=True, sampled_at=sampled_at, settled_rows=settled_rows,
    )  # fmt: skip
