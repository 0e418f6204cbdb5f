"""State of drafters with networks between passes, and how their networks process tokens: ids or latents alike.

Between passes only committed tokens count: they (and the target's hidden states of them) are processed again at the
start of the next draft, so the drafter's KV cache holds nothing of rejected nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import BatchedState, cached_arange
from polydraft.core.drafters.base import DraftOutcome, extend_state
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder, TreeFrontier
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather


@dataclass
class DrafterCacheState(BatchedState):
    """KV cache of a drafter's network, and the tokens that the network has not processed yet."""

    cache: KVCache
    num_cached: Tensor  # [B, R] entries of the cache that are kept
    new_tokens: Tensor  # [B, K, …] tokens that are not processed; a row has the first num_new of them
    new_hidden_states: Tensor  # [B, R, K, D] target hidden states of the position before each new token
    num_new: Tensor  # [B] number of new tokens, committed and pending
    num_committed: Tensor  # [B] number of committed ones among them; the rest is pending
    branch_root_ids: Tensor  # [B, R] last token id of every branch of the prompt

    @property
    def num_pending(self) -> Tensor:
        """Number of accepted tokens that are not committed yet, `[B]`."""
        return self.num_new - self.num_committed

    @staticmethod
    def with_prompts(
        drafter_state: DrafterCacheState | None, cache: KVCache, num_cached: Tensor, prompts: PrefillOutput
    ) -> DrafterCacheState:
        """Append rows for prompts that were processed up to their roots; the roots are the new tokens."""
        ones = torch.ones_like(prompts.branch_lens[:, 0])
        hidden_states = prompts.hidden_before_root()[:, :, None]
        new = DrafterCacheState(
            cache, num_cached, prompts.root_tokens, hidden_states, ones, ones.clone(), prompts.last_tokens()
        )
        extended: DrafterCacheState = extend_state(drafter_state, new)
        return extended

    def observe(self, outcome: DraftOutcome) -> None:
        """Take the accepted tokens, and the target hidden states before each, as the new tokens of the next draft."""
        result = outcome.verification
        self.num_cached = self.num_cached + self.num_committed[:, None]
        columns = F.pad(result.path + 1, (1, 0)).clamp(min=0)  # of the accepted path; the root is column 0
        self.new_tokens, self.new_hidden_states = result.tokens, gather_per_branch(outcome.hidden_states, columns)
        self.num_new, self.num_committed = result.num_matched, result.num_committed


@dataclass(frozen=True)
class HeadInput:
    """Outputs of a drafter's network at the frontier nodes of a tree, `[B*R, W, …]`.

    Both tensors are the hidden states, unless the network prepares them for its head or for the children.
    """

    hidden_states: Tensor  # input of the LM head
    child_states: Tensor  # what the inputs of the children are computed from
    frontier: TreeFrontier


