"""Hydra heads: the prediction for each position depends on the draft tokens before it.

The inputs of a head are the target's last hidden state and the embeddings of all tokens since, the root included, which
Medusa heads never see. No attention and no KV cache: a level of a tree is one small matmul on its nodes.
Ankner et al. 2024, Hydra (arXiv 2402.05109), section 3. As with our Medusa heads the vocabulary projection is the
target's own frozen LM head, and an untrained head repeats the target's last hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.drafters.heads.medusa import select_last_new
from polydraft.core.drafters.network.base import (
    DrafterModel,
    DraftHead,
    TokenLookup,
    embedding_tables,
    table_lookup,
)
from polydraft.core.drafters.network.state import DrafterCacheState, gather_per_cfg_branch
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.drafter import TreeDrafter, TreeGrowth
from polydraft.core.drafters.tree.shapes import CandidateRanking, StaticTree, TreeShape
from polydraft.core.model.cache import KVCache
from polydraft.core.model.linear import build_linear, dense_weight, native_weight
from polydraft.core.native.heads import ChildTerms, NativeHeads
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState


class HydraHeads(DrafterModel):
    """Hydra heads `h + W_k SiLU(V_k [h, e_0, …, e_k-1])` for k = 1 … K.

    h is the target's last hidden state, e_0 the embedding of the root (the last committed token), and e_j that of the
    draft token of level j. Submodules `reads` are V, `says` are W.

    Args:
        target_config (Any): Text configuration of the target.
        places (int): K, the number of heads.
        hidden (int | None): Width between V and W; None for the target's hidden size.
        words (list[int] | None): Token ids that may be drafted; None for all.
    """

    kind: ClassVar[str] = "hydra"
    title: ClassVar[str] = "Hydra heads"

    def __init__(
        self, target_config: Any, places: int = 5, hidden: int | None = None, words: list[int] | None = None
    ) -> None:
        """Create `places` heads: a matrix V (`reads`) and a matrix W (`says`, zero at first) for each."""
        super().__init__(target_config, places=places, **({} if hidden is None else {"hidden": hidden}))
        self.restrict_vocab(words)
        self.num_positions: int = places
        self.hidden_size: Any = target_config.hidden_size
        self.inner_size: int | Any = hidden or self.hidden_size
        reads = [nn.Linear((2 + head) * self.hidden_size, self.inner_size) for head in range(places)]
        says = [nn.Linear(self.inner_size, self.hidden_size) for _ in range(places)]
        for linear in says:
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.reads: nn.ModuleList = nn.ModuleList(reads)
        self.says: nn.ModuleList = nn.ModuleList(says)

    def forward(self, inputs: Tensor) -> Tensor:
        """Predict the next hidden state, `[..., D]`.

        Args:
            inputs (Tensor): [..., (1 + k) D] last hidden state of the target, and embeddings of the k tokens since; k
                determines which head is used.
        """
        head = inputs.shape[-1] // self.hidden_size - 2  # head 0 takes the hidden state and one embedding
        inputs = inputs.to(self.says[head].weight.dtype)
        return self.apply_head(head, inputs[..., : self.hidden_size], self.reads[head](inputs))

    def apply_head(self, head: int, hidden_state: Tensor, projected: Tensor) -> Tensor:
        """Return the hidden state that a head predicts, `[..., D]`.

        Args:
            head (int): Index of the head, from 0.
            hidden_state (Tensor): [..., D] last hidden state of the target.
            projected (Tensor): [..., H] output of the head's matrix V for all its inputs; H is the heads' inner size.
        """
        predicted: Tensor = hidden_state + self.says[head](F.silu(projected))  # `says` are the matrices W
        return predicted

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict the next K hidden states from many positions of whole sequences at once, for training.

        Args:
            hidden_states (Tensor): [B, I, D] target hidden states of tokens 0 to I - 1.
            embeddings (Tensor): [B, I, D] embeddings of tokens 1 to I.
            starts (Tensor): [S] indices of the hidden states to predict from; head k also gets the embeddings at
                indices start to start + k.

        Returns:
            Tensor: [B, S, K, D] predicted hidden states of tokens start + 1 to start + K.
        """
        # predictions past the end of a sequence take its last embedding; the caller's loss mask excludes them
        last = embeddings.shape[1] - 1
        inputs, predicted = hidden_states[:, starts], []
        for head in range(self.num_positions):  # each head has one more embedding as input than the one before it
            embedding = embeddings[:, (starts + head).clamp(max=last)]
            inputs = torch.cat([inputs, embedding.to(inputs.dtype)], -1)
            predicted.append(self(inputs))
        return torch.stack(predicted, 2)


