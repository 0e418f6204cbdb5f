"""Top-k, top-p and min-p, of every row its own and of none another's bits (as transformers' warpers).

filtered(scores, settings)      # scores `[B, C, V]`, what is thrown out at -inf
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.rows import places

if TYPE_CHECKING:
    from polydraft.core.law.sampling import Settings

MANY = 1 << 15  # ids that are no longer sorted on CPUs, or searched one by one
PART = 128  # ids whose largest is looked at before them


def filtered(scores: Tensor, settings: Settings, times: Tensor | None = None) -> Tensor:
    """Scores `[B, C, V]` under every row's own top-k, top-p and min-p; greedy rows keep what they have.

    times: `[B, C]`, how often min-p counts at a column; the likeliest id stays however often.
    """
    vocab, greedy = scores.shape[-1], settings.greedy[:, None, None]
    kept = scores  # a row that a filter is off for has a bound that nothing is below
    if settings.used("top_k"):
        sizes = torch.where((settings.top_k == 0) | settings.greedy, vocab, settings.top_k.clamp(max=vocab))
        most = min(vocab, max(row.top_k for row in settings.distinct))
        ranked = highest(scores, most)[0]
        least = ranked.gather(-1, (sizes.clamp(max=most) - 1)[:, None, None].expand(-1, scores.shape[1], -1))
        least = least.masked_fill((sizes > most)[:, None, None], -torch.inf)
        kept = kept.masked_fill(scores < least, -torch.inf)
    if settings.used("top_p"):
        kept = torch.where(nucleus(kept, torch.where(greedy, 1.0, settings.top_p[:, None, None])), kept, -torch.inf)
    if settings.used("min_p"):
        share = settings.min_p[:, None] if times is None else (settings.min_p[:, None] * times).clamp(max=1)
        floor = kept.amax(-1, keepdim=True) + share.log()[..., None]
        kept = kept.masked_fill(kept < floor.masked_fill(greedy, -torch.inf), -torch.inf)
    return kept


def highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk` of the last dimension; which of equal values come first is not said.

    CPUs search long ones in parts: none of the highest is outside the `count` parts with the highest in them, and what
    is highest in every part is found many values at a time.
    """
    vocab = values.shape[-1]
    if values.device.type != "cpu" or vocab < MANY or 4 * PART * count > vocab:
        values, ids = values.topk(count)
        return values, ids
    whole, every = vocab - vocab % PART, places(vocab, values.device)
    among = values[..., :whole].unflatten(-1, (-1, PART)).amax(-1).topk(count).indices
    ids = (PART * among[..., None] + every[:PART]).flatten(-2)
    ids = torch.cat([ids, every[whole:].expand(*ids.shape[:-1], -1)], -1)
    found, at = values.gather(-1, ids).topk(count)
    return found, ids.gather(-1, at)


def nucleus(scores: Tensor, mass: Tensor) -> Tensor:
    """`[B, C, V]` bool: the fewest likely ids whose probability reaches `mass` `[B, 1, 1]`, and those like the last; of
    mass 1 all.

    Holtzman et al. 2020, section 3.1.
    """
    p = scores.softmax(-1)
    if p.device.type == "cpu" and p.shape[-1] > MANY:
        masses = mass.expand(*p.shape[:2], 1).flatten()
        found = [least_counted(*column) for column in zip(p.flatten(0, 1), masses, strict=True)]
        least = torch.stack(found).view(*p.shape[:2], 1)
    else:
        ranked = p.sort(-1, descending=True).values
        inside = (ranked.cumsum(-1) - ranked < mass) & (ranked > 0)
        least = ranked.gather(-1, inside.sum(-1, keepdim=True).clamp(min=1) - 1)
    return p >= least.masked_fill(mass == 1, 0)


def least_counted(p: Tensor, mass: Tensor) -> Tensor:
    """The least p that belongs, of p `[V]`, without sorting all of it.

    Floats that are not negative are in the order of their bits: what shares the first half of these is counted
    together, and only where the mass is reached the likeliest come first.
    """
    if p[0].isnan():  # of a row whose logits are no numbers all are, and nothing belongs
        return p[0]
    keys = p.view(torch.int16)[1::2].long()
    masses = torch.zeros(1 << 15, dtype=torch.double).scatter_add_(0, keys, p.double()).flip(0)
    before, mass = masses.cumsum(0) - masses, mass * masses.sum()  # fp32 chances need not add up to 1
    last = torch.where((masses > 0) & (before < mass), places(1 << 15, p.device), 0).amax()
    members = p[keys == (1 << 15) - 1 - last].sort(descending=True).values
    inside = before[last] + members.double().cumsum(0) - members < mass
    return members[inside.sum().clamp(min=1) - 1]
