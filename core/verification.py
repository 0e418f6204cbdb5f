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
    """K open image rows of W tokens after a pass that verified guesses in all of them.

    A token is settled once a pass has accepted it, even if it is not committed because earlier tokens are missing
    (`core.drafters.jacobi.parallel_rows`).
    """

    ids: Tensor  # [B, K, W] token ids of every open image row: settled ones, then guesses
    num_settled: Tensor  # [B, K] number of settled tokens
    num_guesses: Tensor  # [B, K] number of guesses after the settled tokens
    was_drafted: Tensor  # [B, K, W] bool, settled tokens that were accepted guesses


@dataclass(frozen=True)
class VerificationResult:
    """Accepted path of every batch row's draft tree, followed by the bonus token, which the target itself samples.

    N is the number of draft nodes, D the largest depth of a node.
    """

    path: Tensor  # [B, D] int64, indices of the accepted nodes, from the root down; -1 is padding
    tokens: Tensor  # [B, D+1, …] their tokens, then the bonus token; the first `num_committed[b]` are committed
    num_accepted: Tensor  # [B] drafted tokens that are committed
    num_committed: Tensor  # [B] tokens that are committed: `num_accepted` + 1 unless the batch row ends
    target_tokens: Tensor  # [B, N+1, …] the target's own token at every tree index (the next draft of Jacobi methods)
    last_accepted_index: Tensor  # [B] tree index of the last accepted node, where the bonus token was sampled
    finish_reason: Tensor | None = None  # [B] RUNNING, EOS, LENGTH or NO_VALID_TOKEN
    is_contiguous: bool = False  # the KV entries of the committed path are already in order and need not move
    sampled_at: Tensor | None = None  # [B, D+1], overrides `token_indices` where the path does not determine them
    settled_rows: SettledRows | None = None  # of a draft with parallel image rows

    @property
    def token_indices(self) -> Tensor:
        """Return the tree index that each of `tokens` was sampled at, `[B, D+1]`; -1 if an earlier pass sampled it."""
        if self.sampled_at is not None:
            return self.sampled_at
        return torch.nn.functional.pad((self.path + 1).clamp(min=0), (1, 0))

    @property
    def num_matched(self) -> Tensor:
        """Return the number of accepted tokens plus the bonus token, `[B]`, before any truncation."""
        return (self.path >= 0).sum(1) + 1


def accept_to_node(last_accepted_index: Tensor, draft: Draft, target_tokens: Tensor) -> VerificationResult:
    """Accept a node and its ancestors, followed by the target's token at that node as the bonus token.

    Args:
        last_accepted_index (Tensor): `[B]` tree index of the last accepted node; 0, the root, if none is.
        draft (Draft): the verified draft of N nodes.
        target_tokens (Tensor): `[B, N+1]` (latents: `[B, N+1, C]`) the target's token at every tree index; only the
            one at `last_accepted_index` is read.
    """
    batch_rows = cached_arange(len(last_accepted_index), last_accepted_index.device)
    num_accepted = draft.depth[batch_rows, last_accepted_index]
    # [B, D] node indices, D the largest depth; the root is left out, and tree index i is node i - 1
    path = draft.root_paths[batch_rows, last_accepted_index][:, 1:] - 1
    path = path.masked_fill(cached_arange(path.shape[1], last_accepted_index.device) >= num_accepted[:, None], -1)
    bonus = batch_gather(target_tokens, last_accepted_index[:, None])
    if draft.size:  # an empty draft has no tokens to gather
        # [B, D+1]; padding (-1) gathers node 0, behind the tokens that are read
        tokens = torch.cat([batch_gather(draft.tokens, path.clamp(min=0)), bonus], 1)
        batch_scatter_(tokens, num_accepted[:, None], bonus)  # directly after the accepted tokens
    else:
        tokens = bonus
    return VerificationResult(path, tokens, num_accepted, num_accepted + 1, target_tokens, last_accepted_index)


def keep_contiguous_prefix(result: VerificationResult) -> VerificationResult:
    """Shorten the accepted path to nodes whose KV entries are where plain decoding would write them.

    Those are the nodes 0, 1, … of the draft at depths 1, 2, …. Moved KV entries would change the order in which later
    attention sums over keys, and so the last bits of hidden states; with contiguous entries the bits are those of plain
    decoding. The token after the last kept node, accepted or bonus, is the one that the target samples there. `path`
    and `tokens` still contain the full accepted path, so that a drafter can begin its next draft with the remainder.
    """
    depth = cached_arange(result.path.shape[1], result.path.device)
    num_accepted = (result.path == depth).cumprod(1).sum(1)  # entry i of the path is node i, and so are all before it
    return replace(
        result,
        num_accepted=num_accepted,
        num_committed=num_accepted + 1,
        last_accepted_index=num_accepted,  # the last of these nodes, number `num_accepted` - 1, has this tree index
        is_contiguous=True,
    )


def truncate_at_stop(
    result: VerificationResult, budget: Tensor, stop_token_mask: Tensor | None, is_allowed: Tensor
) -> VerificationResult:
    """Truncate batch rows at their first stop token or at their budget, and set `finish_reason`.

    It runs before anything is committed or counted, so tokens after the end of a batch row have no effect. The finish
    reasons are the codes RUNNING (not ended), EOS (stop token), LENGTH (budget) and NO_VALID_TOKEN.

    Args:
        result (VerificationResult): `tokens` `[B, D+1]` of every batch row: up to D accepted ones and the bonus token.
        budget (Tensor): `[B]` tokens that each batch row may still generate.
        stop_token_mask (Tensor | None): `[V]` bool, ids that end a sequence.
        is_allowed (Tensor): `[B, D+1]` bool, tokens that had a nonzero probability where they were sampled; a batch row
            ends before the first that had none.
    """
    # budget
    index = cached_arange(result.tokens.shape[1], budget.device)  # [D+1]
    num_committed = torch.minimum(result.num_committed, budget)
    finish_reason = torch.where(num_committed >= budget, LENGTH, RUNNING)

    # stop tokens before the budget and before the first token that is not allowed
    first_not_allowed = torch.where(is_allowed, len(index), index).amin(1)  # [B], D + 1 if all are allowed
    if stop_token_mask is not None:
        is_valid = index < torch.minimum(num_committed, first_not_allowed)[:, None]
        is_stop = stop_token_mask[result.tokens] & is_valid
        stop_len = torch.where(is_stop, index, len(index)).amin(1) + 1  # tokens up to the stop token, including it
        finish_reason = torch.where(stop_len <= num_committed, EOS, finish_reason)
        num_committed = torch.minimum(num_committed, stop_len)

    # tokens that are not allowed
    finish_reason = torch.where(first_not_allowed < num_committed, NO_VALID_TOKEN, finish_reason)
    num_committed = torch.minimum(num_committed, first_not_allowed)
    return replace(
        result,
        num_committed=num_committed,
        num_accepted=torch.minimum(result.num_accepted, num_committed),  # without the bonus token, if that is left
        finish_reason=finish_reason,
    )
