"""What a node's law may depend on: what its row has committed, and the node's own path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import most
from polydraft.core.rows import places


@dataclass(frozen=True)
class History:
    """What a node's law may depend on.

    committed: `[B, L]` ids of prompt and generated tokens, of which a row has the first `lengths` `[B]`. (Laws of
    latents ask for positions alone.)
    paths: `[B, C, D]` ids from the root, which is the last committed one, to each judged column, `depth` `[B, C]` of
    them behind the root; what is further behind means nothing. t: `[B, C]` how many tokens the row will have generated
    before the one this column judges; budget: `[B]` most it may get.
    """

    committed: Tensor
    lengths: Tensor
    paths: Tensor
    depth: Tensor
    t: Tensor
    budget: Tensor

    @property
    def begun(self) -> Tensor:
        """`[B]`: how many tokens a row has generated, the root included."""
        return (self.t - self.depth)[:, 0]

    def tail(self, window: int) -> Tensor:
        """`[B, C, window]`: the last ids of every path, prompt included, the latest first; -1 where there are none."""
        back = places(window, self.depth.device)
        place = self.depth[..., None] - back  # on the path; what is before the root is committed
        before = self.lengths[:, None, None] - 1 + place
        committed = self.committed.gather(1, before.clamp(0, self.committed.shape[1] - 1).flatten(1)).view_as(before)
        return torch.where(place >= 0, self.at(place), committed.masked_fill(before < 0, -1))

    def generated(self, count: int) -> Tensor:
        """`[B, C, count]`: the first ids that every path has generated, -1 where it has not come so far."""
        place = places(count + 1, self.depth.device)[1:] - self.begun[:, None]  # on the path; 0 is the root
        before = (self.lengths[:, None] - 1 + place).clamp(0, self.committed.shape[1] - 1)
        committed = self.committed.gather(1, before)[:, None].expand(-1, self.depth.shape[1], -1)
        if most(place, count) <= 0:  # none is on a path
            return committed
        place = place[:, None].expand_as(committed)
        return torch.where(place > 0, self.at(place), committed).masked_fill(place > self.depth[..., None], -1)

    def at(self, place: Tensor) -> Tensor:
        """`[B, C, K]`: ids at places of every path, the root's 0."""
        return self.paths.gather(2, place.clamp(0, self.paths.shape[2] - 1))

    def on_paths(self) -> Tensor:
        """`[B, C, D]` bool: which of `paths` mean something."""
        return places(self.paths.shape[2], self.depth.device) <= self.depth[..., None]

    def there(self) -> Tensor:
        """`[B, L]` bool: which of `committed` a row has."""
        return places(self.committed.shape[1], self.depth.device) < self.lengths[:, None]

    def recent(self, window: int) -> Tensor:
        """The same of generated ids alone."""
        back = places(window, self.t.device)
        return self.tail(window).masked_fill(back >= self.t[..., None], -1)

    def marked(self, ids: Tensor, where: Tensor, vocab: int) -> Tensor:
        """`[B, C, V]` bool: which ids below `vocab` are among `ids`, `[B, C, K]`, where `where` says so."""
        found = torch.zeros(*self.t.shape, vocab + 1, dtype=torch.bool, device=ids.device)
        return found.scatter_(2, ids.masked_fill(~where, vocab).clamp(max=vocab), True)[..., :vocab]
