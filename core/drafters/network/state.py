"""State of drafters with networks between passes, and how their networks process tokens (ids or latents).

Between passes only committed tokens count: they (and the target's hidden states of them) are processed again at the
start of the next draft, so the drafter's KV cache holds nothing of rejected nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, cached_arange, next_positions
from polydraft.core.drafters.base import DraftOutcome, MissedTokens, append_drafter_rows
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder, TreeFrontier
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather, batch_scatter_


@dataclass
class DrafterCacheState(BatchedState):
    """KV cache of a drafter's network, and the tokens that the network has not processed yet.

    Pending tokens were accepted by the target, but are not committed because their KV entries are not contiguous. They
    are processed like committed ones, and drafted again. R is the number of guidance (CFG) branches.
    """

    cache: KVCache
    num_cached: Tensor  # [B, R] valid positions of the cache
    new_tokens: Tensor  # [B, K, …] tokens that are not processed yet, right-padded; the first `num_new` are valid
    new_hidden_states: Tensor  # [B, R, K, D] target hidden states of the position before each new token
    num_new: Tensor  # [B] number of new tokens: the committed ones, then the pending ones
    num_committed: Tensor  # [B] number of committed tokens among them
    cfg_root_ids: Tensor  # [B, R] last prompt id of every guidance branch

    @property
    def num_pending(self) -> Tensor:
        """Number of accepted tokens that are not committed yet, `[B]`."""
        return self.num_new - self.num_committed

    @staticmethod
    def with_prompts(
        drafter_state: DrafterCacheState | None, cache: KVCache, num_cached: Tensor, prompts: PrefillOutput
    ) -> DrafterCacheState:
        """Append rows for prompts, of which all tokens but the root (last token) are processed.

        Args:
            drafter_state (DrafterCacheState | None): State of earlier rows; None if there are none.
            cache (KVCache): Cache of all rows, to which the prompts have been added.
            num_cached (Tensor): [B, R] valid positions of the cache for the new rows.
            prompts (PrefillOutput): What the target computed for the prompts.

        Returns:
            DrafterCacheState: state of all rows.
        """
        ones = torch.ones_like(prompts.branch_lens[:, 0])
        hidden_states = prompts.hidden_before_root()[:, :, None]
        # the root is the one new token of every row, and is committed
        new = DrafterCacheState(
            cache, num_cached, new_tokens=prompts.root_tokens, new_hidden_states=hidden_states, num_new=ones,
            num_committed=ones.clone(), cfg_root_ids=prompts.last_tokens(),
        )  # fmt: skip
        extended: DrafterCacheState = append_drafter_rows(drafter_state, new)
        return extended

    def observe(self, outcome: DraftOutcome) -> None:
        """Store the accepted tokens, with the target hidden states before each, to be processed in the next draft."""
        result = outcome.verification
        # KV entries of the tokens committed before this draft stay valid; those of pending tokens are computed again
        self.num_cached = self.num_cached + self.num_committed[:, None]
        self.new_tokens = result.tokens
        self.new_hidden_states = gather_per_cfg_branch(outcome.hidden_states, result.token_indices)
        self.num_new, self.num_committed = result.num_matched, result.num_committed

    def catch_up(self, missed: MissedTokens) -> None:
        """Append the missed tokens to the committed ones that are not processed yet, and drop the pending ones."""
        num_missed, first = missed.tokens.shape[1], self.num_committed
        # room for the missed tokens after those of any row; pending tokens are overwritten or remain as padding
        self.new_tokens = pad_positions(self.new_tokens, num_missed)
        batch_scatter_(self.new_tokens, next_positions(first, num_missed), missed.tokens)
        cfg_branches = self.new_hidden_states.shape[1]
        hidden_states = pad_positions(self.new_hidden_states.flatten(0, 1), num_missed)
        index = repeat_for_cfg_branches(next_positions(first, num_missed), cfg_branches)
        batch_scatter_(hidden_states, index, missed.hidden_states.flatten(0, 1).to(hidden_states.dtype))
        self.new_hidden_states = hidden_states.unflatten(0, (-1, cfg_branches))
        self.num_new = self.num_committed = first + missed.counts


@dataclass(frozen=True)
class HeadInput:
    """Outputs of a drafter's network at the W frontier nodes of a tree (the nodes whose children are drafted next).

    Both tensors are the hidden states, unless the network prepares them for its head or for the children.
    """

    hidden_states: Tensor  # [B*R, W, …] input of the LM head
    child_states: Tensor  # [B*R, W, …] the parents' part of the inputs of the children
    frontier: TreeFrontier  # attention mask, KV slots and positions of the frontier nodes


class DrafterNetwork(ABC):
    """Decoder of a drafter over its own KV cache, for token ids or latents.

    Shapes: B batch rows, R guidance (CFG) branches, C tokens of a pass, W nodes of a tree level, D hidden size.

    Args:
        decoder (TreeDecoder): Decoder that processes committed tokens and draft nodes.
        target (CausalTarget): Target that the drafts are for.
    """

    num_extra_positions = 0  # of the prompts here, beside those that they have in the target

    def __init__(self, decoder: TreeDecoder, target: CausalTarget) -> None:
        self.decoder: TreeDecoder = decoder
        self.target: CausalTarget = target

    @abstractmethod
    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return decoder inputs for tokens, given the hidden states they were predicted from.

        Args:
            tokens (Tensor): [B, C, …] ids or latents.
            hidden_states (Tensor): [B, R, C, D] hidden states of the position before each token, for R guidance
                branches.

        Returns:
            Tensor: ids [B, C], or embeddings [B*R, C, D].
        """

    def committed_inputs(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Tensor:
        """Return decoder inputs for the tokens that were accepted since the last draft.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter.
            tokens (Tensor): [B, C, …] ids or latents.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.

        Returns:
            Tensor: ids [B, C], or embeddings [B*R, C, D].
        """
        return self.embed_inputs(tokens, hidden_states)

    def child_inputs(self, tokens: Tensor, child_states: Tensor) -> Tensor:
        """Return decoder inputs for draft tokens.

        Args:
            tokens (Tensor): [B, W, …] ids or latents of the nodes of a tree level.
            child_states (Tensor): [B, R, W, …] `HeadInput.child_states` of the parent of each node.

        Returns:
            Tensor: ids [B, W], or embeddings [B*R, W, D].
        """
        return self.embed_inputs(tokens, child_states)

    def outputs(self, hidden_states: Tensor, frontier: TreeFrontier) -> HeadInput:
        """Return the inputs of the LM head and of the children's embedding, given the decoder's output.

        Args:
            hidden_states (Tensor): [B*R, W, D] decoder output at the nodes of a tree level.
            frontier (TreeFrontier): Attention mask, KV slots and positions of the nodes.
        """
        return HeadInput(hidden_states, hidden_states, frontier)

    @abstractmethod
    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return decoder inputs for prompts.

        Args:
            prompts (PrefillOutput): Ids of the prompts, and what the target computed for them.

        Returns:
            tuple[Tensor, Tensor]: ids [B*R, L] or embeddings [B*R, L, D] of all positions; and the number of positions
                of each prompt whose KV entries stay valid, those before its root (last token), [B, R].
        """

    def depth_within_context(self, drafter_state: DrafterCacheState) -> Tensor | None:
        """Return the largest depth of nodes within the decoder's context, `[B]`; None if it covers the target's."""
        if self.decoder.context_len >= self.target.context_len + self.num_extra_positions:
            return None
        # a node of depth d is predicted at the token of depth d - 1; the root (depth 0) is at the position num_cached +
        # num_committed - 1, and the last position of the context is context_len - 1
        return self.decoder.context_len + 1 - (drafter_state.num_cached.amax(1) + drafter_state.num_committed)

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Process prompts up to the token before their roots (last tokens) in new rows of a KV cache.

        Args:
            cache (KVCache | None): The drafter's cache; None: create one.
            prompts (PrefillOutput): What the target computed for the prompts.

        Returns:
            tuple[KVCache, Tensor]: the cache, and the number of its positions that are valid, [B, R].
        """
        inputs, num_cached = self.prompt_inputs(prompts)
        cache = self.decoder.create_cache(prompts.branch_lens.shape[1]) if cache is None else cache
        rows = self.add_rows(cache, prompts)
        if inputs.shape[1]:  # 0 if all prompts have one token, the root
            self.decoder.prefill(cache, inputs, rows)
        return cache, num_cached

    def add_rows(self, cache: KVCache, prompts: PrefillOutput) -> slice:
        """Append rows for prompts to a KV cache, with what does not depend on their tokens, and return the rows."""
        rows = cache.add_rows(len(prompts.branch_lens))
        # rotary positions are then counted from the end of the prompt
        if self.decoder.position_ids_fn is not None:
            cache.append_rope_offsets(-prompts.branch_lens.flatten())
        if getattr(self.decoder, "num_fixed", 0):
            self.write_fixed(cache, rows, prompts)
        return rows

    def write_fixed(self, cache: KVCache, rows: slice, prompts: PrefillOutput) -> None:
        """Compute the fixed keys and values of new rows from the output of the target's encoder.

        Args:
            cache (KVCache): The drafter's cache.
            rows (slice): Its physical rows for the prompts.
            prompts (PrefillOutput): What the target computed for them.
        """
        assert prompts.encoder_states is not None
        for row, states in zip(range(rows.start, rows.stop), prompts.encoder_states, strict=True):
            self.decoder.write_fixed(cache, row, states)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor,
        max_nodes: int,
    ) -> HeadInput:  # fmt: skip
        """Process the tokens accepted since the last draft and return the outputs at the last of them in every row.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter; `num_new` is the number of valid tokens per row.
            tokens (Tensor): [B, C, …] tokens that are not processed yet, right-padded.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.
            max_nodes (int): Largest number of draft nodes that will be processed after them.

        Returns:
            HeadInput: outputs with W = 1, from which the first level of a draft tree is predicted.
        """
        cache, num_cached = drafter_state.cache, drafter_state.num_cached
        cache.ensure_capacity(state.max_seq_len + self.num_extra_positions + tokens.shape[1] + max_nodes)
        index, cfg_branches = cached_arange(tokens.shape[1], tokens.device), num_cached.shape[1]
        causal_mask = (index[:, None] >= index).expand(len(tokens), -1, -1)
        inputs = self.committed_inputs(state, drafter_state, tokens, hidden_states)
        # outputs [B*R, C, D]
        outputs = self.decoder.forward_tree(cache, inputs, causal_mask, index.expand(len(tokens), -1), num_cached)
        last = (drafter_state.num_new - 1).repeat_interleave(cfg_branches)  # [B*R] index of the last valid token
        frontier = self.decoder.tree_frontier(cache, num_cached + drafter_state.num_new[:, None], max_nodes)
        return self.outputs(outputs[cached_arange(len(outputs), outputs.device), last][:, None], frontier)

    def forward_children(
        self, parents: HeadInput, drafter_state: DrafterCacheState, tokens: Tensor, parent_index: Tensor
    ) -> HeadInput:
        """Process a level of draft nodes and return the outputs at each of them.

        Args:
            parents (HeadInput): Outputs [B*R, W', …] at the frontier nodes of the level before.
            drafter_state (DrafterCacheState): State of the drafter.
            tokens (Tensor): [B, W, …] tokens of the nodes.
            parent_index (Tensor): [B, W] index of each node's parent among the W' nodes of `parents`.

        Returns:
            HeadInput: outputs [B*R, W, …] at the nodes.
        """
        cfg_branches = drafter_state.num_cached.shape[1]
        parent_index = repeat_for_cfg_branches(parent_index, cfg_branches)  # [B*R, W]
        child_states = parents.child_states
        # the parent's child state for every node; with one parent a view does, with one node nothing is needed
        if child_states.shape[1] > 1:
            child_states = batch_gather(child_states, parent_index)
        elif parent_index.shape[1] > 1:
            child_states = child_states.expand(-1, parent_index.shape[1], -1)
        inputs = self.child_inputs(tokens, child_states.unflatten(0, (-1, cfg_branches)))
        frontier = parents.frontier.next_level(parent_index)
        return self.outputs(self.decoder.forward_level(drafter_state.cache, inputs, frontier), frontier)


