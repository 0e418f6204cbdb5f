"""Jacobi windows whose laws follow their neighbours: what a pass said of a place is moved to what now stands around it.

A guess of a Jacobi window is wrong, mostly, because the pass that made it read wrong guesses before it; as these are
mended the next pass says something else, one place after the other. What changes from pass to pass is what stands next
to the place, and how the law of a code hangs on the codes around it is a small thing to learn. So a network that sees
a few neighbours and nothing else (five in a picture, the six before in what has no rows) says f(v | neighbours), and
between two passes of the target every law of the window becomes

    log p(v | now) = log p(v | then) + trust (f(v | now) - f(v | then)),

f over the temperature, which chooses with the noise of its place, several times over, so that a mended code mends the
next. Places that no pass has seen yet are drawn from f alone. Guesses change and nothing else: what is committed is the
target's choice on the tape, as with `window.JacobiDrafter` (Song et al. 2021, arXiv 2002.03629; Teng et al. 2024, arXiv
2410.01699).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Outcome, joined
from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.model.kernels import layer, weight_of
from polydraft.core.rows import Rows, following
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill

GRID = ((0, 1), (0, 2), (1, 0), (1, 1), (1, -1))  # neighbours in a picture: rows up, codes to the left
LINE = tuple((0, left) for left in range(1, 7))  # in what has no rows
ENDLESS = 1 << 31  # codes of its only row


class LocalNetwork(FeatureNetwork):
    """What a code's neighbours say of it: `W_2 (h + SiLU(W_1 h))` with `h = SiLU(Σ_k V_k e_k + b)`, a feature for the
    target's own head, of the target's own embeddings e_k of the K neighbours, scaled to one length.

    row: tokens a row of the target's pictures, 0 where it draws none. preview: tokens before the first row. hidden:
    numbers of h.
    """

    kind, title = "local", "local network"

    def __init__(self, target_config: Any, row: int = 0, preview: int = 0, hidden: int = 128) -> None:
        super().__init__(target_config, row=row, preview=preview, hidden=hidden)
        if row < 0 or row == 1:
            raise InvalidArgument(f"row={row} is not possible; a grid has rows of 2 or more, and what has none, 0.")
        self.row, self.preview, self.hidden, size = row or ENDLESS, preview, hidden, target_config.hidden_size
        self.seen = GRID if row else LINE
        self.reads = nn.ModuleList(nn.Linear(size, hidden, bias=False) for _ in self.seen)
        self.begins = nn.Parameter(torch.zeros(hidden))
        self.mixes, self.says = nn.Linear(hidden, hidden), nn.Linear(hidden, size, bias=False)

    @property
    def back(self) -> int:
        """Tokens before a place that its neighbours are among."""
        return max(up * self.row + left for up, left in self.seen)

    def tells(self, neighbour: int, embeddings: Tensor) -> Tensor:
        """What ids with embeddings `[..., D]` tell as that neighbour, `[..., hidden]`; zero tells nothing."""
        scaled = F.rms_norm(embeddings.float(), embeddings.shape[-1:], eps=1e-6)
        told: Tensor = self.reads[neighbour](scaled.to(self.begins.dtype))
        return told

    def forward(self, told: Tensor) -> Tensor:
        """The sum of what neighbours tell `[..., hidden]` → h + SiLU(W_1 h), likewise."""
        read = F.silu(told + self.begins)
        return read + F.silu(self.mixes(read))

    def there(self, t: Tensor) -> Tensor:
        """`[..., K]` bool: which neighbours the places t `[...]` of what is generated have."""
        up, left = ways(self.seen, t.device)
        place = (t - self.preview)[..., None]
        column = place % self.row
        return (place >= up * self.row) & (column >= left) & (column - left < self.row)

    def offsets(self, device: torch.device) -> Tensor:
        """`[K]`: how many tokens before a place each neighbour stands."""
        up, left = ways(self.seen, device)
        return up * self.row + left


@lru_cache(maxsize=16)
def ways(seen: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows up and codes to the left of neighbours, `[K]` each."""
    with torch.inference_mode(False):
        up, left = torch.tensor(seen, device=device).unbind(1)
    return up, left


@dataclass
class Moving(Rows):
    """A window as the last pass left it, of which the first `known` `[B, 1]` places have been judged.

    guesses `[B, W]`; scores `[B, W, V]`: the laws they are choices of, unfiltered; floor `[B, W, 1]`: how far below the
    best score a filter let ids stand; read `[B, W, H]`: what the network read around every place then. sent
    `[B, W + 1, H]`: what it read around the places of the draft under way.
    """

    guesses: Tensor
    known: Tensor
    scores: Tensor
    floor: Tensor
    read: Tensor
    sent: Tensor


