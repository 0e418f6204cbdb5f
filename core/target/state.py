"""Committed state of a batch: tokens, lengths, limits, sampling parameters and KV cache. Tensors live on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, next_positions
from polydraft.core.model.cache import KVCache, round_up_to_blocks
from polydraft.core.sampling.params import SamplingTensors
from polydraft.core.tokens import batch_gather, batch_scatter_


@dataclass
class BatchState(BatchedState):
    """Committed state of B batch rows of one target.

    Every row has R guidance branches (R = 1 without guidance): its prompt in R versions, followed by the same tokens.
    """

    # [B, L] int64 prompt and generated ids of the conditional branch, right-padded; or [B, L, C] latents, NaN in the
    # prompt
    tokens: Tensor
    prompt_lens: Tensor  # [B] of the conditional branch
    num_generated: Tensor  # [B] tokens committed after the prompt
    max_new_tokens: Tensor  # [B]
    branch_prompt_lens: Tensor  # [B, R] int64
    sampling_tensors: SamplingTensors
    seq_lens: list[int]  # on the host: positions of every row's longest branch
    cache: KVCache
    # [B, R, D] input embedding of every branch's last prompt token; None if it is the embedding of the token's id
    root_embeddings: Tensor | None = None
    # [B, 1] bool, False where the prompt's hidden states are not finite, so that the row cannot go on; None for targets
    # without a KV cache: their outputs are not finite either then, since every pass computes the whole row
    is_finite: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of batch rows B."""
        return len(self.seq_lens)

    @property
    def num_branches(self) -> int:
        """Return the number of guidance branches per row, R."""
        return self.branch_prompt_lens.shape[1]

    @property
    def num_tokens(self) -> Tensor:
        """Return the number of committed tokens per row, prompt included, `[B]`."""
        return self.prompt_lens + self.num_generated

    @property
    def max_seq_len(self) -> int:
        """Return the number of positions of the longest row."""
        return max(self.seq_lens, default=0)

    def root_tokens(self) -> Tensor:
        """Return the root of every batch row's next draft, `[B, 1, …]`: its last committed token.

        The root has no KV entry yet; the next target pass writes it.
        """
        return batch_gather(self.tokens, self.num_tokens[:, None] - 1)

    def num_cached(self) -> Tensor:
        """Return the number of positions with KV entries per branch, `[B, R]`: all committed ones but the root's."""
        return self.branch_prompt_lens + (self.num_generated[:, None] - 1)

    def ensure_capacity(self, num_new: int) -> None:
        """Enlarge KV cache and `tokens` if they do not hold `num_new` positions after the longest row.

        The KV cache also sets how many slots attention reads. `tokens` grows by whole key blocks, so rarely.
        """
        self.cache.ensure_capacity(self.max_seq_len + num_new)
        if (num_missing := self.max_seq_len + num_new - self.tokens.shape[1]) > 0:
            padding = self.tokens.new_zeros(len(self), round_up_to_blocks(num_missing), *self.tokens.shape[2:])
            self.tokens = torch.cat([self.tokens, padding], 1)

    def append(self, tokens: Tensor, counts: Tensor) -> None:
        """Commit the first `counts[b]` of the given tokens to every batch row b.

        Args:
            tokens (Tensor): `[B, T, …]`, T candidate tokens per row; those from `counts[b]` on are not read.
            counts (Tensor): `[B]`, at most T.
        """
        # all T are written, so that no shape depends on `counts`; the next commit overwrites those that do not count
        batch_scatter_(self.tokens, next_positions(self.num_tokens, tokens.shape[1]), tokens)
        self.num_generated = self.num_generated + counts
