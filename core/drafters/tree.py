"""Drafters that draft trees of their own laws: what they share, whoever says the laws.

Between passes only what was committed counts: its tokens (and the target's features of them) are read again at the
start of the next draft, so whatever a drafter remembers comes from the truth and a rejected node leaves no trace.

Tokens that were accepted but wait for a pass of their own (16-bit targets commit only what stands in plain decoding's
place) lead the next draft, and the tree grows under the last of them: nothing that was found is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.cache import SlotCache
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Judged
from polydraft.core.drafters.plans import Levels, Plan, Rank
from polydraft.core.sampling import History, Sampler
from polydraft.core.state import State
from polydraft.core.stream import Noise
from polydraft.core.tape import NoiseTape
from polydraft.core.target import CausalTarget, Prefill, Prompt


@dataclass
class Growth:
    """What the drafter remembers, and what it has not read yet.

    cache: of its network, `cached` `[B, R]` entries of which will stay. tokens: `[B, K]` ids not read: the first
    `counts[b]` of a row, of which `committed[b]` are committed and the rest found but waiting. features:
    `[B, R, K, D]`, the target's features behind each (of the token before it).
    """

    cache: SlotCache
    cached: Tensor
    tokens: Tensor
    features: Tensor
    counts: list[int]
    committed: list[int]

    @property
    def waiting(self) -> list[int]:
        return [count - done for count, done in zip(self.counts, self.committed, strict=True)]


class TreeDrafter(ABC):
    """plan: which nodes; rank: how children are scored."""

    def __init__(self, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        self.target, self.plan, self.rank = target, plan, rank

    @property
    def reach(self) -> int:
        return 2 * self.plan.depth  # what waits, then the tree

    @property
    def nodes(self) -> int:
        return self.plan.nodes + self.plan.depth

    def passes(self, levels: int) -> int:
        """Network passes a draft of so many levels."""
        return 1

    @abstractmethod
    def remember(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[SlotCache, Tensor]:
        """What prompts `[B*R, L]` of lengths `[B, R]` leave behind but the root, and how many entries, `[B, R]`."""

    @abstractmethod
    def read(self, drafts: Growth, tokens: Tensor, features: Tensor, counts: Tensor) -> Tensor:
        """What is said behind the first `counts` `[B]` of tokens `[B, C]`; features `[B, R, C, D]` before each."""

    @abstractmethod
    def onward(self, said: Tensor, drafts: Growth, stem: Stem, nodes: Nodes, parents: Tensor) -> Tensor:
        """From what was said of one level to what is said of the next, whose nodes hang under `parents` `[B, W]`."""

    @abstractmethod
    def logits(self, said: Tensor, level: int, width: int) -> Tensor:
        """`[B, W, V]` after guidance: what is said behind the `width` nodes of a level (0: the end of the stem)."""

    def begin(self, prompts: list[Prompt], seen: Prefill) -> Growth:
        """The prompt is read up to the root, which waits for the first draft."""
        ids, lengths = self.target.padded(prompts)
        cache, cached = self.remember(ids, lengths, seen)
        rows = torch.arange(len(prompts), device=ids.device)
        branches = torch.arange(lengths.shape[1], device=ids.device)
        root = ids.unflatten(0, lengths.shape)[rows, 0, lengths[:, 0] - 1]
        before = seen.features[rows[:, None], branches, lengths - 2]
        ones = [1] * len(prompts)
        return Growth(cache, cached, root[:, None], before[:, :, None], ones, ones)

    def embeddings(self, ids: Tensor, seen: Prefill) -> Tensor:
        """What the target's first layer read for prompts `[B*R, L]`, `[B*R, L, D]`."""
        return self.target.embed(ids) if seen.embeddings is None else seen.embeddings.flatten(0, 1)

    def draft(self, state: State, drafts: Growth, sampler: Sampler, noise: Noise) -> Draft:
        """Read what is new, then grow under the last of it."""
        device = drafts.tokens.device
        counts, waiting = torch.tensor(drafts.counts, device=device), torch.tensor(drafts.waiting, device=device)
        new = max(drafts.counts)
        tokens = drafts.tokens[:, :new]
        said = self.read(drafts, tokens, drafts.features[:, :, :new], counts)

        # every node descends from the root and what waits behind it: the last `waiting + 1` tokens read
        longest = max(drafts.waiting)
        places = torch.arange(longest + 1, device=device)
        ids = tokens.gather(1, (counts - 1 - waiting)[:, None] + places.clamp(max=waiting[:, None]))
        stem = Stem(ids, places <= waiting[:, None], waiting, drafts.cached + counts[:, None])
        window = noise.window(state.generated, longest + self.plan.depth)
        places = waiting[:, None] + torch.arange(self.plan.depth, device=device)
        window = window.gather(1, places[..., None].expand(-1, -1, window.shape[-1]))
        on_tape = isinstance(noise, NoiseTape)
        levels = self.levels(state, drafts, sampler.unfiltered if on_tape else sampler, stem, said)
        tree = self.plan.grow(levels, window, self.rank)
        if on_tape:  # siblings may change places: their order means nothing on the tape
            draft = tree.led.after(self.passes(tree.levels))
        else:
            q = tree.q() if self.rank.draws and not noise.greedy else None
            draft = tree.draft.after(self.passes(tree.levels), q)
        return draft.under(ids[:, 1:], waiting) if longest else draft

    def levels(self, state: State, drafts: Growth, sampler: Sampler, stem: Stem, said: Tensor) -> Levels:
        """What is said behind the stem, then of every level of live nodes that is sent; see `Levels`."""
        nodes = Nodes.nothing(len(state), said.device)
        for level in range(self.plan.depth):
            history = stem.history(state, nodes, level) if sampler.remembers else None
            ids, parents = yield sampler(self.logits(said, level, nodes.lineage.shape[1]), history)
            nodes = nodes.with_level(ids, parents)
            said = self.onward(said, drafts, stem, nodes, parents)

    def observe(self, state: State, drafts: Growth, judged: Judged) -> None:
        """What was found is read next time: ids, and the target's features of the token before each."""
        verdict = judged.verdict
        committed = torch.tensor(drafts.committed, device=drafts.cached.device)
        drafts.cached = drafts.cached + committed[:, None]
        path = torch.nn.functional.pad(verdict.path + 1, (1, 0))  # columns; the root is 0
        drafts.tokens, drafts.features = verdict.tokens, take(judged.features, path.clamp(min=0))
        drafts.counts = ((verdict.path >= 0).sum(1) + 1).tolist()
        drafts.committed = list(verdict.counts)

    def select(self, drafts: Growth, rows: list[int]) -> Growth:
        branches = drafts.cached.shape[1]
        physical = [row * branches + branch for row in rows for branch in range(branches)]
        return Growth(
            drafts.cache.select(torch.tensor(physical, dtype=torch.long, device=drafts.cached.device)),
            drafts.cached[rows], drafts.tokens[rows], drafts.features[rows],
            [drafts.counts[row] for row in rows], [drafts.committed[row] for row in rows],
        )  # fmt: skip

    def concat(self, drafts: list[Growth]) -> Growth:
        width = max(d.tokens.shape[1] for d in drafts)
        pad = torch.nn.functional.pad
        return Growth(
            SlotCache.concat([d.cache for d in drafts]), torch.cat([d.cached for d in drafts]),
            torch.cat([pad(d.tokens, (0, width - d.tokens.shape[1])) for d in drafts]),
            torch.cat([pad(d.features, (0, 0, 0, width - d.features.shape[2])) for d in drafts]),
            [count for d in drafts for count in d.counts], [count for d in drafts for count in d.committed],
        )  # fmt: skip


