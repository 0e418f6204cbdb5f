"""Results of verification: what one step commits to every row, and the one place where rows end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import Draft
from polydraft.core.tokens import batch_gather, batch_scatter_

# values of `VerificationResult.finish_reason`, and their names in results
RUNNING, EOS, LENGTH, NO_VALID_TOKEN = range(4)
FINISH_REASONS = (None, "eos", "length", "impossible")


@dataclass(frozen=True)
class SettledRows:
    """Open rows of an image after a pass; see `core.drafters.jacobi.parallel_rows.ParallelRowsState`."""

    ids: Tensor  # [B, K, W] token ids of K open rows
    num_settled: Tensor  # [B, K] how many of `ids` are settled
    num_guesses: Tensor  # [B, K] how many guesses follow the settled ones
    was_drafted: Tensor  # [B, K, W] bool, settled ids that had been drafted


@dataclass(frozen=True)
class VerificationResult:
    """Accepted path of every row, followed by the bonus token that the target itself supplies."""

    path: Tensor  # [B, D] int64, nodes that verification accepted, from the root on; -1 is padding
    tokens: Tensor  # [B, D+1, …] their tokens, then the bonus token; the first `num_committed[b]` are committed
    num_accepted: Tensor  # [B] drafted tokens that are kept
    num_committed: Tensor  # [B] tokens that are committed: `num_accepted` + 1 unless the row ends
    target_tokens: Tensor  # [B, N+1, …] the target's own token at every tree index (the next draft of Jacobi methods)
    end_index: Tensor  # [B] tree index of the last accepted node, where the bonus token was sampled
    finish_reason: Tensor | None = None  # [B] RUNNING, EOS, LENGTH or NO_VALID_TOKEN
    is_contiguous: bool = False  # the KV entries of the committed path are already in order and need not move
    sampled_at: Tensor | None = None  # overrides `token_indices` where the path does not determine them
    settled_rows: SettledRows | None = None  # of a draft with parallel image rows

    @property
    def token_indices(self) -> Tensor:
        """Return the tree index that each of `tokens` was sampled at, `[B, D+1]`; -1 if an earlier pass sampled it."""
        if self.sampled_at is not None:
            return self.sampled_at
        return torch.nn.functional.pad((self.path + 1).clamp(min=0), (1, 0))

    @property
    def num_matched(self) -> Tensor:
        """Return the number of matched tokens plus the bonus token, `[B]`, whether they are committed now or not."""
        return (self.path >= 0).sum(1) + 1


def accept_to_node(end_index: Tensor, draft: Draft, target_tokens: Tensor) -> VerificationResult:
    """Accept a node and its ancestors, followed by the target's token at that node.

    Args:
        end_index (Tensor): `[B]` tree index of the last accepted node, 0 for none.
        draft (Draft): the verified draft.
        target_tokens (Tensor): `[B, N+1, …]` the target's token at every tree index.
    """
    row = cached_arange(len(end_index), end_index.device)
    num_accepted = draft.depth[row, end_index]
    path = draft.root_paths[row, end_index][:, 1:] - 1
    path = path.masked_fill(cached_arange(path.shape[1], end_index.device) >= num_accepted[:, None], -1)
    bonus = batch_gather(target_tokens, end_index[:, None])
    if draft.size:
        tokens = torch.cat([batch_gather(draft.tokens, path.clamp(min=0)), bonus], 1)
        batch_scatter_(tokens, num_accepted[:, None], bonus)
    else:
        tokens = bonus
    return VerificationResult(path, tokens, num_accepted, num_accepted + 1, target_tokens, end_index)


def keep_contiguous_prefix(result: VerificationResult) -> VerificationResult:
    """Shorten the accepted path to nodes whose KV entries are where plain decoding would put them.

    Node i of the path must be at depth i + 1. Moved KV entries would change the order in which later attention sums
    over keys, and so the last bits of hidden states; with contiguous entries the bits are those of plain decoding. The
    token after the last kept node is the target's own either way. `path` and `tokens` still hold all that matched, so
    that a drafter can begin its next draft with it.
    """
    depth = cached_arange(result.path.shape[1], result.path.device)
    num_accepted = (result.path == depth).cumprod(1).sum(1)
    return replace(
        result, num_accepted=num_accepted, num_committed=num_accepted + 1, end_index=num_accepted, is_contiguous=True
    )


def truncate_at_stop(
    result: VerificationResult, budget: Tensor, stop_token_mask: Tensor | None, is_allowed: Tensor
) -> VerificationResult:
    """Truncate rows at their first stop token or at their budget, and record why they finish.

    It runs before anything is committed or counted, so nothing after the end of a row is ever seen.

    Args:
        result (VerificationResult): what verification accepted.
        budget (Tensor): `[B]` tokens that each row may still get.
        stop_token_mask (Tensor | None): `[V]` bool, ids that end a sequence.
        is_allowed (Tensor): `[B, D+1]` bool, tokens that had a nonzero probability where they were sampled; a row ends
            before the first that had none.
    """
    index = cached_arange(result.tokens.shape[1], budget.device)
    num_committed = torch.minimum(result.num_committed, budget)
    finish_reason = torch.where(num_committed >= budget, LENGTH, RUNNING)
    first_invalid = torch.where(is_allowed, len(index), index).amin(1)
    if stop_token_mask is not None:
        in_reach = index < torch.minimum(num_committed, first_invalid)[:, None]
        is_stop = stop_token_mask[result.tokens] & in_reach
        stop_len = torch.where(is_stop, index, len(index)).amin(1) + 1
        finish_reason = torch.where(stop_len <= num_committed, EOS, finish_reason)
        num_committed = torch.minimum(num_committed, stop_len)
    finish_reason = torch.where(first_invalid < num_committed, NO_VALID_TOKEN, finish_reason)
    num_committed = torch.minimum(num_committed, first_invalid)
    return replace(
        result,
        num_committed=num_committed,
        num_accepted=torch.minimum(result.num_accepted, num_committed),
        finish_reason=finish_reason,
    )
