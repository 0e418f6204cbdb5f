"""Processors that depend on earlier ids: repetition-aware sampling and repetition penalty, on every node's own path.

apply_repetition_aware(logits, unfiltered, context, tensors)
apply_repetition_penalty(logits, context, tensors.repetition_penalty)
"""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingTensors


def find_repeated_ids(context: GenerationContext, tensors: SamplingTensors) -> tuple[Tensor, Tensor]:
    """Find the ids that repetition-aware sampling resamples: those too frequent among the last W generated ids.

    Args:
        context (GenerationContext): generated ids before each of T scored positions.
        tensors (SamplingTensors): window and threshold of every batch row.

    Returns:
        Tensor: `[B, T, W]` last generated ids, the latest first, W = `tensors.max_repeat_window`.
        Tensor: `[B, T, W]` bool, entries whose id is too frequent; only one entry per id, so that each counts once.
    """
    ids = context.last_generated(tensors.max_repeat_window)
    offsets = torch.arange(tensors.max_repeat_window, device=ids.device)
    ids = ids.masked_fill(offsets >= tensors.repeat_window[:, None, None], -1)  # outside the batch row's own window
    is_equal = ids[..., :, None] == ids[..., None, :]  # [B, T, W, W], entry i has the id of entry j
    is_first = ~(is_equal & torch.ones_like(is_equal[0, 0]).tril(-1)).any(-1)  # no entry j < i has the same id
    is_frequent = is_equal.sum(-1) >= (tensors.repeat_tau * tensors.repeat_window)[:, None, None]
    return ids.clamp(min=0), (ids >= 0) & is_first & is_frequent  # padding -1 becomes id 0, flagged False


def apply_repetition_aware(
    logits: Tensor, unfiltered: Tensor, context: GenerationContext, tensors: SamplingTensors
) -> Tensor:
    """Return the logits `[B, T, V]` of repetition-aware sampling; rows that do not use it keep theirs.

    A token is drawn; if it is too frequent among the last ids, another draw replaces it. The result is the distribution
    of the outcome. Greedy rows would draw the same argmax again, so they change only if the token is banned from the
    second draw: then they take the second likeliest id.

    Args:
        logits (Tensor): `[B, T, V]` at T scored positions, filtered; the first draw is from them.
        unfiltered (Tensor): `[B, T, V]`, before filters; a repeated token is drawn again from them.
        context (GenerationContext): generated ids of every path.
        tensors (SamplingTensors): window and threshold of every batch row.
    """
    ids, repeated = find_repeated_ids(context, tensors)
    active = (tensors.repeat_window > 0)[:, None, None]  # batch rows that use it
    if not tensors.all_greedy:
        redrawn = redraw_log_probs(logits, unfiltered, ids, repeated, tensors.repeat_banned)
        logits = torch.where(active & ~tensors.greedy[:, None, None], redrawn, logits)
    if any(row.greedy for row in tensors.distinct_params):
        masks_argmax = (active[..., 0] & (tensors.greedy & tensors.repeat_banned)[:, None])[..., None]  # [B, 1, 1]
        logits = torch.where(masks_argmax, mask_repeated_argmax(logits, ids, repeated), logits)
    return logits