class LocalDrafter:
    """window: guesses a pass; allowed: `[V]` bool, ids they may be. trust: how far a law follows its neighbours;
    sweeps: how often in a draft; temperature: of guesses, over that of the laws. Identical decoding has most of 1, for
    the tape chooses with 1; a lossy rule keeps guesses that no tape chose, and turns likely ones down less often."""

    def __init__(
        self, network: LocalNetwork, target: CausalTarget, allowed: Tensor, window: int, trust: float, sweeps: int,
        temperature: float = 1.0,
    ) -> None:  # fmt: skip
        self.network, self.window, self.trust, self.sweeps = network.eval(), window, trust, sweeps
        self.temperature = temperature
        self.blank = torch.where(allowed, 0.0, -torch.inf)
        self.says = projection(network, target)
        # what every id that can be a neighbour tells is known beforehand, a line each; the last tells nothing
        ids = allowed.nonzero().squeeze(-1)
        self.lines = torch.where(allowed, allowed.cumsum(0) - 1, len(ids))
        told = [network.tells(neighbour, target.embed(ids)) for neighbour in range(len(network.seen))]
        self.told = F.pad(torch.stack(told), (0, 0, 0, 1)).flatten(0, 1)
        self.nothing = torch.tensor(len(ids), device=ids.device)
        self.firsts = (len(ids) + 1) * torch.arange(len(network.seen), device=ids.device)
        behind = network.back + torch.arange(window + 1, device=ids.device)
        self.neighbours = behind[:, None] - network.offsets(ids.device)  # [W + 1, K] of a line of tokens

    def begin(self, own: Moving | None, seen: Prefill) -> Moving:
        rows, known = len(seen.lengths), torch.zeros_like(seen.lengths[:, :1])
        scores = self.blank.repeat(rows, self.window, 1)
        read = self.told.new_zeros(rows, self.window + 1, self.network.hidden)
        floor = scores.new_full((rows, self.window, 1), -torch.inf)
        new = Moving(known.repeat(1, self.window), known, scores, floor, read[:, 1:].clone(), read)
        return joined(own, new)

    def draft(self, state: State, own: Moving, sampler: Sampler, noise: Noise) -> Draft:
        t = following(state.generated, self.window + 1)
        fresh = torch.arange(self.window, device=t.device) >= own.known
        weight = torch.where(fresh, 1.0, self.trust)[..., None]
        then = torch.where(fresh[..., None], 0.0, own.read * self.trust)
        scores = torch.where(fresh[..., None], self.blank, own.scores)
        tape = noise.ahead(state.generated, self.window).gumbel()
        before, there = self.before(state), self.network.there(t)
        heat = state.settings.temperature[:, None, None] if state.settings.used("temperature") else None
        drawn = t[:, :-1] >= self.network.preview
        ids = torch.where(fresh, state.roots(), own.guesses)
        read = self.read(before, ids, there)
        for _ in range(self.sweeps):
            told = self.says((read[:, :-1] * weight - then).to(read.dtype))
            moved = scores + (told if heat is None else told / heat)
            moved = moved.masked_fill_(moved < moved.amax(-1, keepdim=True) + own.floor, -torch.inf)
            chosen = (moved if tape is None else moved.add_(tape, alpha=self.temperature)).argmax(-1)
            ids = torch.where(drawn, chosen, ids)
            read = self.read(before, ids, there)
        own.sent = read
        return Draft.of_chain(ids, passes=self.sweeps)

    def before(self, state: State) -> Tensor:
        """`[B, back]`: the last committed tokens; some are of the prompt, or of nothing."""
        back = torch.arange(-self.network.back, 0, device=state.tokens.device)
        return state.tokens.gather(1, (state.lengths[:, None] + back).clamp(min=0))

    def read(self, before: Tensor, ids: Tensor, there: Tensor) -> Tensor:
        """`[B, W + 1, H]`: what stands around places with guesses `ids` `[B, W]` in them.

        before: as above; there: `[B, W + 1, K]` bool, which neighbours there are.
        """
        line = self.lines[torch.cat([before, ids], 1).clamp(max=len(self.lines) - 1)]
        around = line[:, self.neighbours].where(there, self.nothing)
        read: Tensor = self.network(self.told[around + self.firsts].sum(-2))
        return read

    def observe(self, state: State, own: Moving, outcome: Outcome) -> None:
        """Shift by what was committed, with what the pass said of every place behind it."""
        law, verdict = outcome.law, outcome.verdict
        least = law.scores.nan_to_num(neginf=torch.inf).amin(-1, keepdim=True)
        floor = least - law.scores.amax(-1, keepdim=True)
        places = torch.arange(self.window, device=floor.device) + verdict.counts[:, None]
        rows, places = torch.arange(len(places), device=floor.device)[:, None], places.clamp(max=self.window)
        own.guesses, own.known = verdict.choices[rows, places], (self.window + 1 - verdict.counts[:, None]).clamp(min=0)
        own.scores, own.floor, own.read = law.whole[rows, places], floor[rows, places], own.sent[rows, places]


def projection(network: LocalNetwork, target: CausalTarget) -> nn.Linear:
    """W_2 and the target's head behind it in one, from h to a logit an id."""
    columns = target.head(weight_of(network.says).T.contiguous())  # of each number of h; heads are linear, or nearly
    return layer(columns.T.contiguous())