def pad_positions(values: Tensor, count: int) -> Tensor:
    """Return a copy of `values` `[B, C, …]` with `count` further positions of zeros."""
    return torch.cat([values, values.new_zeros(len(values), count, *values.shape[2:])], 1)


def gather_per_cfg_branch(hidden_states: Tensor, index: Tensor) -> Tensor:
    """Gather hidden states `[B, R, C, D]` at `index` `[B, K]` in every guidance branch → `[B, R, K, D]`."""
    cfg_branches = hidden_states.shape[1]
    gathered = batch_gather(hidden_states.flatten(0, 1), repeat_for_cfg_branches(index, cfg_branches))
    return gathered.unflatten(0, (-1, cfg_branches))


def repeat_for_cfg_branches(index: Tensor, cfg_branches: int) -> Tensor:
    """Repeat `index` `[B, K]` for each of R guidance branches → `[B*R, K]`."""
    return index.repeat_interleave(cfg_branches, 0) if cfg_branches > 1 else index


def prompt_embeddings(target: CausalTarget, prompts: PrefillOutput) -> Tensor:
    """Return the inputs of the target's first layer for all positions of prompts, `[B*R, L, D]`."""
    return target.embed(prompts.ids) if prompts.embeddings is None else prompts.embeddings.flatten(0, 1)
