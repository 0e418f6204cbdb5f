"""Generation context of a node: what its row has committed, and the node's own path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import max_without_sync


@dataclass(frozen=True)
class GenerationContext:
    """Tokens and positions before each of T scored positions of every batch row, for logits processors.

    The path of a scored position leads from the root, the last committed token, down the draft tree to it; P is the
    length of the longest path, L that of the longest batch row.
    Distributions of latents use `positions` alone.
    """

    committed_ids: Tensor  # [B, L] ids of prompt and generated tokens, right-padded
    committed_lens: Tensor  # [B] number of `committed_ids` without padding
    path_ids: Tensor  # [B, T, P] ids from the root to each scored position, right-padded
    depth: Tensor  # [B, T] number of ids after the root on each path
    positions: Tensor  # [B, T] number of generated tokens before the one that is sampled here
    max_new_tokens: Tensor  # [B] budget of generated tokens

    @property
    def num_generated(self) -> Tensor:
        """Return the number of committed tokens that each batch row has generated, the root included, `[B]`."""
        return (self.positions - self.depth)[:, 0]  # the difference is the same at every scored position

    def last_prompt_ids(self) -> Tensor:
        """Return the last id of every batch row's prompt, `[B]`."""
        index = self.committed_lens - self.num_generated - 1
        return self.committed_ids.gather(1, index[:, None])[:, 0]

    def last_ids(self, window: int) -> Tensor:
        """Return the last `window` ids before each of T scored positions, prompt included.

        Returns:
            Tensor: `[B, T, window]`, latest first; -1 is padding.
        """
        offset = cached_arange(window, self.depth.device)
        path_index = self.depth[..., None] - offset  # [B, T, window]; 0 is the root, negative ones are before it
        committed_index = self.committed_lens[:, None, None] - 1 + path_index  # the root is the last committed id
        # clamped so that every index can be gathered; entries outside are replaced below
        clamped_index = committed_index.clamp(0, self.committed_ids.shape[1] - 1)
        committed = self.committed_ids.gather(1, clamped_index.flatten(1)).view_as(committed_index)
        committed = committed.masked_fill(committed_index < 0, -1)
        return torch.where(path_index >= 0, self.ids_at(path_index), committed)

    def first_generated(self, count: int) -> Tensor:
        """Return the first `count` ids generated on the path to each of T scored positions, committed ones included.

        Returns:
            Tensor: `[B, T, count]`; -1 where fewer are generated.
        """
        # [B, count] index of the 1st, 2nd, … generated id on the path: 0 is the root, which is number `num_generated`;
        # negative indices are among the committed ids
        path_index = cached_arange(count + 1, self.depth.device)[1:] - self.num_generated[:, None]
        # the root is the last committed id; clamped ones are on the path and replaced below
        committed_index = (self.committed_lens[:, None] - 1 + path_index).clamp(0, self.committed_ids.shape[1] - 1)
        committed = self.committed_ids.gather(1, committed_index)[:, None].expand(-1, self.depth.shape[1], -1)
        if max_without_sync(path_index, upper_bound=count) <= 0:  # all are committed; not checked on accelerators
            return committed
        path_index = path_index[:, None].expand_as(committed)
        ids = torch.where(path_index > 0, self.ids_at(path_index), committed)
        return ids.masked_fill(path_index > self.depth[..., None], -1)

    def ids_at(self, path_index: Tensor) -> Tensor:
        """Return ids `[B, T, K]` at indices `[B, T, K]` of every path, where the root has index 0.

        For indices that are not on the path the result is arbitrary.
        """
        return self.path_ids.gather(2, path_index.clamp(0, self.path_ids.shape[2] - 1))

    def path_mask(self) -> Tensor:
        """Return `[B, T, P]` bool, False for the padding of `path_ids`."""
        return cached_arange(self.path_ids.shape[2], self.depth.device) <= self.depth[..., None]

    def committed_mask(self) -> Tensor:
        """Return `[B, L]` bool, False for the padding of `committed_ids`."""
        return cached_arange(self.committed_ids.shape[1], self.depth.device) < self.committed_lens[:, None]

    def last_generated(self, window: int) -> Tensor:
        """Return the last `window` generated ids before each of T scored positions, without the prompt's.

        Returns:
            Tensor: `[B, T, window]`, latest first; -1 is padding.
        """
        offset = cached_arange(window, self.positions.device)
        # `positions` ids are generated before a scored position; those further back are the prompt's
        return self.last_ids(window).masked_fill(offset >= self.positions[..., None], -1)

    def last_generated_from(self, first_id: int) -> Tensor:
        """Return the last generated id that is at least `first_id` before each of T scored positions.

        Returns:
            Tensor: `[B, T]`; -1 where there is none.
        """

        def last_selected(ids: Tensor, selected: Tensor) -> Tensor:
            """Return the last of the selected ids along the last dimension, -1 if there are none."""
            number = (selected * cached_arange(ids.shape[-1] + 1, ids.device)[1:]).amax(-1)  # from 1; 0 is none
            found = ids.gather(-1, (number - 1).clamp(min=0)[..., None])[..., 0]
            return found.masked_fill(number == 0, -1)

        index = cached_arange(self.committed_ids.shape[1], self.depth.device)
        is_generated = self.committed_mask() & (index >= (self.committed_lens - self.num_generated)[:, None])
        committed = last_selected(self.committed_ids, is_generated & (self.committed_ids >= first_id))  # [B]
        # the root, at index 0 of every path, is the last committed id
        after_root = self.path_mask() & (cached_arange(self.path_ids.shape[2], self.depth.device) > 0)
        on_path = last_selected(self.path_ids, after_root & (self.path_ids >= first_id))  # [B, T]
        return torch.where(on_path >= 0, on_path, committed[:, None])

    def vocab_mask(self, ids: Tensor, selected: Tensor, vocab_size: int) -> Tensor:
        """Return a vocabulary mask that is true for the selected ids of every scored position.

        Args:
            ids (Tensor): `[B, T, K]` K token ids for each of T scored positions; ids from `vocab_size` on are ignored.
            selected (Tensor): `[B, T, K]` bool, the entries of `ids` to set in the mask.
            vocab_size (int): V.

        Returns:
            Tensor: `[B, T, V]` bool.
        """
        # Ids that are not selected, or too large, are written to an extra last column, which is cut off.
        mask = torch.zeros(*self.positions.shape, vocab_size + 1, dtype=torch.bool, device=ids.device)
        return mask.scatter_(2, ids.masked_fill(~selected, vocab_size).clamp(max=vocab_size), True)[..., :vocab_size]