class DrafterNetwork(ABC):
    """Decoder of a drafter over its own KV cache, for tokens of any kind.

    Args:
        decoder (TreeDecoder): Decoder that processes committed tokens and draft nodes.
        target (CausalTarget): Target that the drafts are for.
    """

    def __init__(self, decoder: TreeDecoder, target: CausalTarget) -> None:
        self.decoder, self.target = decoder, target

    @abstractmethod
    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return decoder inputs for tokens, given the hidden states they were predicted from.

        Args:
            tokens (Tensor): [B, C, …] ids or latents.
            hidden_states (Tensor): [B, R, C, D] hidden states of the position before each token.

        Returns:
            Tensor: ids, or embeddings [B*R, C, D].
        """

    def committed_inputs(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Tensor:
        """Return decoder inputs for tokens that were committed since the last draft; see `embed_inputs`."""
        return self.embed_inputs(tokens, hidden_states)

    def child_inputs(self, tokens: Tensor, child_states: Tensor) -> Tensor:
        """Return decoder inputs for draft tokens, given `child_states` `[B, R, W, …]` of their parents."""
        return self.embed_inputs(tokens, child_states)

    def outputs(self, hidden_states: Tensor, frontier: TreeFrontier) -> HeadInput:
        """Return inputs of head and children for hidden states `[B*R, W, D]` of the decoder."""
        return HeadInput(hidden_states, hidden_states, frontier)

    @abstractmethod
    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return decoder inputs for all positions of prompts, and how many cache entries are kept, `[B, R]`."""

    def depth_within_context(self, drafter_state: DrafterCacheState) -> Tensor | None:
        """Return how deep nodes may be before the decoder runs out of positions, `[B]`; None if it has the target's."""
        if self.decoder.context_len >= self.target.context_len:
            return None
        return self.decoder.context_len + 1 - (drafter_state.num_cached.amax(1) + drafter_state.num_committed)

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Process prompts up to their roots in new rows of `cache` (None: make a cache).

        Returns:
            tuple[KVCache, Tensor]: the cache, and how many of its entries are kept, [B, R].
        """
        inputs, num_cached = self.prompt_inputs(prompts)
        cache = self.decoder.create_cache(prompts.branch_lens.shape[1]) if cache is None else cache
        rows = cache.add_rows(len(prompts.branch_lens))
        if self.decoder.coordinates is not None:
            cache.append_rope_offsets(-prompts.branch_lens.flatten())
        if inputs.shape[1]:
            self.decoder.prefill(cache, inputs, rows)
        return cache, num_cached

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor,
        max_nodes: int,
    ) -> HeadInput:  # fmt: skip
        """Process new tokens and return the outputs at the last of them in every row.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter; its `num_new` says how many tokens of a row count.
            tokens (Tensor): [B, C, …] tokens that are not processed yet.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.
            max_nodes (int): Draft nodes that may be processed after them.
        """
        cache, num_cached = drafter_state.cache, drafter_state.num_cached
        cache.ensure_capacity(state.max_seq_len + tokens.shape[1] + max_nodes)
        columns, branches = cached_arange(tokens.shape[1], tokens.device), num_cached.shape[1]
        causal = (columns[:, None] >= columns).expand(len(tokens), -1, -1)
        inputs = self.committed_inputs(state, drafter_state, tokens, hidden_states)
        outputs = self.decoder.forward_tree(cache, inputs, causal, columns.expand(len(tokens), -1), num_cached)
        last = (drafter_state.num_new - 1).repeat_interleave(branches)
        frontier = self.decoder.tree_frontier(cache, num_cached + drafter_state.num_new[:, None], max_nodes)
        return self.outputs(outputs[cached_arange(len(outputs), outputs.device), last][:, None], frontier)

    def forward_children(
        self, parents: HeadInput, drafter_state: DrafterCacheState, tokens: Tensor, parent_index: Tensor
    ) -> HeadInput:
        """Process a level of draft nodes and return the outputs at each of them.

        Args:
            parents (HeadInput): Outputs at the frontier of the level before.
            drafter_state (DrafterCacheState): State of the drafter.
            tokens (Tensor): [B, W, …] tokens of the nodes.
            parent_index (Tensor): [B, W] index of their parents in `parents`.
        """
        branches = drafter_state.num_cached.shape[1]
        parent_index = repeat_for_branches(parent_index, branches)
        child_states = parents.child_states
        if child_states.shape[1] > 1:
            child_states = batch_gather(child_states, parent_index)
        elif parent_index.shape[1] > 1:
            child_states = child_states.expand(-1, parent_index.shape[1], -1)
        inputs = self.child_inputs(tokens, child_states.unflatten(0, (-1, branches)))
        frontier = parents.frontier.next_level(parent_index)
        return self.outputs(self.decoder.forward_level(drafter_state.cache, inputs, frontier), frontier)


def gather_per_branch(hidden_states: Tensor, columns: Tensor) -> Tensor:
    """Gather hidden states `[B, R, C, D]` at columns `[B, K]` of every branch → `[B, R, K, D]`."""
    branches = hidden_states.shape[1]
    gathered = batch_gather(hidden_states.flatten(0, 1), repeat_for_branches(columns, branches))
    return gathered.unflatten(0, (-1, branches))


def repeat_for_branches(columns: Tensor, branches: int) -> Tensor:
    """Repeat columns `[B, K]` for every guidance branch → `[B*R, K]`."""
    return columns.repeat_interleave(branches, 0) if branches > 1 else columns


def prompt_embeddings(target: CausalTarget, prompts: PrefillOutput) -> Tensor:
    """Return the inputs of the target's first layer for prompts, `[B*R, L, D]`."""
    return target.embed(prompts.ids) if prompts.embeddings is None else prompts.embeddings.flatten(0, 1)
