"""Drafters that grow a tree node by node with a network of their own; what they share whatever the network.

Between passes only what was committed counts: its tokens (and the target's features of them) are read again at the
start of the next draft, so a drafter's keys and values always come from the truth and a rejected node leaves no trace.

Tokens that were accepted but wait for a pass of their own (16-bit targets commit only what stands in plain decoding's
place) lead the next draft, and the tree grows under the last of them: nothing that was found is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.cache import SlotCache
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Judged
from polydraft.core.drafters.plans import Grown, Plan, Rank
from polydraft.core.network import Network
from polydraft.core.sampling import History, Sampler
from polydraft.core.state import State
from polydraft.core.stream import Noise
from polydraft.core.tape import NoiseTape
from polydraft.core.target import CausalTarget, Prompt

WORST = 100.0  # nats; what cannot be drawn is no better than this, and sums stay finite


@dataclass
class Growth:
    """The network's cache, and what it has not read yet.

    cached: `[B, R]` entries with keys and values that will stay. tokens: `[B, K]` ids not read: the first `counts[b]`
    of a row, of which `committed[b]` are committed and the rest found but waiting. features: `[B, R, K, D]`, the
    target's features behind each (of the token before it).
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


class GrowingDrafter(ABC):
    """plan: which nodes; rank: how children are scored."""

    def __init__(self, network: Network, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        self.network, self.target, self.plan, self.rank = network, target, plan, rank

    @property
    def reach(self) -> int:
        return 2 * self.plan.depth  # what waits, then the tree

    @property
    def nodes(self) -> int:
        return self.plan.nodes + self.plan.depth

    @abstractmethod
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What the network reads for ids `[B, C]` behind features `[B, R, C, D]`: ids or embeddings `[B*R, C, D]`."""

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """`[B, R, C, V]` of the network's own features."""

    @abstractmethod
    def prompt(self, ids: Tensor, features: Tensor) -> tuple[Tensor, int]:
        """Inputs for all entries of prompts `[B*R, L]`, features `[B*R, L, D]`; how many ids each entry is behind."""

    def begin(self, prompts: list[Prompt], features: Tensor) -> Growth:
        """The prompt is read up to the root, which waits for the first draft."""
        ids, lengths = self.target.padded(prompts)
        inputs, behind = self.prompt(ids, features.flatten(0, 1))
        cache = self.network.cache(len(ids))
        self.network.prefill(cache, inputs)
        rows = torch.arange(len(prompts), device=ids.device)
        branches = torch.arange(lengths.shape[1], device=ids.device)
        root = ids.unflatten(0, lengths.shape)[rows, 0, lengths[:, 0] - 1]
        before = features[rows[:, None], branches, lengths - 2]
        ones = [1] * len(prompts)
        return Growth(cache, lengths - 1 - behind, root[:, None], before[:, :, None], ones, ones)

    def draft(self, state: State, drafts: Growth, sampler: Sampler, noise: Noise) -> Draft:
        """Read what is new, then grow under the last of it."""
        device = drafts.tokens.device
        counts, waiting = torch.tensor(drafts.counts, device=device), torch.tensor(drafts.waiting, device=device)
        columns = torch.arange(max(drafts.counts), device=device)
        tokens = drafts.tokens[:, : len(columns)]
        causal = (columns[:, None] >= columns).expand(len(state), -1, -1)
        inputs = self.inputs(tokens, drafts.features[:, :, : len(columns)])
        read = self.network.tree_pass(drafts.cache, inputs, causal, columns.expand(len(state), -1), drafts.cached)
        features = take(read.unflatten(0, drafts.cached.shape), counts[:, None] - 1)

        # every node descends from the root and what waits behind it: the last `waiting + 1` tokens read
        longest = max(drafts.waiting)
        places = torch.arange(longest + 1, device=device)
        ids = tokens.gather(1, (counts - 1 - waiting)[:, None] + places.clamp(max=waiting[:, None]))
        stem = Stem(ids, places <= waiting[:, None], waiting, drafts.cached + counts[:, None])
        window = noise.window(state.generated, longest + self.plan.depth)
        levels = waiting[:, None] + torch.arange(self.plan.depth, device=device)
        window = window.gather(1, levels[..., None].expand(-1, -1, window.shape[-1]))
        grown = self.grow(state, drafts.cache, sampler, stem, features, window)
        if isinstance(noise, NoiseTape):  # siblings may change places: their order means nothing on the tape
            draft = grown.draft if grown.chain else grown.draft.led_by(grown.likeliest)
        else:
            draft = replace(grown.draft, q=grown.q() if self.rank.draws and not noise.greedy else None)
        return draft.under(ids[:, 1:], waiting) if longest else draft

    def grow(
        self, state: State, cache: SlotCache, sampler: Sampler, stem: Stem, features: Tensor, window: Tensor
    ) -> Grown:
        """A tree under the stem; features `[B, R, 1, D]` are the network's at its end, window `[B, depth, V]`."""
        rows, device = len(state), window.device
        read = Read.nothing(rows, device)
        grown = Grown(self.plan)
        parents = torch.zeros(rows, 1, dtype=torch.long, device=device)
        path = window.new_zeros(rows, 1)
        for level in range(self.plan.depth):
            if level:
                tokens = grown.live_tokens()
                read = read.with_level(tokens, parents)
                lineage = read.newest_lineage()
                inputs = self.inputs(tokens, take(features, parents))
                features = self.network.tree_pass(cache, inputs, lineage, read.depth(), stem.cached)
                features = features.unflatten(0, stem.cached.shape)
            else:
                lineage = torch.empty(rows, 1, 0, dtype=torch.bool, device=device)
            law = sampler(self.target.combine(self.logits(features)), stem.history(state, read.nodes, lineage, level))
            best, ids = self.rank(law, window[:, level : level + 1]).topk(self.plan.children(level), -1)
            scores = path[..., None] + best.clamp(min=-WORST)
            chosen = self.plan.live(level, scores.flatten(1))
            parents = chosen // ids.shape[-1]
            path = scores.flatten(1).gather(1, chosen)
            grown.add(law, ids, scores, chosen)
        return grown

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

    def history(self, state: State, nodes: Tensor, lineage: Tensor, level: int) -> History:
        """Of columns with `lineage` `[B, C, M]` over `nodes` `[B, M]`, `level` levels below the stem."""
        t = torch.tensor(state.generated, device=nodes.device)[:, None] + self.waiting[:, None] + level
        seen = self.seen[:, None].expand(-1, lineage.shape[1], -1)
        return History(
            state.tokens, state.valid(), torch.cat([self.ids, nodes], 1), torch.cat([seen, lineage], 2),
            t.expand(-1, lineage.shape[1]),
        )  # fmt: skip


@dataclass(frozen=True)
class Read:
    """Nodes the network has read below the stem, level by level: ids and parents `[B, M]`; the newest level's width."""

    nodes: Tensor
    parents: Tensor
    newest: int

    @staticmethod
    def nothing(rows: int, device: torch.device) -> Read:
        empty = torch.empty(rows, 0, dtype=torch.long, device=device)
        return Read(empty, empty, 0)

    def with_level(self, tokens: Tensor, parents: Tensor) -> Read:
        """parents: `[B, W]` places in the newest level so far."""
        known = self.nodes.shape[1]
        parents = parents + (known - self.newest) if known else torch.full_like(parents, -1)
        return Read(torch.cat([self.nodes, tokens], 1), torch.cat([self.parents, parents], 1), tokens.shape[1])

    @cached_property
    def tree(self) -> Draft:
        return Draft(self.nodes, self.parents, torch.ones_like(self.nodes, dtype=torch.bool))

    def newest_lineage(self) -> Tensor:
        return self.tree.lineage[:, 1 + self.nodes.shape[1] - self.newest :, 1:]

    def depth(self) -> Tensor:
        return self.tree.depth[:, 1:] - 1
