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
    """Find the ids that repetition-aware sampling resamples.

    Returns:
        Tensor: `[B, C, W]` recent ids of every path.
        Tensor: `[B, C, W]` bool, those that are the first mention of a repeated id.
    """
    ids = context.last_generated(tensors.max_repeat_window)
    offsets = torch.arange(tensors.max_repeat_window, device=ids.device)
    ids = ids.masked_fill(offsets >= tensors.repeat_window[:, None, None], -1)
    same = ids[..., :, None] == ids[..., None, :]
    first = ~(same & torch.ones_like(same[0, 0]).tril(-1)).any(-1)
    often = same.sum(-1) >= (tensors.repeat_tau * tensors.repeat_window)[:, None, None]
    return ids.clamp(min=0), (ids >= 0) & first & often


def apply_repetition_aware(
    logits: Tensor, unfiltered: Tensor, context: GenerationContext, tensors: SamplingTensors
) -> Tensor:
    """Apply each row's repetition-aware sampling to logits after and before filters, `[B, C, V]` each."""
    ids, repeated = find_repeated_ids(context, tensors)
    active = (tensors.repeat_window > 0)[:, None, None]
    if not tensors.all_greedy:
        redrawn = redraw_log_probs(logits, unfiltered, ids, repeated, tensors.repeat_banned)
        logits = torch.where(active & ~tensors.greedy[:, None, None], redrawn, logits)
    if any(row.greedy for row in tensors.distinct_params):
        takes_second = (active[..., 0] & (tensors.greedy & tensors.repeat_banned)[:, None])[..., None]
        logits = torch.where(takes_second, mask_repeated_argmax(logits, ids, repeated), logits)
    return logits


def redraw_log_probs(logits: Tensor, unfiltered: Tensor, ids: Tensor, repeated: Tensor, banned: Tensor) -> Tensor:
    """Return log probabilities of drawing from n and, where the token is repeated, once more from F.

    With B the repeated ids this is `n(v)[v not in B] + F(v) Σ_B n(b)`; where they are banned from the second draw,
    `n(v)[v not in B] + Σ_(b in B, b != v) n(b) F(v) / (1 - F(b))`. Sums over the few repeated ids are computed in
    float64, so that their order does not show in the result.

    Args:
        logits (Tensor): `[B, C, V]`, of n.
        unfiltered (Tensor): `[B, C, V]`, of F.
        ids (Tensor): `[B, C, W]`, see `find_repeated_ids`.
        repeated (Tensor): `[B, C, W]` bool, see `find_repeated_ids`.
        banned (Tensor): `[B]` bool, rows whose second draw excludes the token.
    """
    n, full = logits.softmax(-1), unfiltered.softmax(-1)
    repeated_mass = (n.gather(-1, ids) * repeated).double()  # [B, C, W]
    full_repeated = full.gather(-1, ids).double()
    rest = 1 - full_repeated
    shared = torch.where(rest > 0, repeated_mass / rest.clamp(min=torch.finfo(rest.dtype).tiny), 0)
    others = ~torch.eye(ids.shape[-1], dtype=torch.bool, device=ids.device)
    ban = banned[:, None, None]
    moved = torch.where(ban, shared, repeated_mass).sum(-1, keepdim=True)
    returned = full_repeated * torch.where(ban, (shared[..., None, :] * others).sum(-1), moved)
    kept = torch.where(ban & (rest <= 0), repeated_mass, 0)  # no other token can be drawn
    probs = torch.nn.functional.pad(n + full * moved.float(), (0, 1))  # entries that are not repeated go past the end
    index = ids.masked_fill(~repeated, n.shape[-1])
    return probs.scatter(-1, index, (returned + kept).float())[..., :-1].log()


def mask_repeated_argmax(logits: Tensor, ids: Tensor, repeated: Tensor) -> Tensor:
    """Mask the best id where it is repeated and not the only one, so that greedy rows take the second best."""
    best = logits.argmax(-1, keepdim=True)
    is_repeated = ((ids == best) & repeated).any(-1, keepdim=True)
    has_other = (logits > -torch.inf).sum(-1, keepdim=True) > 1
    mask = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, best, is_repeated & has_other)
    return logits.masked_fill(mask, -torch.inf)


def apply_repetition_penalty(logits: Tensor, context: GenerationContext, penalty: Tensor) -> Tensor:
    """Divide positive and multiply negative logits of ids seen on the node's own path (Keskar et al. 2019, CTRL).

    Args:
        logits (Tensor): `[B, C, V]`.
        context (GenerationContext): ids of every path.
        penalty (Tensor): `[B]`.
    """
    rows, columns, vocab_size = logits.shape
    committed = torch.zeros(rows, vocab_size + 1, dtype=torch.bool, device=logits.device)
    ids = context.committed_ids.masked_fill(~context.committed_mask(), vocab_size).clamp(max=vocab_size)
    committed.scatter_(1, ids, True)
    seen = committed[:, None].repeat(1, columns, 1)
    path_ids = context.path_ids.clamp(max=vocab_size).masked_fill(~context.path_mask(), vocab_size)
    seen.scatter_(2, path_ids, True)
    strength = penalty[:, None, None]
    return torch.where(seen[..., :vocab_size], torch.where(logits > 0, logits / strength, logits * strength), logits)
