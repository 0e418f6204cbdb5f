"""Drafters that draft trees of their own laws, level by level, whoever says the laws.

Tokens that were accepted but wait for a pass of their own (identical methods commit only what stands in plain
decoding's place) are the stem of the next draft, and the tree grows under the last of them: nothing found is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.draft import Draft, most
from polydraft.core.drafters.base import Outcome
from polydraft.core.drafters.network.reading import ReadState
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
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

    def positions(self, state: State, levels: int) -> Tensor:
        """`[B, levels]`: that nodes of every level have."""
        return following(state.generated + self.waiting, levels)

    def drawn(self, noise: Noise, state: State, levels: int) -> Tensor | None:
        """`[B, levels, V]`, what the nodes of every level are ranked with; None where nobody draws."""
        if not noise.sampled:
            return None
        window = noise.window(state.generated, self.ids.shape[1] + levels)  # it begins behind the root
        return window[:, :levels] if self.alone else take(window, following(self.waiting, levels))

    def paths(self, levels: int) -> Tensor:
        """`[B, 1, 1 + M + levels]`: its own ids, and room for those of nodes behind them; see `History`."""
        return F.pad(self.ids[:, None], (0, levels))

    def further(self, paths: Tensor, tree: Tree) -> Tensor:
        """The same of the live nodes of `tree`, `[B, W, …]`, from those of the level before."""
        above = tree.above[..., None].expand(-1, -1, paths.shape[2])
        place = (self.waiting + len(tree.levels))[:, None, None].expand(-1, tree.width, -1)
        return paths.gather(1, above).scatter_(2, place, tree.newest[..., None])


class TreeDrafter(ABC):
    """plan: which nodes; rank: how children are scored."""

    def __init__(self, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        self.target, self.plan, self.rank = target, plan, rank

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
        """`[B, W, V]` after guidance: what is said behind the live nodes of `tree`, or the end of the stem.

        t: `[B, 1]`, the position it is of.
        """

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
        law_of = sampler.proposal if noise.on_tape else sampler
        paths = stem.paths(plan.depth) if sampler.remembers(state.settings, slots) else None
        tree, laws, growing = Tree(len(state), own.tokens.device), [], True
        while growing:
            at = slice(len(tree.levels), len(tree.levels) + 1)
            t, known = positions[:, at], None if slots is None else slots[:, at]
            history = None if paths is None else behind(state, paths, t.expand(-1, tree.width))
            law = law_of(self.logits(said, state, tree, t), state.settings, history, known)
            laws.append(law.over(self.rank.temperature))
            growing = plan.grow(tree, laws[-1].scores, None if drawn is None else drawn[:, at], self.rank)
            if growing:
                said = self.onward(said, own, tree)
                paths = None if paths is None else stem.further(paths, tree)
        passes = self.passes(len(tree.levels))
        if noise.on_tape:  # siblings may change places: their order means nothing on the tape
            draft = plan.led(tree).after(passes)
            return draft.under(stem.ids[:, 1:], stem.waiting, plan.nodes) if not stem.alone else draft
        draft, kept = plan.drafted(tree)
        if not (self.rank.draws and noise.sampled):
            return draft.after(passes)
        columns, q = tree.columns(kept), torch.cat([law.logp for law in laws], 1)
        whole = q.new_zeros(len(q), draft.size + 2, q.shape[-1])
        whole.scatter_(1, columns[..., None].expand_as(q), q)
        return draft.after(passes, whole[:, :-1])

    def observe(self, state: State, own: ReadState, outcome: Outcome) -> None:
        own.observe(outcome)


def behind(state: State, paths: Tensor, t: Tensor) -> History:
    """What the children of nodes at the ends of paths `[B, W, D]` may depend on; t: `[B, W]`, their positions."""
    return History(state.tokens, state.lengths, paths, t - state.generated[:, None], t, state.budget)
