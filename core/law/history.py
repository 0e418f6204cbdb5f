"""What a node's law may depend on: what its row has committed, and the node's own path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class History:
    """What a node's law may depend on.

    committed: `[B, L]` ids of prompt and generated tokens; `committed_valid` `[B, L]` bool.
    nodes: `[B, M]` ids of root and nodes; lineage: `[B, C, M]` bool, which of them each judged column descends from,
    itself included, ancestors first. t: `[B, C]` how many tokens the row will have generated before the one this column
    judges; budget: `[B]` most it may get. The root (the first of `nodes`) is committed; whatever else is on a path
    comes behind it.
    """

    committed: Tensor
    committed_valid: Tensor
    nodes: Tensor
    lineage: Tensor
    t: Tensor
    budget: Tensor

    def tail(self, window: int) -> Tensor:
        """`[B, C, window]`: the last ids of every path, prompt included, the latest first; -1 where there are none."""
        rows, columns, _ = self.lineage.shape
        latest = self.lineage.flip(-1).cumsum(-1).flip(-1)  # 1 at a path's end, growing towards the root
        place = torch.where(self.lineage & (latest <= window), latest - 1, window)
        drafted = self.nodes.new_zeros(rows, columns, window + 1)
        drafted = drafted.scatter_(2, place, self.nodes[:, None].expand_as(place))[..., :window]
        back, on_path = torch.arange(window, device=place.device), latest[..., :1]
        # the path's own first column is the last committed token
        before = self.committed_valid.sum(1)[:, None, None] - 1 + (on_path - 1) - back
        committed = self.committed.gather(1, before.clamp(0, self.committed.shape[1] - 1).flatten(1)).view_as(before)
        return torch.where(back < on_path, drafted, committed.masked_fill(before < 0, -1))

    def generated(self, count: int) -> Tensor:
        """`[B, C, count]`: the first ids that every path has generated, -1 where it has not come so far."""
        wanted = torch.arange(count, device=self.t.device)
        done = (self.t - self.lineage.sum(-1) + 1)[:, :1, None]  # tokens that are committed, the root among them
        before = self.committed_valid.sum(1)[:, None, None] - done + wanted
        committed = self.committed.gather(1, before.clamp(0, self.committed.shape[1] - 1).flatten(1)).view_as(before)
        # the root has the last place of what is committed, its heirs those behind it
        place = torch.where(self.lineage, self.lineage.cumsum(-1) - 2 + done, count).clamp(-1, count)
        drafted = torch.full((*self.t.shape, count + 2), -1, device=self.t.device)
        drafted.scatter_(2, place + 1, self.nodes[:, None].expand_as(place))
        found = torch.where(wanted < done, committed.expand(-1, self.t.shape[1], -1), drafted[..., 1 : count + 1])
        return found.masked_fill(wanted >= self.t[..., None], -1)

    def recent(self, window: int) -> Tensor:
        """The same of generated ids alone."""
        back = torch.arange(window, device=self.t.device)
        return self.tail(window).masked_fill(back >= self.t[..., None], -1)

    def marked(self, ids: Tensor, where: Tensor, vocab: int) -> Tensor:
        """`[B, C, V]` bool: which ids below `vocab` are among `ids`, `[B, C, K]`, where `where` says so."""
        found = torch.zeros(*self.t.shape, vocab + 1, dtype=torch.bool, device=ids.device)
        return found.scatter_(2, ids.masked_fill(~where, vocab).clamp(max=vocab), True)[..., :vocab]
