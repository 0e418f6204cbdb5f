"""Hydra heads: the prediction for each position depends on the draft tokens before it.

The inputs of a head are the target's last hidden state and the embeddings of all tokens since, the root included, which
Medusa heads never see. No attention and no KV cache: a level of a tree is one small matmul on its nodes.
Ankner et al. 2024, Hydra (arXiv 2402.05109), section 3. As with our Medusa heads the vocabulary projection is the
target's own frozen LM head, and an untrained head repeats the target's last hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.drafters.heads.medusa import last_entry
from polydraft.core.drafters.network.base import DrafterModel, embedding_tables
from polydraft.core.drafters.network.state import DrafterCacheState, gather_per_branch
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.model.cache import KVCache
from polydraft.core.model.linear import build_linear, dense_weight
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState


class HydraHeads(DrafterModel):
    """Hydra heads `h + W_k SiLU(V_k [h, e_0, …, e_k-1])` for k = 1 … K.

    e_0 is the embedding of the root, e_j that of the draft token of level j. Submodules `reads` are V, `says` are W.

    Args:
        target_config (Any): Text configuration of the target.
        places (int): K, the number of heads.
        hidden (int | None): Width between V and W; None for the target's hidden size.
    """

    kind, title = "hydra", "Hydra heads"

    def __init__(self, target_config: Any, places: int = 5, hidden: int | None = None) -> None:
        super().__init__(target_config, places=places, **({} if hidden is None else {"hidden": hidden}))
        self.num_positions, self.hidden_size = places, target_config.hidden_size
        self.inner_size = hidden or self.hidden_size
        reads = [nn.Linear((2 + head) * self.hidden_size, self.inner_size) for head in range(places)]
        says = [nn.Linear(self.inner_size, self.hidden_size) for _ in range(places)]
        for linear in says:
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.reads, self.says = nn.ModuleList(reads), nn.ModuleList(says)

    def forward(self, inputs: Tensor) -> Tensor:
        """Predict the next hidden state `[..., D]` from a hidden state and k embeddings since, `[..., (1 + k) D]`."""
        head = inputs.shape[-1] // self.hidden_size - 2
        inputs = inputs.to(self.says[head].weight.dtype)
        return self.apply_head(head, inputs[..., : self.hidden_size], self.reads[head](inputs))

    def apply_head(self, head: int, hidden_state: Tensor, projected: Tensor) -> Tensor:
        """Return the prediction of `head` from `hidden_state` `[..., D]` and V's output `projected` `[..., H]`."""
        predicted: Tensor = hidden_state + self.says[head](F.silu(projected))
        return predicted

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict after many entries of whole sequences at once; see `MultiTokenModel.forward_all_starts`."""
        last = embeddings.shape[1] - 1
        inputs, predicted = hidden_states[:, starts], []
        for head in range(self.num_positions):
            embedding = embeddings[:, (starts + head).clamp(max=last)]
            inputs = torch.cat([inputs, embedding.to(inputs.dtype)], -1)
            predicted.append(self(inputs))
        return torch.stack(predicted, 2)


@dataclass(frozen=True)
class HydraLevelState:
    """Inputs of the heads at the nodes of a level."""

    head: int  # index of the head that predicts the next level
    hidden_state: Tensor  # [B, R, 1, D] target hidden state before the root
    projected: Tensor  # [B, R, W, K * H] output of V so far, for this head and the K - 1 after it


class HydraDrafter(TreeDrafter):
    """Drafter that grows trees with Hydra heads.

    `V_k [h, e_0, …]` is a sum over the hidden state and every token since. So the contribution of a token to all later
    heads is one matmul, or one table lookup for small vocabularies. Weights are taken at construction.
    """

    def __init__(
        self, model: HydraHeads, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking
    ) -> None:
        super().__init__(target, tree_shape, ranking)
        self.model = model.eval()
        hidden_weight, bias, token_weights = split_head_weights(model, tree_shape.depth)
        self.hidden_part, self.dtype = build_linear(hidden_weight, bias), hidden_weight.dtype
        self.token_parts = embedding_tables(target, token_weights) or [
            partial(project_embeddings, target, build_linear(weight)) for weight in token_weights
        ]

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        cache = KVCache(0, prompts.branch_lens.shape[1]) if cache is None else cache
        cache.add_rows(len(prompts.branch_lens))
        return cache, (prompts.branch_lens - 2).clamp(min=0)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> HydraLevelState:
        num_new = drafter_state.num_new
        return self.root_state(last_entry(hidden_states, num_new)[:, :, None], tokens.gather(1, num_new[:, None] - 1))

    def forward_children(
        self, level_state: HydraLevelState, drafter_state: DrafterCacheState, tree: DraftTree
    ) -> HydraLevelState:
        projected = level_state.projected
        is_chain = projected.shape[2] == tree.width == 1
        if not is_chain:
            projected = gather_per_branch(projected, tree.parent_index)
        head, remaining = level_state.head + 1, projected[..., self.model.inner_size :]
        token_part = self.token_parts[head](tree.frontier_ids)[:, None]
        return HydraLevelState(head, level_state.hidden_state, remaining + token_part)

    def root_state(self, hidden_state: Tensor, root: Tensor) -> HydraLevelState:
        """Return the level state of the root `[B, 1]` (ids), given the hidden state before it, `[B, R, 1, D]`."""
        hidden_state = hidden_state.to(self.dtype)
        projected = self.hidden_part(hidden_state) + self.token_parts[0](root)[:, None]
        return HydraLevelState(0, hidden_state, projected)

    def logits(self, level_state: HydraLevelState, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        projected = self.head_projection(level_state, state, positions)
        predicted = self.model.apply_head(level_state.head, level_state.hidden_state, projected)
        return self.target.apply_guidance(self.target.compute_logits(predicted), state.sampling_tensors, positions)

    def head_projection(self, level_state: HydraLevelState, state: BatchState, positions: Tensor) -> Tensor:
        """Return the output of V of the head that predicts next, `[B, R, W, H]`."""
        return level_state.projected[..., : self.model.inner_size]


def project_embeddings(target: CausalTarget, linear: nn.Linear, ids: Tensor) -> Tensor:
    """Return `linear` of the embeddings of `ids`, `[..., K * H]`."""
    projected: Tensor = linear(target.embed(ids).to(linear.weight.dtype))
    return projected


def split_head_weights(model: HydraHeads, depth: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Split V of the first `depth` heads by input, and stack the heads.

    Returns:
        tuple[Tensor, Tensor, list[Tensor]]: weight for the hidden state, bias, and for the token of every level the
            weight of the heads that depend on it.
    """
    heads: Any = model.reads[:depth]
    parts = [dense_weight(head).split(model.hidden_size, 1) for head in heads]
    token_weights = [torch.cat([part[1 + level] for part in parts[level:]]) for level in range(depth)]
    return torch.cat([part[0] for part in parts]), torch.cat([head.bias.detach() for head in heads]), token_weights