@dataclass(frozen=True)
class HydraLevelState:
    """Inputs of the heads at the W frontier nodes of a tree level, for R guidance branches."""

    head: int  # index of the head that predicts the next level
    hidden_state: Tensor  # [B, R, 1, D] target hidden state before the root
    # [B, R, W, n * H] projections by V of all inputs so far, for this head and the n - 1 after it, each of size H
    projected: Tensor


class HydraDrafter(TreeDrafter):
    """Drafter that grows trees with Hydra heads.

    `V_k [h, e_0, …]` is a sum of one term for the hidden state and one for every token since. So the terms of a token
    in all later heads are one matmul, or one table lookup for small vocabularies. Weights are copied at construction.
    """

    has_native_levels: ClassVar[bool] = True  # whether levels are computed as `NativeHeads` does

    def __init__(
        self, model: HydraHeads, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking
    ) -> None:
        """Prepare the matrices V of as many heads as the tree has levels, split into one part per input."""
        self.draft_head: DraftHead = DraftHead(model, target)
        super().__init__(target, tree_shape, ranking, self.draft_head.vocab_subset)
        self.model: HydraHeads = model.eval()
        # V_k [h, e_0, …] is a sum over inputs: one matmul for the hidden state h, and one lookup per token (or matmul,
        # if the vocabulary is too large for tables) give what each adds in all heads
        hidden_weight, bias, token_weights = split_head_weights(model, tree_shape.depth)
        self.project_hidden: nn.Linear = build_linear(hidden_weight, bias)
        self.dtype: torch.dtype = hidden_weight.dtype
        tables = embedding_tables(target, token_weights)
        self.token_projections: list[TokenLookup] = (
            [partial(project_embeddings, target, build_linear(weight)) for weight in token_weights]
            if tables is None
            else list(map(table_lookup, tables))
        )
        # the C library looks up what a drafted token adds to the heads after it, so not what the root adds
        self.native: NativeHeads | None = native_heads(model, tables[1:]) if tables and self.has_native_levels else None

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Return a KV cache without layers, and the number of prompt positions before the root, `[B, R]`.

        Hydra heads keep no keys and values; the cache only counts batch rows of R guidance branches.

        Args:
            cache (KVCache | None): Cache to add rows to; None: create one.
            prompts (PrefillOutput): What the target computed for the prompts.
        """
        cache = KVCache(0, prompts.branch_lens.shape[1]) if cache is None else cache
        cache.add_rows(len(prompts.branch_lens))
        return cache, (prompts.branch_lens - 2).clamp(min=0)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> HydraLevelState:
        """Return the level state of the last new token of every row; earlier ones do not matter to the heads.

        Args:
            state (BatchState): Not used.
            drafter_state (DrafterCacheState): State of the drafter; `num_new` is the number of valid tokens per row.
            tokens (Tensor): [B, C] token ids that are new since the last draft, right-padded.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.
        """
        num_new = drafter_state.num_new
        last_hidden_state = select_last_new(hidden_states, num_new)[:, :, None]  # [B, R, 1, D]
        return self.root_level_state(last_hidden_state, tokens.gather(1, num_new[:, None] - 1))

    def forward_children(
        self, level_state: HydraLevelState, drafter_state: DrafterCacheState, tree: DraftTree
    ) -> HydraLevelState:
        """Return the level state of the W frontier nodes of `tree`: their parents' with the nodes' tokens added.

        Args:
            level_state (HydraLevelState): Level state of the frontier nodes of the level before.
            drafter_state (DrafterCacheState): Not used.
            tree (DraftTree): Tree grown so far.
        """
        projected = level_state.projected
        is_chain = projected.shape[2] == tree.width == 1
        if not is_chain:
            projected = gather_per_cfg_branch(projected, tree.parent_index)
        # `projected` has H numbers (the inner size) per head; the first H were for the head that has just been used
        head, later_heads = level_state.head + 1, projected[..., self.model.inner_size :]
        # what the nodes' tokens add to the inputs of the n heads that are left
        token_term = self.token_projections[head](tree.frontier_ids)[:, None]  # [B, 1, W, n * H]
        return HydraLevelState(head, level_state.hidden_state, later_heads + token_term)

    def root_level_state(self, hidden_state: Tensor, root: Tensor) -> HydraLevelState:
        """Return the level state of the token that a tree grows from (the root, or the last pending token).

        Args:
            hidden_state (Tensor): [B, R, 1, D] target hidden state of the position before it.
            root (Tensor): [B, 1] its id.
        """
        hidden_state = hidden_state.to(self.dtype)
        projected = self.project_hidden(hidden_state) + self.token_projections[0](root)[:, None]
        return HydraLevelState(0, hidden_state, projected)

    def logits(self, level_state: HydraLevelState, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        """Return draft logits for the children of the W frontier nodes, after guidance.

        Args:
            level_state (HydraLevelState): Level state of the frontier nodes.
            state (BatchState): Committed state of the target.
            tree (DraftTree): Tree grown so far.
            positions (Tensor): [B, 1] position of the children among the generated tokens.

        Returns:
            Tensor: [B, W, V], or over `vocab_subset`.
        """
        projected = self.head_projection(level_state, state, positions)
        predicted = self.model.apply_head(level_state.head, level_state.hidden_state, projected)
        return self.target.apply_guidance(self.draft_head(predicted), state.sampling_tensors, positions)

    def grow_tree(
        self, state: BatchState, drafter_state: DrafterCacheState, level_state: HydraLevelState, growth: TreeGrowth
    ) -> tuple[DraftTree, list[TokenDistribution]]:
        """Grow a tree level by level: all levels in one call of the C library where that can be, see `TreeDrafter`."""
        if self.native is None or not isinstance(growth.shape, StaticTree):
            return super().grow_tree(state, drafter_state, level_state, growth)
        lm_head, terms = self.target.packed_lm_head(self.draft_head.lm_head), self.child_terms(state, growth)
        if lm_head is None or terms is None:
            return super().grow_tree(state, drafter_state, level_state, growth)
        ids, scores = self.native.grow(
            growth.shape.level_shapes, lm_head, level_state.hidden_state[:, :, 0], level_state.projected[:, :, 0], terms
        )
        tree = DraftTree(len(state), ids.device)
        growth.shape.add_all_levels(tree, ids, scores)
        return tree, []

    def child_terms(self, state: BatchState, growth: TreeGrowth) -> ChildTerms | None:
        """Return what turns logits of all levels into scores of children; None if scores are no such linear function.

        Args:
            state (BatchState): Committed state of the target.
            growth (TreeGrowth): Shape, noise and sampling of the tree.
        """
        sampling, states = state.sampling_tensors, None
        if growth.grammar_states[0] is not None:
            states = torch.cat(growth.grammar_states, 1)  # type: ignore[arg-type]
        processing = growth.sampler.without_history(sampling, states)
        covers_vocab = self.vocab_subset is None or growth.subset_ids is not None
        if not (growth.uses_shared_noise and self.ranking.draws and covers_vocab) or processing is None:
            return None
        if self.target.guidance_scales(sampling.guidance_scale, growth.positions) is not None:
            return None
        factors, bias = processing
        noise = growth.noise if bias is None else bias if growth.noise is None else growth.noise + bias
        if noise is None:
            noise = torch.zeros(1, self.target.vocab_size if growth.subset_ids is None else len(growth.subset_ids))
        biases = noise if noise.ndim == 3 else noise[None]  # [B or 1, levels or 1, V]
        return ChildTerms(
            factors / self.ranking.temperature, biases, sampling.guidance_scale.contiguous(), growth.subset_ids
        )

    def head_projection(self, level_state: HydraLevelState, state: BatchState, positions: Tensor) -> Tensor:
        """Return the output of V, which is the input of the SiLU, in the head that predicts next, `[B, R, W, H]`."""
        return level_state.projected[..., : self.model.inner_size]


def native_heads(model: HydraHeads, tables: Sequence[Tensor]) -> NativeHeads | None:
    """Return the heads as the C library takes them, None if it does not compute them.

    Args:
        model (HydraHeads): The heads.
        tables (Sequence[Tensor]): For every head but the first, what a token of the level before adds to its terms and
            those of later heads, `[token ids, later heads * H]`.
    """
    weights = [native_weight(mix) for mix in model.says[: len(tables) + 1]]
    packed = [weight for weight in weights if weight is not None]
    return NativeHeads(packed, tables) if len(packed) == len(weights) else None


def project_embeddings(target: CausalTarget, linear: nn.Linear, ids: Tensor) -> Tensor:
    """Return the target's embeddings of `ids` `[...]` after `linear`, `[..., output size]`."""
    projected: Tensor = linear(target.embed(ids).to(linear.weight.dtype))
    return projected


def split_head_weights(model: HydraHeads, depth: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Split the matrices V of the first `depth` heads by input, and concatenate the parts of all heads.

    V of head k multiplies the concatenation of the target's hidden state and k + 1 embeddings, D numbers each, and has
    H outputs, the inner size.

    Returns:
        tuple[Tensor, Tensor, list[Tensor]]: weight for the hidden state [depth * H, D], bias [depth * H], and for the
            token of level l = 0 … depth - 1 the weight of the heads that depend on it, [(depth - l) * H, D].
    """
    heads: Any = model.reads[:depth]  # submodules `reads` are V
    # per head the columns for the hidden state (index 0), then those for the token of level l (index 1 + l)
    parts = [dense_weight(head).split(model.hidden_size, 1) for head in heads]
    token_weights = [torch.cat([part[1 + level] for part in parts[level:]]) for level in range(depth)]
    return torch.cat([part[0] for part in parts]), torch.cat([head.bias.detach() for head in heads]), token_weights
