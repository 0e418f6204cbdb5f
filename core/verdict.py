"""A verdict: what one step commits to every row, and the one place where rows end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydraft.core.state import State


@dataclass(frozen=True)
class Verdict:
    """The accepted path of every row and the token the target itself supplies after it.

    path: `[B, D]` int64 nodes the verifier walked to, in order, -1 beyond the end.
    tokens: `[B, D+1]` int64, their tokens then the supplied one; the first `counts[b]` are committed.
    accepted: drafted tokens kept, a row; counts: tokens committed, a row (accepted + 1 unless the row ended).
    choices: `[B, N+1]` the target's own token at every column (what Jacobi drafts next).
    in_place: what is committed stands where plain decoding would put it, so nothing needs to move.
    """

    path: Tensor
    tokens: Tensor
    accepted: list[int]
    counts: list[int]
    choices: Tensor
    in_place: bool = False


def follow(path_end: Tensor, lineage: Tensor, depth: Tensor, drafted: Tensor, choices: Tensor) -> Verdict:
    """The verdict that accepts column `path_end` `[B]` and its ancestors, then the target's choice there.

    lineage `[B, N+1, N+1]`, depth `[B, N+1]` and choices `[B, N+1]` have the root in column 0; drafted is `[B, N]`.
    """
    rows, columns = depth.shape
    deepest = int(depth.max())
    on_path = lineage[torch.arange(rows, device=depth.device), path_end]
    on_path[:, 0] = False
    path = torch.full((rows, deepest + 1), -1, device=depth.device)
    # node i of the path lands at place depth - 1; everything else in the last place, which is cut off
    place = torch.where(on_path, depth - 1, deepest)
    path.scatter_(1, place, torch.arange(-1, columns - 1, device=depth.device).expand_as(place))
    path = path[:, :deepest]
    count = depth.gather(1, path_end[:, None])
    path = path.masked_fill(torch.arange(deepest, device=depth.device) >= count, -1)
    tokens = torch.nn.functional.pad(drafted.gather(1, path.clamp(min=0)) if deepest else drafted[:, :0], (0, 1))
    tokens.scatter_(1, count, choices.gather(1, path_end[:, None]))
    accepted = count[:, 0].tolist()
    return Verdict(path, tokens, accepted, [number + 1 for number in accepted], choices)


def in_place(verdict: Verdict) -> Verdict:
    """Commit only nodes that stand where plain decoding would put them: node i at depth i + 1, and what follows them.

    Sums over keys round differently in another order, and 16-bit features show it; where ancestors are in place the
    bits are plain decoding's own. The token after the last such node is the target's choice there either way. `path`
    and `tokens` still hold all that was found, for a drafter to lead its next draft with.
    """
    depth = torch.arange(verdict.path.shape[1], device=verdict.path.device)
    accepted = (verdict.path == depth).cumprod(1).sum(1).tolist()
    return replace(verdict, accepted=accepted, counts=[number + 1 for number in accepted], in_place=True)


def cut_at_end(verdict: Verdict, state: State, eos: frozenset[int]) -> Verdict:
    """Cut rows at their first EOS or at their budget, and note why; ended rows commit nothing.

    Runs before anything is committed or counted, so nothing past the end is ever seen.
    """
    counts = list(verdict.counts)
    committed = verdict.tokens.tolist() if eos else [[]] * len(counts)
    for row, active in enumerate(state.active):
        if not active:
            counts[row] = 0
            continue
        left = state.budget[row] - state.generated[row]
        ending = next((i + 1 for i, token in enumerate(committed[row][: counts[row]]) if token in eos), None)
        if ending is not None and ending <= left:
            counts[row], state.finish[row] = ending, "eos"
        elif counts[row] >= left:
            counts[row], state.finish[row] = left, "length"
    accepted = [min(kept, count) for kept, count in zip(verdict.accepted, counts, strict=True)]
    return replace(verdict, counts=counts, accepted=accepted)
