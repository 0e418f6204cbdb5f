"""Jacobi decoding of several rows of a picture at once: a row begins before the one above it has ended.

Parallel Jacobi Decoding (Liao et al. 2026, arXiv 2606.05703): what stands next to a code in a picture is near it in
two directions, so row r + 1 is opened once row r has `lead` codes, and every pass judges the first guesses of all open
rows. Here a row stays so far behind throughout, as in ZipAR (He et al. 2024, arXiv 2412.04062), so that what is above
and to the right of a code is known when it is drawn. A code sees the rows above as far as they are settled, its own
row, and no guess of another (the row-causal mask); the rest of the row above it would have seen, so this is lossy.

The first code of a row follows a last one of the row above that is still a guess. What is settled keeps the keys and
values of the pass that settled it: a pass computes every open row's last settled code and its guesses, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Ahead, Draft
from polydraft.core.drafters.base import Outcome, joined
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.rows import Rows
from polydraft.core.state import State
from polydraft.core.suggestions import did_you_mean
from polydraft.core.target import Prefill

FILLS = ("above", "left")


@dataclass
class OpenRows(Rows):
    """Rows of a picture from that of the next token on, `[B, K, W]` and `[B, K]`.

    ids: the first `settled` are, and so many `guesses` behind them are known. kept: settled ones that were drafted.
    above: `[B, W]`, the row above the first.
    """

    ids: Tensor
    settled: Tensor
    guesses: Tensor
    kept: Tensor
    above: Tensor


@dataclass
class RowDrafter:
    """row: tokens a row of the picture. lead: codes that a row has more than the one below it. rows: most that are open
    at once. window: guesses a row and pass. init: what guesses are before any pass has made them. allowed: `[V]` bool.
    preview: tokens before the picture, of a smaller one or of a plan; they are drawn in their order.
    """

    row: int
    allowed: Tensor
    lead: int = 4
    rows: int = 4
    window: int = 4
    init: str = "above"
    preview: int = 0

    def __post_init__(self) -> None:
        if self.init not in FILLS:
            meant = did_you_mean(self.init, FILLS)
            raise InvalidArgument(f"init={self.init!r} is unknown{meant}; it must be one of {', '.join(FILLS)}.")
        self.lead = min(self.lead, self.row)
        longest = 2 + (self.row - 1 - self.lead) // (self.lead - 1) if self.lead > 1 else self.rows
        self.rows, self.window = min(self.rows, longest), min(self.window, self.row)
        self.first = self.allowed.nonzero()[0]

    def begin(self, own: OpenRows | None, seen: Prefill) -> OpenRows:
        none = seen.lengths.new_zeros(len(seen.lengths), self.rows)
        ids, settled = none[..., None].repeat(1, 1, self.row), none.clone()
        settled[:, 0] = -self.preview % self.row  # places before the first token count as drawn
        return joined(own, OpenRows(ids, settled, none, ids.bool(), ids[:, 0].clone()))

    def number(self, state: State) -> Tensor:
        """`[B, 1]`: which row of the picture the next token is in; less than 0 in a preview."""
        return ((state.generated - self.preview) // self.row)[:, None]

    def draft(self, state: State, own: OpenRows, sampler: Sampler, noise: Noise) -> Draft:
        """Of every open row: its last settled code (no guess, but what chooses the next) and its guesses."""
        begun = ((state.generated - self.preview) % self.row)[:, None]  # committed codes of the first row
        settled, first_slot = own.settled, self.row * torch.arange(self.rows, device=begun.device) - begun
        room = (torch.roll(settled, 1, 1) - self.lead + 1).clamp(min=0)
        lines = torch.arange(self.rows, device=begun.device)
        room = torch.where(self.number(state) + lines > 0, room, 0)
        room[:, 0] = self.row
        place = settled[..., None] + torch.arange(self.window + 1, device=begun.device)  # [B, K, w + 1]
        slot = first_slot[..., None] + place  # of the column that chooses what stands there
        left = (state.budget - state.generated)[:, None, None]
        judged = (place < room[..., None]) & (slot < left)
        rooted = slot[:, 0, 0] == 0  # the root itself chooses the first row's next code
        computed = torch.cat([(settled > 0)[..., None] | judged[..., :1], judged[..., :-1]], -1)
        computed[:, 0, 0] &= ~rooted
        filled = self.filled(state, own, sampler)
        line = self.row * torch.arange(1, self.rows + 1, device=begun.device)[:, None] + place - 1
        whole = torch.cat([own.above[:, None], filled], 1).flatten(1)
        tokens = whole.gather(1, line.flatten(1).clamp(max=whole.shape[1] - 1))
        scratch = self.rows * self.row + 1
        slots = torch.nn.functional.pad(slot.where(computed, scratch).flatten(1), (1, 0))
        own_line = lines[:, None] - (place == 0).long()  # which row a column is of
        sees = self.sees(begun, settled, slots, torch.nn.functional.pad(own_line.flatten(1), (1, 0), value=-1))
        valid = torch.cat([torch.zeros_like(judged[..., :1]), judged[..., :-1]], -1).flatten(1)
        nodes = torch.arange(-1, valid.shape[1] - 1, device=begun.device)
        parents = torch.where(nodes % (self.window + 1) == self.window, -1, nodes).repeat(len(tokens), 1)
        parents[:, 1] = torch.where(rooted, -1, 0)
        depth = slots.where(slots < scratch, 0)
        ahead = Ahead(own.ids, settled, own.guesses, own.kept, begun[:, 0], judged, rooted, slots, depth, sees)
        return Draft(tokens, parents, valid, scratch - 1, ahead=ahead)

    def sees(self, begun: Tensor, settled: Tensor, slots: Tensor, lines: Tensor) -> Tensor:
        """`[B, C, M]`: the row-causal mask over slots behind what is committed, the root's the first.

        begun `[B, 1]`, settled `[B, K]`; slots and rows of columns, `[B, C]` each, -1 for the root's.
        """
        every = torch.arange(self.rows * self.row + 2, device=begun.device)
        place = begun + every - 1  # of every slot, counted from the first row's first
        line, column = (place // self.row).clamp(0, self.rows - 1), place % self.row
        known = (column < settled.gather(1, line)) & (place < self.rows * self.row)
        computed = torch.zeros_like(known).scatter_(1, slots, True)
        mine, other = lines[..., None], line[:, None]
        before = every <= slots[..., None]
        seen = torch.where(other == mine, before & (known | computed)[:, None], known[:, None] & (other < mine))
        seen &= every > 0
        return seen | (every == 0) | (every == slots[..., None])

    def filled(self, state: State, own: OpenRows, sampler: Sampler) -> Tensor:
        """`[B, K, W]`: what is settled or guessed, and where nothing is yet what `init` says."""
        rows, above, lines = [], own.above, torch.arange(self.row, device=own.ids.device)
        top = self.number(state) == 0
        for index in range(self.rows):
            ids, settled = own.ids[:, index], own.settled[:, index, None]
            highest = top & (index == 0)  # there is nothing above
            left = torch.where(settled > 0, ids.gather(1, (settled - 1).clamp(min=0)), above[:, :1])
            left = torch.where(highest & (settled == 0), self.first, left)
            guess = left.expand_as(ids) if self.init == "left" else torch.where(highest, left, above)
            above = torch.where(lines < settled + own.guesses[:, index, None], ids, guess)
            rows.append(above)
        found = torch.stack(rows, 1)
        return self.told(state, found, sampler) if sampler.forced else found

    def told(self, state: State, filled: Tensor, sampler: Sampler) -> Tensor:
        """The same with what the grammar leaves no choice about, such as the end of a row."""
        t = self.preview + self.number(state) * self.row + torch.arange(self.rows * self.row, device=filled.device)
        roots = state.roots()[:, None].expand(-1, t.shape[1], -1)
        known = History(state.tokens, state.lengths, roots, torch.zeros_like(t), t, state.budget)
        alone = sampler.alone.take(sampler.classes(known)).view_as(filled)
        return filled.where(alone < 0, alone)

    def observe(self, state: State, own: OpenRows, outcome: Outcome) -> None:
        """Take over what the pass settled; a row that is all committed goes."""
        ahead, verdict = outcome.draft.ahead, outcome.verdict
        assert ahead is not None and verdict.taken is not None
        taken = verdict.taken
        over = (ahead.begun + verdict.counts >= self.row)[:, None]  # the first row
        own.above = torch.where(over, taken.ids[:, 0], own.above)
        for name in ("ids", "settled", "guesses", "kept"):
            found = getattr(taken, name)
            up = torch.cat([found[:, 1:], torch.zeros_like(found[:, :1])], 1)
            setattr(own, name, torch.where(over.view(-1, *[1] * (found.ndim - 1)), up, found))
