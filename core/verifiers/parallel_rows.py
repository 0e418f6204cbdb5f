"""Verification of several open image rows in one pass with shared noise (`core.drafters.jacobi.parallel_rows`).

Open image rows are the next rows of the image, which are decoded side by side. In each of them guesses are accepted
while they are the tokens that the target samples, then the target's own token is taken; such tokens are settled.
Tokens that are settled before the image rows above are complete are committed later without another check: that makes
it lossy, whatever the match rule.
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
    """Shared-noise verifier of every open image row; a match rule, if any, applies to all of them."""

    guarantee = "lossy"

    def noise_positions(self, draft: Draft, noise: Noise, num_generated: Tensor) -> NoisePositions:
        """Return shared noise at the positions of the draft's tree indices, after `num_generated` `[B]` tokens.

        A node of a lower image row has a larger `depth`, in positions, than its number of ancestors in the draft.
        """
        return noise.at_positions(num_generated[:, None] + draft.depth)

    def extra_uniforms(self, draft: Draft, noise: Noise, num_generated: Tensor, draw_index: int) -> Tensor:
        """Return shared uniforms `[B, N+1]` at the tree indices of `draft` for extra draw `draw_index` ≥ 1."""
        return noise.uniforms_at(num_generated[:, None] + draft.depth, draw_index)

    def verify(
        self, draft: Draft, distribution: TokenDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Settle tokens of every open image row; commit those of the first, and of the second if the first is complete.

        Args:
            draft (Draft): draft with a `ParallelRowsLayout`, N nodes.
            distribution (TokenDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft.
        """
        assert draft.parallel_rows is not None
        target_tokens, matches = self.match_draft(draft, distribution, noise, num_generated)
        # [B, N] the target's token after every node. Where the first image row has no settled token after the root,
        # the root takes the place of node 0.
        node_target_tokens = target_tokens[:, 1:].clone()
        node_target_tokens[:, 0] = torch.where(
            draft.parallel_rows.starts_at_root, target_tokens[:, 0], node_target_tokens[:, 0]
        )
        settled_rows, num_accepted = settle_rows(draft.parallel_rows, draft.tokens, node_target_tokens, matches)
        return commit_settled_rows(draft.parallel_rows, settled_rows, num_accepted, target_tokens)


def settle_rows(
    layout: ParallelRowsLayout, tokens: Tensor, target_tokens: Tensor, matches: Tensor
) -> tuple[SettledRows, Tensor]:
    """Settle the accepted guesses of every open image row, and the target's token after them.

    Args:
        layout (ParallelRowsLayout): K open image rows of W tokens before the pass. Each has w + 1 nodes, for w guesses.
        tokens (Tensor): `[B, N]` ids of the nodes, N = K (w + 1); the first of an image row is its last settled token,
            the others are guesses.
        target_tokens (Tensor): `[B, N]` the target's token for the position after each node.
        matches (Tensor): `[B, N]` bool, nodes that are accepted if their parent is.

    Returns:
        SettledRows: open image rows after the pass.
        Tensor: `[B, K]` accepted guesses of every image row.
    """
    verified, num_settled = layout.verified, layout.num_settled  # [B, K, w + 1] and [B, K]
    tokens, target_tokens, matches = (values.view_as(verified) for values in (tokens, target_tokens, matches))
    num_accepted = matches[..., 1:].cumprod(-1).sum(-1)  # node 0 of a row is no guess
    # The target's token after the accepted guesses is settled too, where it is used.
    has_target_token = verified.gather(2, num_accepted[..., None])[..., 0]
    offset = torch.arange(verified.shape[2], device=num_accepted.device)
    is_accepted = offset < num_accepted[..., None]  # [B, K, w + 1], the guess after node `offset` is accepted
    next_tokens = torch.cat([tokens[..., 1:], tokens[..., :1]], -1)  # the guess after each node; the last is not read
    # after the accepted guesses: the target's own tokens, of which the first is settled and the others are new guesses
    new_ids = torch.where(is_accepted, next_tokens, target_tokens)
    # The token after node `offset` is at column `num_settled + offset` of its image row. Positions that are not
    # verified are written to an extra column after the image row, which is cut off.
    row_length = layout.ids.shape[2]
    index = (num_settled[..., None] + offset).where(verified, row_length)
    ids, was_drafted = (torch.nn.functional.pad(values, (0, 1)) for values in (layout.ids, layout.was_drafted))
    ids = ids.scatter(2, index, new_ids)[..., :row_length]
    was_drafted = was_drafted.scatter(2, index, is_accepted)[..., :row_length]
    num_newly_settled = num_accepted + has_target_token
    # ids written in this pass, or guesses of earlier passes that reach further, minus those that are settled now
    num_guesses = torch.maximum(verified.sum(-1), layout.num_guesses) - num_newly_settled
    return SettledRows(ids, num_settled + num_newly_settled, num_guesses, was_drafted), num_accepted


