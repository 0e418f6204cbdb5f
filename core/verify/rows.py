"""The tape walk along every open row of a picture at once (`core.drafters.rows`): what each settles, and what of that
can be committed now.

A row goes on while its guesses are what the tape chooses, then takes the choice itself. What is settled ahead of its
turn is committed without another look when the rows above are complete: that is what is lossy, whatever the match.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Ahead, Draft
from polydraft.core.law.noise import Noise, Places
from polydraft.core.law.sampling import Law
from polydraft.core.verdict import Taken, Verdict
from polydraft.core.verify.tape import TapeVerifier


@dataclass(frozen=True)
class RowVerifier(TapeVerifier):
    """match: what else may stand for a choice, on every row."""

    guarantee = "lossy"

    def columns(self, draft: Draft, noise: Noise, t: Tensor) -> Places:
        return noise.at(t[:, None] + draft.depth)

    def spots_at(self, draft: Draft, noise: Noise, t: Tensor, further: int) -> Tensor:
        return noise.spots(t[:, None] + draft.depth, further)

    def verify(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> Verdict:
        assert draft.ahead is not None
        choices, agrees = self.agreeing(draft, law, noise, t)
        own = choices[:, 1:].clone()
        own[:, 0] = torch.where(draft.ahead.rooted, choices[:, 0], own[:, 0])
        taken, run = settle(draft.ahead, draft.tokens, own, agrees)
        return commit(draft.ahead, taken, run, choices)


def settle(ahead: Ahead, tokens: Tensor, choices: Tensor, agrees: Tensor) -> tuple[Taken, Tensor]:
    """What every row has after a pass, and how many of its guesses stood, `[B, K]`.

    tokens, choices, agrees: `[B, N]` of nodes; a row's first is no guess, and the choice there is of its next place.
    """
    judged, settled = ahead.judged, ahead.settled
    guesses, choices, stands = (part.view_as(judged) for part in (tokens, choices, agrees))
    run = stands[..., 1:].cumprod(-1).sum(-1)
    chosen = judged.gather(2, run[..., None])[..., 0]  # whether there is a choice behind the run
    places = torch.arange(judged.shape[2], device=run.device)
    stood = places < run[..., None]
    made = torch.where(stood, torch.cat([guesses[..., 1:], guesses[..., :1]], -1), choices)
    # what is not judged is written past the row, and cut off
    width = ahead.ids.shape[2]
    into = (settled[..., None] + places).where(judged, width)
    ids, kept = (torch.nn.functional.pad(part, (0, 1)) for part in (ahead.ids, ahead.kept))
    ids, kept = ids.scatter(2, into, made)[..., :width], kept.scatter(2, into, stood)[..., :width]
    new = run + chosen
    return Taken(ids, settled + new, torch.maximum(judged.sum(-1), ahead.guesses) - new, kept), run


def commit(ahead: Ahead, taken: Taken, run: Tensor, choices: Tensor) -> Verdict:
    """The first row's settled codes and, where it is complete, the second's.

    A code that was chosen behind the run has no keys and values yet: if it is the first row's last it is the next root.
    """
    rows, open_rows, width = taken.ids.shape
    two = min(open_rows, 2)
    whole = (taken.settled[:, 0] == width) & (ahead.settled[:, 0] + run[:, 0] == width)
    counts = taken.settled[:, 0] - ahead.begun
    if two == 2:
        counts = counts + torch.where(whole, taken.settled[:, 1], 0)
    every = torch.arange(two * width, device=run.device)
    places = (ahead.begun[:, None] + every).clamp(max=two * width - 1)
    tokens = taken.ids[:, :two].flatten(1).gather(1, places)
    line, place = places // width, places % width
    since = place - ahead.settled.gather(1, line)  # of this pass, if it is not negative
    columns = 1 + line * ahead.judged.shape[2] + since.clamp(max=ahead.judged.shape[2] - 1)
    columns = torch.where((columns == 1) & ahead.rooted[:, None], 0, columns).where(since >= 0, -1)
    kept = taken.kept[:, :two].flatten(1).gather(1, places) & (every < counts[:, None])
    path = torch.full((rows, two * width - 1), -1, device=run.device)
    end = torch.zeros_like(counts)
    return Verdict(path, tokens, kept.sum(1), counts, choices, end, in_place=True, chosen_at=columns, taken=taken)
