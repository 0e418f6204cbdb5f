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
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polydraft.core.batched_state import cached_arange
from polydraft.core.drafters.network.base import DrafterModel, DraftHead
from polydraft.core.drafters.network.state import DrafterCacheState, prompt_embeddings
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.model.cache import KVCache
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState


class MultiTokenModel(DrafterModel):
    """Model that predicts the target's hidden states of the next K positions, for the target's frozen LM head.

    Its input is a sequence of pairs: pair i is the target's hidden state of token i (from which token i + 1 was chosen)
    and the embedding of token i + 1. Output k = 0 … K - 1 after pair i predicts the hidden state of token i + 1 + k,
    which in turn predicts token i + 2 + k. The last pair has the embedding of the root, the last committed token, whose
    hidden state is not computed yet and is the first that is predicted.
    """

    num_positions: int  # K, predictions per start

    @abstractmethod
    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict the next K hidden states from many positions of whole sequences at once, for training.

        Args:
            hidden_states (Tensor): [B, I, D] target hidden states of tokens 0 to I - 1.
            embeddings (Tensor): [B, I, D] embeddings of tokens 1 to I.
            starts (Tensor): [S] indices into both; a prediction uses the inputs up to its start.

        Returns:
            Tensor: [B, S, K, D] predicted hidden states of tokens start + 1 to start + K.
        """

    def create_cache(self, cfg_branches: int) -> KVCache:
        """Return an empty KV cache for rows of `cfg_branches` guidance branches; here it has no layers."""
        return KVCache(0, cfg_branches)

    def prefill(self, cache: KVCache, hidden_states: Tensor, embeddings: Tensor, rows: slice) -> None:
        """Write the KV entries of prompts; does nothing unless a subclass caches inputs.

        Args:
            cache (KVCache): Is written to.
            hidden_states (Tensor): [B*R, I, D] target hidden states of all prompt tokens but the last.
            embeddings (Tensor): [B*R, I, D] embeddings of all prompt tokens but the first.
            rows (slice): Physical rows of the cache, one per batch row and guidance branch.
        """

    @abstractmethod
    def forward_draft(
        self, cache: KVCache, num_cached: Tensor, hidden_states: Tensor, embeddings: Tensor, num_new: Tensor,
        positions: int,
    ) -> Tensor:  # fmt: skip
        """Process new tokens and predict the hidden states of the next positions in every row.

        Args:
            cache (KVCache): Cache of earlier inputs; the new ones are written after them.
            num_cached (Tensor): [B, R] valid positions of the cache, for R guidance branches.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each new token.
            embeddings (Tensor): [B, R, C, D] embeddings of the new tokens.
            num_new (Tensor): [B] number of new tokens of each row; the rest of C is padding.
            positions (int): Number of positions to predict.

        Returns:
            Tensor: [B, R, positions, D] predicted hidden states.
        """


class MultiTokenDrafter(TreeDrafter):
    """Drafter whose model predicts all levels of a tree in one pass.

    Its level state, which `forward_committed` returns and `forward_children` passes on, is `[B, depth, V]` logits; V is
    the size of the vocabulary, or of the model's vocabulary subset.
    """

    def __init__(
        self, model: MultiTokenModel, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking
    ) -> None:
        self.draft_head: DraftHead = DraftHead(model, target)
        super().__init__(target, tree_shape, ranking, self.draft_head.vocab_subset)
        self.model: MultiTokenModel = model.eval()

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Process prompts in new rows of `cache` (None: create one); return it and its valid positions, `[B, R]`."""
        cache = self.model.create_cache(prompts.branch_lens.shape[1]) if cache is None else cache
        rows, hidden_states = cache.add_rows(len(prompts.branch_lens)), prompts.hidden_states.flatten(0, 1)[:, :-1]
        # A token is processed together with the hidden state before it, so a prompt of L tokens has L - 1 inputs. The
        # last has the root, which is processed again in the first draft, so L - 2 count as valid.
        if hidden_states.shape[1]:
            self.model.prefill(cache, hidden_states, prompt_embeddings(self.target, prompts)[:, 1:], rows)
        return cache, (prompts.branch_lens - 2).clamp(min=0)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Tensor:
        """Process tokens that are new since the last draft, and predict all levels of the tree.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter; `num_new` is the number of valid tokens per row.
            tokens (Tensor): [B, C] new token ids, right-padded.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.

        Returns:
            Tensor: [B, depth, V] logits of every level, after guidance.
        """
        cache, depth = drafter_state.cache, self.tree_shape.depth
        embeddings = self.target.embed(tokens)[:, None].expand_as(hidden_states)
        cache.ensure_capacity(state.max_seq_len + tokens.shape[1] + depth)
        predicted = self.model.forward_draft(
            cache, drafter_state.num_cached, hidden_states, embeddings, drafter_state.num_new, depth
        )
        # the first level follows the root and the pending tokens (accepted, but not committed yet)
        first_position = (state.num_generated + drafter_state.num_pending)[:, None]
        positions = first_position + cached_arange(depth, tokens.device)
        return self.target.apply_guidance(self.draft_head(predicted), state.sampling_tensors, positions)

    def forward_children(self, level_state: Tensor, drafter_state: DrafterCacheState, tree: DraftTree) -> Tensor:
        """Return `level_state`, which holds the logits of all levels."""
        return level_state

    def logits(self, level_state: Tensor, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        """Return the logits of the next level, the same for all W frontier nodes, `[B, W, V]`.

        Args:
            level_state (Tensor): [B, depth, V] logits of all levels, after guidance.
            state (BatchState): Not used.
            tree (DraftTree): Tree grown so far.
            positions (Tensor): Not used.
        """
        return level_state[:, len(tree.levels), None].expand(-1, tree.width, -1)


def select_last_new(hidden_states: Tensor, num_new: Tensor) -> Tensor:
    """Return the last valid ones, at index `num_new - 1` `[B]`, of hidden states `[B, R, C, D]`, as `[B, R, D]`."""
    return hidden_states[cached_arange(len(hidden_states), hidden_states.device), :, num_new - 1]


class MedusaHeads(MultiTokenModel):
    """Medusa heads `h + SiLU(W_k h + b_k)` for k = 1 … K, with W and b zero at first; one matmul for all heads.

    Args:
        target_config (Any): Text configuration of the target.
        places (int): Number K of heads, and so of predicted positions.
        words (list[int] | None): Token ids that may be drafted; None for all.
    """

    kind: ClassVar[str] = "heads"
    title: ClassVar[str] = "Medusa heads"

    def __init__(self, target_config: Any, places: int = 4, words: list[int] | None = None) -> None:
        """Create `places` heads in one matrix, zero at first."""
        super().__init__(target_config, places=places)
        self.restrict_vocab(words)
        self.num_positions = places
        size = target_config.hidden_size
        self.blocks: nn.Linear = nn.Linear(size, places * size)
        nn.init.zeros_(self.blocks.weight)
        nn.init.zeros_(self.blocks.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Predict the next K hidden states, `[..., D]` → `[..., K, D]`."""
        hidden_states = hidden_states.to(self.blocks.weight.dtype)
        # `blocks` is the matrices W_1 … W_K of all heads, stacked: K * D outputs
        residuals = self.blocks(hidden_states).unflatten(-1, (self.num_positions, -1))
        return hidden_states[..., None, :] + torch.nn.functional.silu(residuals)

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict the next K hidden states from many positions of whole sequences at once, for training.

        Args:
            hidden_states (Tensor): [B, I, D] target hidden states.
            embeddings (Tensor): Not used.
            starts (Tensor): [S] indices of the hidden states to predict from.

        Returns:
            Tensor: [B, S, K, D].
        """
        return self(hidden_states[:, starts])

    def forward_draft(
        self, cache: KVCache, num_cached: Tensor, hidden_states: Tensor, embeddings: Tensor, num_new: Tensor,
        positions: int,
    ) -> Tensor:  # fmt: skip
        """Predict the hidden states of the next `positions` positions, `[B, R, positions, D]`.

        Args:
            cache (KVCache): Not used: Medusa heads only depend on the last hidden state.
            num_cached (Tensor): Not used.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each new token.
            embeddings (Tensor): Not used.
            num_new (Tensor): [B] number of new tokens of each row; the rest of C is padding.
            positions (int): Number of positions to predict.
        """
        return self(select_last_new(hidden_states, num_new))[:, :, :positions]