def commit_settled_rows(
    layout: ParallelRowsLayout, settled_rows: SettledRows, num_accepted: Tensor, target_tokens: Tensor
) -> VerificationResult:
    """Commit the first image row's settled tokens and, where that row is complete, the second's.

    The target's token after the accepted guesses has no keys and values yet: if it is the last of the first image row
    it is the next root, so the second image row is not committed in this pass.

    Args:
        layout (ParallelRowsLayout): K open image rows of W tokens before the pass. Each has w + 1 nodes, for w guesses.
        settled_rows (SettledRows): open image rows after the pass.
        num_accepted (Tensor): `[B, K]` accepted guesses of every image row.
        target_tokens (Tensor): `[B, N+1]` the target's token at every tree index, N = K (w + 1).

    Returns:
        VerificationResult: without a path, since `sampled_at` and `settled_rows` take its place.
    """
    num_batch_rows, num_open_rows, row_length = settled_rows.ids.shape
    num_image_rows = min(num_open_rows, 2)  # rows whose tokens may be committed: the first, and one after it

    # number of tokens to commit, [B]; the first image row is complete if its last token, too, has keys and values:
    # it was settled before the pass or is an accepted guess
    num_settled = settled_rows.num_settled
    is_complete = (num_settled[:, 0] == row_length) & (layout.num_settled[:, 0] + num_accepted[:, 0] == row_length)
    num_committed = num_settled[:, 0] - layout.num_committed
    if num_image_rows == 2:
        num_committed = num_committed + torch.where(is_complete, num_settled[:, 1], 0)

    # the tokens after those committed before, [B, num_image_rows * W]; only the first `num_committed` are used, and the
    # clamped indices are behind them
    offset = torch.arange(num_image_rows * row_length, device=num_accepted.device)
    index = (layout.num_committed[:, None] + offset).clamp(max=num_image_rows * row_length - 1)
    tokens = settled_rows.ids[:, :num_image_rows].flatten(1).gather(1, index)

    # The tree index that each token was sampled at: the token `index_in_pass` after the settled ones of an image row
    # was sampled at the node of that number in the row; -1 for tokens that an earlier pass settled.
    image_row, column = index // row_length, index % row_length
    index_in_pass = column - layout.num_settled.gather(1, image_row)  # negative if an earlier pass settled the token
    nodes_per_row = layout.verified.shape[2]  # w + 1; tree index 1 is the first node, index 0 the root in its place
    sampled_at = 1 + image_row * nodes_per_row + index_in_pass.clamp(max=nodes_per_row - 1)
    sampled_at = torch.where((sampled_at == 1) & layout.starts_at_root[:, None], 0, sampled_at)
    sampled_at = sampled_at.where(index_in_pass >= 0, -1)

    was_drafted = settled_rows.was_drafted[:, :num_image_rows].flatten(1).gather(1, index)
    was_drafted = was_drafted & (offset < num_committed[:, None])
    path = torch.full((num_batch_rows, num_image_rows * row_length - 1), -1, device=num_accepted.device)  # padding only
    return VerificationResult(
        path, tokens, num_accepted=was_drafted.sum(1), num_committed=num_committed, target_tokens=target_tokens,
        last_accepted_index=torch.zeros_like(num_committed),  # not read, since there is no path
        is_contiguous=True, sampled_at=sampled_at, settled_rows=settled_rows,
    )  # fmt: skip
