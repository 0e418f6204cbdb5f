"""What networks that draft remember, and how they read on: of ids and of latents alike, and of no vocabulary.

Between passes only what was committed counts: its tokens (and the target's features of them) are read again at the
start of the next draft, so whatever a drafter remembers comes from the truth and a rejected node leaves no trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.drafters.base import Outcome, joined
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.network import Frontier, Network
from polydraft.core.rows import Rows, places
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill
from polydraft.core.tokens import take


@dataclass
class ReadState(Rows):
    """What the drafter remembers, and what it has not read yet.

    cache: of its network, `cached` `[B, R]` entries of which will stay. tokens: `[B, K, …]` not read: the first
    `counts` `[B]` of a row, of which `committed` `[B]` are committed and the rest found but waiting. features:
    `[B, R, K, D]`, the target's features behind each (of the token before it). roots: `[B, R]`, ids that the branches
    of prompts end with.
    """

    cache: SlotCache
    cached: Tensor
    tokens: Tensor
    features: Tensor
    counts: Tensor
    committed: Tensor
    roots: Tensor

    @property
    def waiting(self) -> Tensor:
        return self.counts - self.committed

    @staticmethod
    def begun(own: ReadState | None, cache: SlotCache, cached: Tensor, seen: Prefill) -> ReadState:
        """Prompts are read up to their roots, which wait for the first draft; rows behind those of `own`."""
        ones = torch.ones_like(seen.lengths[:, 0])
        before = seen.before_root()[:, :, None]
        new = ReadState(cache, cached, seen.roots, before, ones, ones.clone(), seen.last())
        joined_rows: ReadState = joined(own, new)
        return joined_rows

    def observe(self, outcome: Outcome) -> None:
        """What was found is read next time: tokens, and the target's features of the token before each."""
        verdict = outcome.verdict
        self.cached = self.cached + self.committed[:, None]
        path = F.pad(verdict.path + 1, (1, 0))  # columns; the root is 0
        self.tokens, self.features = verdict.tokens, in_branches(outcome.features, path.clamp(min=0))
        self.counts, self.committed = verdict.found, verdict.counts


@dataclass(frozen=True)
class Said:
    """What a head reads of the live nodes, and what their children go on from, `[B*R, W, …]` each; and where these go.

    Both are the network's features, unless its reader says otherwise.
    """

    features: Tensor
    begins: Tensor
    frontier: Frontier


class NetworkReader(ABC):
    """A network of the drafter's own, which reads what was committed and what it guessed, whatever tokens are."""

    def __init__(self, network: Network, target: CausalTarget) -> None:
        self.network, self.target = network, target

    @abstractmethod
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What the network reads for tokens `[B, C, …]` behind features `[B, R, C, D]`: ids, or embeddings
        `[B*R, C, D]`."""

    def newly(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Tensor:
        """The same of what was committed since."""
        return self.inputs(tokens, features)

    def behind(self, tokens: Tensor, begins: Tensor) -> Tensor:
        """The same of what it guessed, behind what it had said, `[B, R, W, …]`."""
        return self.inputs(tokens, begins)

    def said(self, features: Tensor, frontier: Frontier) -> Said:
        """What the network's features `[B*R, W, D]` say."""
        return Said(features, features, frontier)

    @abstractmethod
    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        """Inputs for all entries of prompts (see `remember`), and how many of them stay, `[B, R]`."""

    def depth_within_context(self, own: ReadState) -> Tensor | None:
        """Return `[B]`, how deep nodes may be that the network has positions for; None if it has all the target has."""
        if self.network.context >= self.target.context:
            return None
        return self.network.context + 1 - (own.cached.amax(1) + own.committed)

    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        """Read prompts but for the root into new rows of `cache` (None: make one); the entries they leave, `[B, R]`."""
        inputs, entries = self.prompt(seen)
        cache = self.network.cache(seen.lengths.shape[1]) if cache is None else cache
        rows = cache.join(len(seen.lengths))
        if self.network.coordinates is not None:
            cache.shift(-seen.lengths.flatten())
        if inputs.shape[1]:
            self.network.prefill(cache, inputs, rows)
        return cache, entries

    def read(self, state: State, own: ReadState, tokens: Tensor, features: Tensor, room: int) -> Said:
        """What is said behind the first `own.counts` of tokens `[B, C, …]`; features `[B, R, C, D]` before each.

        room: nodes that may be read behind them.
        """
        own.cache.reach(state.longest + tokens.shape[1] + room)
        columns, branches = places(tokens.shape[1], tokens.device), own.cached.shape[1]
        causal = (columns[:, None] >= columns).expand(len(tokens), -1, -1)
        inputs, depth = self.newly(state, own, tokens, features), columns.expand(len(tokens), -1)
        read = self.network.tree_pass(own.cache, inputs, causal, depth, own.cached)
        last = (own.counts - 1).repeat_interleave(branches)
        frontier = self.network.frontier(own.cache, own.cached + own.counts[:, None], room)
        return self.said(read[places(len(read), read.device), last][:, None], frontier)

    def onward(self, said: Said, own: ReadState, newest: Tensor, above: Tensor) -> Said:
        """What is said behind `newest` `[B, W, …]`, children of the nodes `above` `[B, W]` of what was said before."""
        branches = own.cached.shape[1]
        above = of_all(above, branches)
        begins = said.begins
        if begins.shape[1] > 1:
            begins = take(begins, above)
        elif above.shape[1] > 1:
            begins = begins.expand(-1, above.shape[1], -1)
        inputs = self.behind(newest, begins.unflatten(0, (-1, branches)))
        frontier = said.frontier.below(above)
        return self.said(self.network.level_pass(own.cache, inputs, frontier), frontier)


def in_branches(features: Tensor, columns: Tensor) -> Tensor:
    """`[B, R, C, D]` at columns `[B, K]` → `[B, R, K, D]`."""
    branches = features.shape[1]
    return take(features.flatten(0, 1), of_all(columns, branches)).unflatten(0, (-1, branches))


def of_all(columns: Tensor, branches: int) -> Tensor:
    """Columns `[B, K]` of rows for all their branches, `[B*R, K]`."""
    return columns.repeat_interleave(branches, 0) if branches > 1 else columns


def embeddings(target: CausalTarget, seen: Prefill) -> Tensor:
    """What the target's first layer read for prompts, `[B*R, L, D]`."""
    return target.embed(seen.ids) if seen.embeddings is None else seen.embeddings.flatten(0, 1)
