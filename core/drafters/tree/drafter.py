"""Drafters that draft trees of their own laws, level by level, whoever says the laws.

Tokens that were accepted but wait for a pass of their own (identical methods commit only what stands in plain
decoding's place) are the stem of the next draft, and the tree grows under the last of them: nothing found is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.draft import Draft, most
from polydraft.core.drafters.base import Outcome
from polydraft.core.drafters.network.reading import ReadState
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.plans import Plan, Rank, Scored
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Law, Sampler
from polydraft.core.model.cache import SlotCache
from polydraft.core.rows import following, places
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill
from polydraft.core.tokens import take


@dataclass(frozen=True)
class Stem:
    """What every node descends from: ids `[B, 1 + M]` of the root and what waits, `waiting` `[B]` of them."""

    ids: Tensor
    waiting: Tensor

    @staticmethod
    def of(own: ReadState, depth: int) -> Stem:
        waiting = own.waiting
        place = places(most(waiting, depth) + 1, own.tokens.device)
        from_root = (own.committed - 1)[:, None] + place.clamp(max=waiting[:, None])
        return Stem(own.tokens.gather(1, from_root), waiting)

    @property
    def alone(self) -> bool:
        """Whether no row has any but the root."""
        return self.ids.shape[1] == 1

    def as_draft(self) -> Draft:
        """Return what waits, and nothing under it."""
        ids = self.ids[:, 1:]
        return Draft.of_chain(ids, places(ids.shape[1], ids.device) < self.waiting[:, None])

    def positions(self, state: State, levels: int) -> Tensor:
        """`[B, levels]`: that nodes of every level have."""
        return following(state.generated + self.waiting, levels)

    def drawn(self, noise: Noise, state: State, levels: int) -> Tensor | None:
        """`[B, levels, V]`, what the nodes of every level are ranked with; None where nobody draws."""
        window = noise.ahead(state.generated, self.ids.shape[1] - 1 + levels).gumbel()  # it begins behind the root
        return window if window is None or self.alone else take(window, following(self.waiting, levels))

    def paths(self, levels: int) -> Tensor:
        """`[B, 1, 1 + M + levels]`: its own ids, and room for those of nodes behind them; see `History`."""
        return F.pad(self.ids[:, None], (0, levels))

    def further(self, paths: Tensor, tree: Tree) -> Tensor:
        """The same of the live nodes of `tree`, `[B, W, …]`, from those of the level before."""
        place = (self.waiting + len(tree.levels))[:, None, None].expand(-1, tree.width, -1)
        return take(paths, tree.above).scatter_(2, place, tree.newest[..., None])


class TreeDrafter(ABC):
    """plan: which nodes; rank: how children are scored; words: the ids `[K]` that it may guess, None is all."""

    def __init__(self, target: CausalTarget, plan: Plan, rank: Rank, words: Tensor | None = None) -> None:
        self.target, self.plan, self.rank, self.words = target, plan, rank, words

    def passes(self, levels: int) -> int:
        """Network passes a draft of so many levels."""
        return 1

    @abstractmethod
    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        """Read prompts but for the root into new rows of `cache` (None: make one); the entries they leave, `[B, R]`."""

    @abstractmethod
    def read(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Any:
        """What is said behind the first `own.counts` of tokens `[B, C]`; features `[B, R, C, D]` before each."""

    @abstractmethod
    def onward(self, said: Any, own: ReadState, tree: Tree) -> Any:
        """From what was said of one level to what is said of the next, the live nodes of `tree`."""

    @abstractmethod
    def logits(self, said: Any, state: State, tree: Tree, t: Tensor) -> Tensor:
        """What is said behind the live nodes of `tree`, or the end of the stem: after guidance, of the ids that it may
        guess, `[B, W, V]` or `[B, W, K]`.

        t: `[B, 1]`, the position it is of.
        """

    def narrow(self, sampler: Sampler, plan: Plan) -> Tensor | None:
        """The ids that laws which remember nothing are made of alone; None is all."""
        enough = self.words is not None and len(self.words) >= plan.width and sampler.constraints is None
        return self.words if enough else None

    def everywhere(self, logits: Tensor) -> Tensor:
        """`[B, W, V]` of what it says, -inf where it may not guess."""
        if self.words is None:
            return logits
        nowhere = logits.new_full((*logits.shape[:-1], self.target.vocab), -torch.inf)
        return nowhere.index_copy_(-1, self.words, logits)

    def begin(self, own: ReadState | None, seen: Prefill) -> ReadState:
        """The prompt is read up to the root, which waits for the first draft."""
        cache, cached = self.remember(None if own is None else own.cache, seen)
        return ReadState.begun(own, cache, cached, seen)

    def draft(self, state: State, own: ReadState, sampler: Sampler, noise: Noise) -> Draft:
        """Read what is new, then grow a tree under the last of it."""
        new = most(own.counts, own.tokens.shape[1])
        said = self.read(state, own, own.tokens[:, :new], own.features[:, :, :new])
        plan, stem = self.plan.among(len(state)), Stem.of(own, self.plan.depth)
        positions = stem.positions(state, plan.depth)
        drawn = stem.drawn(noise, state, plan.depth)
        slots = sampler.foreseen(behind(state, stem.ids[:, None], positions))
        paths = stem.paths(plan.depth) if sampler.remembers(state.settings, slots) else None
        ids = self.narrow(sampler, plan) if noise.on_tape and paths is None else None
        if ids is not None:
            sampler, drawn = sampler.over(ids), None if drawn is None else drawn.index_select(2, ids)
        law_of = sampler.proposal if noise.on_tape else sampler
        tree, laws = Tree(len(state), own.tokens.device), []
        levels = positions.split(1, 1), by_level(slots, plan.depth), by_level(drawn, plan.depth)
        for t, known, g in zip(*levels, strict=True):
            if tree.levels:
                said = self.onward(said, own, tree)
                paths = None if paths is None else stem.further(paths, tree)
            history = None if paths is None else behind(state, paths, t.expand(-1, tree.width))
            logits = self.logits(said, state, tree, t)
            logits = self.everywhere(logits) if ids is None else logits
            laws.append(law_of(logits, state.settings, history, known).over(self.rank.temperature))
            if not plan.grow(tree, Scored(laws[-1].scores, g, ids), self.rank):
                break
        passes = self.passes(len(tree.levels))
        if noise.on_tape:  # siblings may change places: their order means nothing on the tape
            draft = plan.led(tree).after(passes)
            return draft.under(stem.ids[:, 1:], stem.waiting, plan.nodes) if not stem.alone else draft
        draft, kept = plan.drafted(tree)
        if not (self.rank.draws and noise.sampled):
            return draft.after(passes)
        return draft.after(passes, drawn_from(tree, kept, laws)).without_unknown()

    def observe(self, state: State, own: ReadState, outcome: Outcome) -> None:
        own.observe(outcome)


def by_level(columns: Tensor | None, levels: int) -> Sequence[Tensor | None]:
    """Of columns `[B, levels, …]` each level's, `[B, 1, …]`."""
    return [None] * levels if columns is None else columns.split(1, 1)


def drawn_from(tree: Tree, kept: Tensor, laws: list[Law]) -> Tensor:
    """`[B, N+1, V]` log q: the law of every level at the columns of a draft of `kept` whose children it ranked."""
    columns, q = tree.columns(kept), torch.cat([law.logp for law in laws], 1)
    whole = q.new_zeros(len(q), kept.shape[1] + 2, q.shape[-1])
    return whole.scatter_(1, columns[..., None].expand_as(q), q)[:, :-1]


def behind(state: State, paths: Tensor, t: Tensor) -> History:
    """What the children of nodes at the ends of paths `[B, W, D]` may depend on; t: `[B, W]`, their positions."""
    return History(state.tokens, state.lengths, paths, t - state.generated[:, None], t, state.budget)
