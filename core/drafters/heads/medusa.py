"""Drafters that predict all levels of a tree at once, and Medusa heads, the smallest of them.

The prediction for a position does not depend on the draft tokens before it: the distribution at a node is that of its
depth (processed by the sampler with the node's own path), and a tree of any shape costs one pass of a small network.

Medusa: K predictions from the target's last hidden state alone, each by a residual block. Cai et al. 2024 (arXiv
2401.10774), section 2.1; on speech tokens Li et al. 2024, VADUSA (arXiv 2410.21951). As published every head ends in a
vocabulary projection of its own; here all share the target's frozen LM head, applied to the head's transformed hidden
state: K·D² weights instead of K·(D² + D·V), and an untrained head repeats the target's prediction of one token earlier.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.batched_state import cached_arange
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.drafters.network.state import DrafterCacheState, prompt_embeddings
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.model.cache import KVCache
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState


class MultiTokenModel(DrafterModel):
    """Model that predicts the target's hidden states of the next K positions, for the target's frozen LM head.

    Entry i of its input is the target's hidden state of token i (from which token i + 1 was chosen) and the embedding
    of token i + 1. Its k-th output after entry i is the hidden state of token i + 1 + k, which predicts token
    i + 2 + k. The root, chosen by the target itself, is the token of the last entry: its hidden state is not known yet,
    and is the first that is predicted.
    """

    num_positions: int  # K

    @abstractmethod
    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict after many entries of whole sequences at once, for training.

        Args:
            hidden_states (Tensor): [B, I, D] target hidden states of the entries.
            embeddings (Tensor): [B, I, D] embeddings of the entries.
            starts (Tensor): [S] entries to predict after.

        Returns:
            Tensor: [B, S, K, D] predicted hidden states.
        """

    def create_cache(self, branches: int) -> KVCache:
        """Return an empty KV cache; it has no layers unless a subclass keeps earlier entries."""
        return KVCache(0, branches)

    def prefill(self, cache: KVCache, hidden_states: Tensor, embeddings: Tensor, rows: slice) -> None:
        """Process the entries of prompts, `[rows, I, D]` each, in `rows` of the cache."""

    @abstractmethod
    def forward_draft(
        self, cache: KVCache, num_cached: Tensor, hidden_states: Tensor, embeddings: Tensor, num_new: Tensor,
        positions: int,
    ) -> Tensor:  # fmt: skip
        """Process new entries and predict after the last of them in every row.

        Args:
            cache (KVCache): Cache of earlier entries; the new ones are written after them.
            num_cached (Tensor): [B, R] entries that the cache holds.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the new entries.
            embeddings (Tensor): [B, R, C, D] embeddings of the new entries.
            num_new (Tensor): [B] number of new entries of each row.
            positions (int): Number of positions to predict.

        Returns:
            Tensor: [B, R, positions, D] predicted hidden states.
        """


class MultiTokenDrafter(TreeDrafter):
    """Drafter whose model predicts all levels of a tree in one pass; its level state are all logits `[B, depth, V]`."""

    def __init__(
        self, model: MultiTokenModel, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking
    ) -> None:
        super().__init__(target, tree_shape, ranking)
        self.model = model.eval()

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        cache = self.model.create_cache(prompts.branch_lens.shape[1]) if cache is None else cache
        rows, hidden_states = cache.add_rows(len(prompts.branch_lens)), prompts.hidden_states.flatten(0, 1)[:, :-1]
        if hidden_states.shape[1]:
            self.model.prefill(cache, hidden_states, prompt_embeddings(self.target, prompts)[:, 1:], rows)
        return cache, (prompts.branch_lens - 2).clamp(min=0)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Tensor:
        cache, depth = drafter_state.cache, self.tree_shape.depth
        embeddings = self.target.embed(tokens)[:, None].expand_as(hidden_states)
        cache.ensure_capacity(state.max_seq_len + tokens.shape[1] + depth)
        predicted = self.model.forward_draft(
            cache, drafter_state.num_cached, hidden_states, embeddings, drafter_state.num_new, depth
        )
        first = (state.num_generated + drafter_state.num_pending)[:, None]
        positions = first + cached_arange(depth, tokens.device)
        logits = self.target.compute_logits(predicted)
        return self.target.apply_guidance(logits, state.sampling_tensors, positions)

    def forward_children(self, level_state: Tensor, drafter_state: DrafterCacheState, tree: DraftTree) -> Tensor:
        return level_state

    def logits(self, level_state: Tensor, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        return level_state[:, len(tree.levels), None].expand(-1, tree.width, -1)


def last_entry(entries: Tensor, counts: Tensor) -> Tensor:
    """Return entry `counts - 1` `[B]` of `[B, R, C, D]`, as `[B, R, D]`."""
    return entries[cached_arange(len(entries), entries.device), :, counts - 1]


class MedusaHeads(MultiTokenModel):
    """Medusa heads `h + SiLU(W_k h + b_k)` for k = 1 … K, with W and b zero at first; one matmul for all heads."""

    kind, title = "heads", "Medusa heads"

    def __init__(self, target_config: Any, places: int = 4) -> None:
        super().__init__(target_config, places=places)
        self.num_positions = places
        size = target_config.hidden_size
        self.blocks = nn.Linear(size, places * size)
        nn.init.zeros_(self.blocks.weight)
        nn.init.zeros_(self.blocks.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Predict the next K hidden states, `[..., D]` → `[..., K, D]`."""
        hidden_states = hidden_states.to(self.blocks.weight.dtype)
        residuals = self.blocks(hidden_states).unflatten(-1, (self.num_positions, -1))
        return hidden_states[..., None, :] + torch.nn.functional.silu(residuals)

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        return self(hidden_states[:, starts])

    def forward_draft(
        self, cache: KVCache, num_cached: Tensor, hidden_states: Tensor, embeddings: Tensor, num_new: Tensor,
        positions: int,
    ) -> Tensor:  # fmt: skip
        return self(last_entry(hidden_states, num_new))[:, :, :positions]
