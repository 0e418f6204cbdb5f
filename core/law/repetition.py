"""What a law makes of ids that were there before: repetition-aware redraws and penalties, on every path its own.

without_repeats(scores, whole, history, settings)
penalised(scores, history, settings.repetition_penalty)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.law.history import History

if TYPE_CHECKING:
    from polydraft.core.law.sampling import Settings


def repeats(history: History, settings: Settings) -> tuple[Tensor, Tensor]:
    """Recent ids `[B, C, W]` of every path, and which of them are the first mention of a repeated id."""
    ids = history.recent(settings.window)
    places = torch.arange(settings.window, device=ids.device)
    ids = ids.masked_fill(places >= settings.again_window[:, None, None], -1)
    same = ids[..., :, None] == ids[..., None, :]
    first = ~(same & torch.ones_like(same[0, 0]).tril(-1)).any(-1)
    often = same.sum(-1) >= (settings.again_tau * settings.again_window)[:, None, None]
    return ids.clamp(min=0), (ids >= 0) & first & often


def without_repeats(scores: Tensor, whole: Tensor, history: History, settings: Settings) -> Tensor:
    """Every row's repetition-aware rule over its filtered scores and the whole ones, `[B, C, V]` each."""
    ids, repeated = repeats(history, settings)
    ruled = (settings.again_window > 0)[:, None, None]
    if not settings.greedy_alone:
        scores = torch.where(
            ruled & ~settings.greedy[:, None, None], redrawn(scores, whole, ids, repeated, settings.banned), scores
        )
    if any(row.greedy for row in settings.distinct):
        second = (ruled[..., 0] & (settings.greedy & settings.banned)[:, None])[..., None]
        scores = torch.where(second, second_best(scores, ids, repeated), scores)
    return scores


def redrawn(scores: Tensor, whole: Tensor, ids: Tensor, repeated: Tensor, banned: Tensor) -> Tensor:
    """Log of what a draw from n, and where it is a repeat a second one from F, come to.

    `n(v)[v not in B] + F(v) Σ_B n(b)`, or with a ban `n(v)[v not in B] + Σ_(b in B, b != v) n(b) F(v) / (1 - F(b))`.
    scores and whole: n and F before normalising. Sums over the few repeats are taken in fp64, so that their order
    leaves no trace.
    """
    n, full = scores.softmax(-1), whole.softmax(-1)
    given_up = (n.gather(-1, ids) * repeated).double()  # [B, C, W]
    own = full.gather(-1, ids).double()
    rest = 1 - own
    shared = torch.where(rest > 0, given_up / rest.clamp(min=torch.finfo(rest.dtype).tiny), 0)
    others = ~torch.eye(ids.shape[-1], dtype=torch.bool, device=ids.device)
    ban = banned[:, None, None]
    moved = torch.where(ban, shared, given_up).sum(-1, keepdim=True)
    back = own * torch.where(ban, (shared[..., None, :] * others).sum(-1), moved)
    kept = torch.where(ban & (rest <= 0), given_up, 0)  # nothing else can be drawn
    law = torch.nn.functional.pad(n + full * moved.float(), (0, 1))  # what is no repeat writes past the end
    return law.scatter(-1, ids.masked_fill(~repeated, n.shape[-1]), (back + kept).float())[..., :-1].log()


def second_best(scores: Tensor, ids: Tensor, repeated: Tensor) -> Tensor:
    """Temperature 0 with a ban: where the best id is a repeat the second best is drawn."""
    best = scores.argmax(-1, keepdim=True)
    again = ((ids == best) & repeated).any(-1, keepdim=True)
    possible = (scores > -torch.inf).sum(-1, keepdim=True) > 1
    return scores.masked_fill(
        torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, again & possible), -torch.inf
    )


def penalised(scores: Tensor, history: History, penalty: Tensor) -> Tensor:
    """Divide positive and multiply negative scores of ids seen on the node's own path (Keskar et al. 2019, CTRL)."""
    rows, columns, vocab = scores.shape
    committed = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=scores.device)
    said = history.committed.masked_fill(~history.there(), vocab).clamp(max=vocab)
    committed.scatter_(1, said, True)
    seen = committed[:, None].repeat(1, columns, 1)
    seen.scatter_(2, history.paths.clamp(max=vocab).masked_fill(~history.on_paths(), vocab), True)
    strength = penalty[:, None, None]
    return torch.where(seen[..., :vocab], torch.where(scores > 0, scores / strength, scores * strength), scores)
