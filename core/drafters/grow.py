"""Drafters that grow a tree node by node with a network of their own, which reads what it guessed."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from polydraft.core.cache import SlotCache
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.drafters.tree import Growth, Nodes, Stem, TreeDrafter, take
from polydraft.core.network import Network
from polydraft.core.target import CausalTarget, Prefill


class GrowingDrafter(TreeDrafter):
    """What it says are the network's features `[B, R, W, D]` of the newest nodes."""

    def __init__(self, network: Network, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(target, plan, rank)
        self.network = network

    def passes(self, levels: int) -> int:
        return levels

    @abstractmethod
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What the network reads for ids `[B, C]` behind features `[B, R, C, D]`: ids or embeddings `[B*R, C, D]`."""

    @abstractmethod
    def prompt(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[Tensor, Tensor]:
        """Inputs for all entries of prompts (see `remember`), and how many of them stay, `[B, R]`."""

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Logits `[B, R, C, …]` of the network's own features."""

    def remember(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[SlotCache, Tensor]:
        inputs, entries = self.prompt(ids, lengths, seen)
        cache = self.network.cache(len(ids))
        self.network.prefill(cache, inputs)
        return cache, entries

    def read(self, drafts: Growth, tokens: Tensor, features: Tensor, counts: Tensor) -> Tensor:
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        causal = (columns[:, None] >= columns).expand(len(tokens), -1, -1)
        inputs, depth = self.inputs(tokens, features), columns.expand(len(tokens), -1)
        read = self.network.tree_pass(drafts.cache, inputs, causal, depth, drafts.cached)
        return take(read.unflatten(0, drafts.cached.shape), counts[:, None] - 1)

    def onward(self, said: Tensor, drafts: Growth, stem: Stem, nodes: Nodes, parents: Tensor) -> Tensor:
        inputs = self.inputs(nodes.newest_ids(), take(said, parents))
        read = self.network.tree_pass(drafts.cache, inputs, nodes.lineage, nodes.depth, stem.cached)
        return read.unflatten(0, stem.cached.shape)

    def logits(self, said: Tensor, level: int, width: int) -> Tensor:
        return self.target.combine(self.head(said))
