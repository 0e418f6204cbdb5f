"""A verdict: what one step commits to every row, and the one place where rows end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.rows import places
from polydraft.core.tokens import put, take

GOES_ON, EOS, LENGTH, IMPOSSIBLE = range(4)
REASONS = (None, "eos", "length", "impossible")


@dataclass(frozen=True)
class Taken:
    """Open rows of a picture after a pass: ids and kept `[B, K, W]`, settled and guesses `[B, K]`; see
    `core.drafters.rows.OpenRows`."""

    ids: Tensor
    settled: Tensor
    guesses: Tensor
    kept: Tensor


@dataclass(frozen=True)
class Verdict:
    """The accepted path of every row and the token the target itself supplies after it.

    path: `[B, D]` int64 nodes the verifier walked to, in order, -1 beyond the end.
    tokens: `[B, D+1, …]`, their tokens then the supplied one; the first `counts[b]` are committed.
    accepted: `[B]` drafted tokens kept; counts: `[B]` tokens committed (accepted + 1 unless the row ended).
    choices: `[B, N+1, …]` the target's own token at every column (what Jacobi drafts next).
    end: `[B]` column of the path's last node, where the supplied token was chosen.
    finish: `[B]` why a row ends, GOES_ON if it does not; see REASONS.
    in_place: what is committed stands where plain decoding would put it, so nothing needs to move.
    chosen_at: see `columns`, where the path does not say it. taken: what of a picture's open rows is settled.
    """

    path: Tensor
    tokens: Tensor
    accepted: Tensor
    counts: Tensor
    choices: Tensor
    end: Tensor
    finish: Tensor | None = None
    in_place: bool = False
    chosen_at: Tensor | None = None
    taken: Taken | None = None

    @property
    def columns(self) -> Tensor:
        """`[B, D+1]`: the column that each of `tokens` was chosen at, -1 if by an earlier pass."""
        if self.chosen_at is not None:
            return self.chosen_at
        return torch.nn.functional.pad((self.path + 1).clamp(min=0), (1, 0))

    @property
    def found(self) -> Tensor:
        """`[B]`: tokens on the path and the one after it, committed now or not."""
        return (self.path >= 0).sum(1) + 1


def follow(end: Tensor, draft: Draft, choices: Tensor) -> Verdict:
    """The verdict that accepts column `end` `[B]` and its ancestors, then the target's choice `[B, N+1, …]` there."""
    row = places(len(end), end.device)
    count = draft.depth[row, end]
    path = draft.lines[row, end][:, 1:] - 1
    path = path.masked_fill(places(path.shape[1], end.device) >= count[:, None], -1)
    supplied = take(choices, end[:, None])
    if draft.size:
        tokens = torch.cat([take(draft.tokens, path.clamp(min=0)), supplied], 1)
        put(tokens, count[:, None], supplied)
    else:
        tokens = supplied
    return Verdict(path, tokens, count, count + 1, choices, end)


def in_place(verdict: Verdict) -> Verdict:
    """Commit only nodes that stand where plain decoding would put them: node i at depth i + 1, and what follows them.

    Sums over keys round differently in another order, and features show it; where ancestors are in place the bits are
    plain decoding's own. The token after the last such node is the target's choice there either way. `path` and
    `tokens` still hold all that was found, for a drafter to lead its next draft with.
    """
    depth = places(verdict.path.shape[1], verdict.path.device)
    accepted = (verdict.path == depth).cumprod(1).sum(1)
    return replace(verdict, accepted=accepted, counts=accepted + 1, end=accepted, in_place=True)


def cut_at_end(verdict: Verdict, left: Tensor, ends: Tensor | None, possible: Tensor) -> Verdict:
    """Cut rows at their first end or at their budget, and note why.

    left: `[B]` tokens that a row may still get; ends: `[V]` bool, ids that end a sequence; possible: `[B, D+1]` bool,
    whether each token could be drawn where it was chosen; a row ends before the first that could not. Runs before
    anything is committed or counted, so nothing past the end is ever seen.
    """
    place = places(verdict.tokens.shape[1], left.device)
    counts = torch.minimum(verdict.counts, left)
    finish = torch.where(counts >= left, LENGTH, GOES_ON)
    broken = torch.where(possible, len(place), place).amin(1)  # the first place where nothing could be drawn
    if ends is not None:
        ending = ends[verdict.tokens] & (place < torch.minimum(counts, broken)[:, None])
        stop = torch.where(ending, place, len(place)).amin(1) + 1
        finish = torch.where(stop <= counts, EOS, finish)
        counts = torch.minimum(counts, stop)
    finish = torch.where(broken < counts, IMPOSSIBLE, finish)
    counts = torch.minimum(counts, broken)
    return replace(verdict, counts=counts, accepted=torch.minimum(verdict.accepted, counts), finish=finish)
