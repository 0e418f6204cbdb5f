"""Generation context of a node: what its row has committed, and the node's own path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import max_without_sync


@dataclass(frozen=True)
class GenerationContext:
    """Everything besides logits that a token distribution may depend on, at C scored positions of every row.

    Distributions of latents use `positions` alone.
    """

    committed_ids: Tensor  # [B, L] ids of prompt and generated tokens, right-padded
    committed_lens: Tensor  # [B] how many of `committed_ids` each row has
    path_ids: Tensor  # [B, C, D] ids from the root (the last committed token) to each scored position, right-padded
    depth: Tensor  # [B, C] ids after the root on each path
    positions: Tensor  # [B, C] tokens that the row will have generated before the one sampled here
    max_new_tokens: Tensor  # [B]

    @property
    def num_generated(self) -> Tensor:
        """Return the number of tokens that a row has generated, the root included, `[B]`."""
        return (self.positions - self.depth)[:, 0]

    def last_ids(self, window: int) -> Tensor:
        """Return the last ids of every path, prompt included, latest first, `[B, C, window]`; -1 is padding."""
        back = cached_arange(window, self.depth.device)
        path_index = self.depth[..., None] - back  # negative ones are before the root, among the committed ids
        index = self.committed_lens[:, None, None] - 1 + path_index
        committed = self.committed_ids.gather(1, index.clamp(0, self.committed_ids.shape[1] - 1).flatten(1))
        committed = committed.view_as(index).masked_fill(index < 0, -1)
        return torch.where(path_index >= 0, self.ids_at(path_index), committed)

    def first_generated(self, count: int) -> Tensor:
        """Return the first ids that every path has generated, `[B, C, count]`; -1 where it has fewer."""
        # index on the path, where 0 is the root; others are among the committed ids
        path_index = cached_arange(count + 1, self.depth.device)[1:] - self.num_generated[:, None]
        index = (self.committed_lens[:, None] - 1 + path_index).clamp(0, self.committed_ids.shape[1] - 1)
        committed = self.committed_ids.gather(1, index)[:, None].expand(-1, self.depth.shape[1], -1)
        if max_without_sync(path_index, count) <= 0:  # all of them are committed
            return committed
        path_index = path_index[:, None].expand_as(committed)
        ids = torch.where(path_index > 0, self.ids_at(path_index), committed)
        return ids.masked_fill(path_index > self.depth[..., None], -1)

    def ids_at(self, path_index: Tensor) -> Tensor:
        """Return ids `[B, C, K]` at indices `[B, C, K]` of every path, where the root has index 0."""
        return self.path_ids.gather(2, path_index.clamp(0, self.path_ids.shape[2] - 1))

    def path_mask(self) -> Tensor:
        """Return `[B, C, D]` bool: entries of `path_ids` that are no padding."""
        return cached_arange(self.path_ids.shape[2], self.depth.device) <= self.depth[..., None]

    def committed_mask(self) -> Tensor:
        """Return `[B, L]` bool: entries of `committed_ids` that are no padding."""
        return cached_arange(self.committed_ids.shape[1], self.depth.device) < self.committed_lens[:, None]

    def last_generated(self, window: int) -> Tensor:
        """Return the last generated ids of every path, latest first, `[B, C, window]`; -1 is padding."""
        back = cached_arange(window, self.positions.device)
        return self.last_ids(window).masked_fill(back >= self.positions[..., None], -1)

    def vocab_mask(self, ids: Tensor, selected: Tensor, vocab_size: int) -> Tensor:
        """Scatter ids into a mask over the vocabulary.

        Args:
            ids (Tensor): `[B, C, K]`; ids from `vocab_size` on are ignored.
            selected (Tensor): `[B, C, K]` bool, which of `ids` to set.
            vocab_size (int): V.

        Returns:
            Tensor: `[B, C, V]` bool.
        """
        mask = torch.zeros(*self.positions.shape, vocab_size + 1, dtype=torch.bool, device=ids.device)
        return mask.scatter_(2, ids.masked_fill(~selected, vocab_size).clamp(max=vocab_size), True)[..., :vocab_size]