def redraw_log_probs(logits: Tensor, unfiltered: Tensor, ids: Tensor, repeated: Tensor, banned: Tensor) -> Tensor:
    """Return the log probabilities `[B, T, V]` of a token drawn from n and, if it is a repeated one, again from F.

    n is the filtered distribution, F the unfiltered one, and S the set of repeated ids. An id v is the result with
    probability `n'(v) + F(v) sum(n(b) for b in S)`, where n'(v) is n(v), or 0 if v is in S. If that id is banned
    from the second draw, that is `n'(v) + sum(n(b) F(v) / (1 - F(b)) for b in S if b != v)`. Sums over the few repeated
    ids are computed in float64, so that their order does not change the result.

    Args:
        logits (Tensor): `[B, T, V]`, of n, at T scored positions.
        unfiltered (Tensor): `[B, T, V]`, of F.
        ids (Tensor): `[B, T, W]` last W generated ids.
        repeated (Tensor): `[B, T, W]` bool, the entries of `ids` that are repeated, each id once.
        banned (Tensor): `[B]` bool, batch rows whose second draw excludes the token.
    """
    n, f = logits.softmax(-1), unfiltered.softmax(-1)
    repeated_n = (n.gather(-1, ids) * repeated).double()  # [B, T, W], n(b); 0 for entries that are not repeated
    repeated_f = f.gather(-1, ids).double()  # F(b)
    other_f = 1 - repeated_f
    # n(b) / (1 - F(b)); `clamp` only avoids a division by 0 that `where` discards
    scaled_n = torch.where(other_f > 0, repeated_n / other_f.clamp(min=torch.finfo(other_f.dtype).tiny), 0)
    is_other = ~torch.eye(ids.shape[-1], dtype=torch.bool, device=ids.device)  # [W, W], b != v
    is_banned = banned[:, None, None]
    redrawn_mass = torch.where(is_banned, scaled_n, repeated_n).sum(-1, keepdim=True)  # [B, T, 1], factor of F(v)
    # [B, T, W] results for the repeated ids themselves, where n'(v) is 0
    repeated_probs = repeated_f * torch.where(is_banned, (scaled_n[..., None, :] * is_other).sum(-1), redrawn_mass)
    kept_probs = torch.where(is_banned & (other_f <= 0), repeated_n, 0)  # F(b) = 1: no other id can be drawn, keep b
    # `probs` is right for ids that are not repeated; `scatter` overwrites those of repeated ids. Entries of `ids` that
    # are not repeated are written to an extra last column, which is cut off.
    probs = torch.nn.functional.pad(n + f * redrawn_mass.float(), (0, 1))
    index = ids.masked_fill(~repeated, n.shape[-1])
    return probs.scatter(-1, index, (repeated_probs + kept_probs).float())[..., :-1].log()


def mask_repeated_argmax(logits: Tensor, ids: Tensor, repeated: Tensor) -> Tensor:
    """Return the logits `[B, T, V]` with the argmax at -inf where it is repeated, so that greedy rows take the second.

    An argmax that is the only allowed id stays. `ids` `[B, T, W]` are the last W generated ids before each of T scored
    positions, and `repeated` `[B, T, W]` is True for those of them that are repeated.
    """
    argmax = logits.argmax(-1, keepdim=True)
    is_repeated = ((ids == argmax) & repeated).any(-1, keepdim=True)
    has_other = (logits > -torch.inf).sum(-1, keepdim=True) > 1
    mask = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, argmax, is_repeated & has_other)
    return logits.masked_fill(mask, -torch.inf)


def apply_repetition_penalty(logits: Tensor, context: GenerationContext, penalty: Tensor) -> Tensor:
    """Penalise ids that occur before a scored position: divide their positive logits, multiply their negative ones.

    Keskar et al. 2019, CTRL.

    Args:
        logits (Tensor): `[B, T, V]` at T scored positions.
        context (GenerationContext): tokens before every scored position, prompt included.
        penalty (Tensor): `[B]` repetition penalty of every batch row.

    Returns:
        Tensor: `[B, T, V]`.
    """
    num_rows, num_positions, vocab_size = logits.shape
    # Masks of the ids that occur, [B, V + 1] and [B, T, V + 1]. Padding, and ids from V on that only prompts have, are
    # written to the extra last column, which is cut off.
    in_committed = torch.zeros(num_rows, vocab_size + 1, dtype=torch.bool, device=logits.device)
    ids = context.committed_ids.masked_fill(~context.committed_mask(), vocab_size).clamp(max=vocab_size)
    in_committed.scatter_(1, ids, True)
    occurs = in_committed[:, None].repeat(1, num_positions, 1)
    path_ids = context.path_ids.clamp(max=vocab_size).masked_fill(~context.path_mask(), vocab_size)
    occurs.scatter_(2, path_ids, True)
    penalty = penalty[:, None, None]
    return torch.where(occurs[..., :vocab_size], torch.where(logits > 0, logits / penalty, logits * penalty), logits)