def take(features: Tensor, columns: Tensor) -> Tensor:
    """`[B, R, C, D]` at columns `[B, K]` → `[B, R, K, D]`."""
    return features.gather(2, columns[:, None, :, None].expand(-1, features.shape[1], -1, features.shape[3]))


@dataclass(frozen=True)
class Stem:
    """What every node descends from: ids `[B, 1 + M]` of the root and what waits, `seen` where a row has them.

    waiting: `[B]` how many wait. cached: `[B, R]` entries the network has read, the stem's included.
    """

    ids: Tensor
    seen: Tensor
    waiting: Tensor
    cached: Tensor

    def history(self, state: State, nodes: Nodes, level: int) -> History:
        """Of the newest of `nodes`, `level` levels below the stem."""
        lineage = nodes.lineage
        t = torch.tensor(state.generated, device=lineage.device)[:, None] + self.waiting[:, None] + level
        seen = self.seen[:, None].expand(-1, lineage.shape[1], -1)
        return History(
            state.tokens, state.valid(), torch.cat([self.ids, nodes.ids], 1), torch.cat([seen, lineage], 2),
            t.expand(-1, lineage.shape[1]),
        )  # fmt: skip


@dataclass(frozen=True)
class Nodes:
    """Nodes with children, below the stem, level by level.

    ids and depth: `[B, M]`, depth 0 right below the stem. lineage: `[B, W, M]` bool, which of them each of the newest
    level descends from, itself included; of the stem's end, which has none above it, `[B, 1, 0]`.
    """

    ids: Tensor
    depth: Tensor
    lineage: Tensor

    @staticmethod
    def nothing(rows: int, device: torch.device) -> Nodes:
        empty = torch.empty(rows, 0, dtype=torch.long, device=device)
        return Nodes(empty, empty, torch.empty(rows, 1, 0, dtype=torch.bool, device=device))

    def with_level(self, ids: Tensor, parents: Tensor) -> Nodes:
        """Another level, ids `[B, W]`; parents: `[B, W]` places in the newest level so far."""
        above = self.lineage.gather(1, parents[..., None].expand(-1, -1, self.lineage.shape[2]))
        itself = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device).expand(len(ids), -1, -1)
        level = self.depth[:, -1:] + 1 if self.depth.shape[1] else torch.zeros_like(ids[:, :1])
        return Nodes(
            torch.cat([self.ids, ids], 1), torch.cat([self.depth, level.expand_as(ids)], 1),
            torch.cat([above, itself], 2),
        )  # fmt: skip

    def newest_ids(self) -> Tensor:
        return self.ids[:, self.ids.shape[1] - self.lineage.shape[1] :]
