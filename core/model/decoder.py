"""Decoder that scores whole draft trees: any transformers backbone, unmodified, over our KV cache.

Root and nodes of all rows and guidance branches run through the model's own forward, with per-row positions and one
attention mask per kind of layer. Targets and network drafters share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import ParallelRowsLayout
from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import attention
from polydraft.core.model.cache import BlockedViews, ContiguousViews, KVCache, cache_kwarg
from polydraft.core.model.layers import FusedDecoder
from polydraft.core.tokens import batch_gather

PREFILL_CHUNK = 64  # prompt positions per pass
LENGTH_DEPENDENT_ROPE = ("longrope", "dynamic")  # rotary frequencies change with the longest position of a pass
ALL_LAYERS = "every"  # the only kind of layer in a model whose layers have equal head counts
WindowFn: TypeAlias = "partial[Tensor] | None"  # (query positions, key positions) -> bool; None: no restriction


@dataclass(frozen=True)
class TreeFrontier:
    """Deepest level of a tree that grows in a cache: W nodes of every row and branch."""

    mask: Tensor  # [B*R, 1, group_size * W + padding, view_len] folded additive mask; a node attends to itself, too
    slots: Tensor  # [B*R, W] KV slots of the nodes
    positions: Tensor  # [B*R, W]
    key_positions: Tensor | None  # [B*R, view_len] positions of all slots; None if all layers attend to everything
    heads: attention.AttentionHeads
    # [B*R, 1 + M] slots of the root and of all M nodes; as positions, the i-th entry belongs to level i
    tree_slots: Tensor
    num_used_slots: int = 1
    level: int = 0

    def next_level(self, parents: Tensor) -> TreeFrontier:
        """Return the next level, in the next free slots.

        Args:
            parents (Tensor): `[B*R, W']`, for every new node the index of its parent in this level.
        """
        width, previous_width = parents.shape[1], self.slots.shape[1]
        num_used_slots, level = self.num_used_slots + width, self.level + 1
        slots = self.tree_slots[:, self.num_used_slots : num_used_slots]
        positions = self.tree_slots[:, level : level + 1].expand_as(slots)
        mask, self_slots = self.mask, slots if width == 1 else self.heads.fold_queries(slots, 0)
        if width > 1 or previous_width > 1:  # the mask of an only child is its parent's, updated in place
            rows = self.heads.fold_queries(parents, previous_width)  # rows of the parents' folded queries
            mask = batch_gather(mask.flatten(0, 1), rows)[:, None]
        key_positions = None if self.key_positions is None else self.key_positions.scatter(1, slots, positions)
        is_complete = self_slots.shape[1] == mask.shape[2]
        index = (self_slots if is_complete else self_slots.expand(-1, mask.shape[2]))[:, None, :, None]
        return TreeFrontier(
            mask.scatter_(3, index, 0),
            slots,
            positions,
            key_positions,
            self.heads,
            self.tree_slots,
            num_used_slots,
            level,
        )


class TreeDecoder:
    """Transformers backbone that runs draft trees over a `KVCache`.

    Args:
        backbone (nn.Module): Takes ids or embeddings and returns hidden states.
        config (Any): Its text configuration.
        coordinates (Callable[[Tensor], Tensor] | None): Maps positions `[rows, C]`, with the cache's `rope_offsets`
            added, to what the backbone takes as `position_ids`; None: the positions themselves.
    """

    def __init__(self, backbone: nn.Module, config: Any, coordinates: Callable[[Tensor], Tensor] | None = None) -> None:
        self.backbone, self.config, self.coordinates = backbone, config, coordinates
        self.attention_window_fns = attention_window_fns(config)
        self.context_len = max_context_len(config)
        weight = next(backbone.parameters())
        self.dtype = weight.dtype
        configs = layer_configs(config)
        by_kind = {kind: attention.AttentionHeads.from_config(each) for kind, each in configs.items()}
        largest = max(by_kind, key=lambda kind: by_kind[kind].head_dim)
        query_width = configs[largest].num_attention_heads * by_kind[largest].head_dim
        kernel = attention.choose_kernel(
            self.context_len, query_width, by_kind[largest].head_dim, self.dtype, weight.device
        )
        self.heads_by_kind = {kind: replace(heads, kernel=kernel) for kind, heads in by_kind.items()}
        self.heads = self.heads_by_kind[largest]
        for module in backbone.modules():  # layers from several models (an adapter's) have their own configurations
            if (module_config := getattr(module, "config", None)) is not None:
                module_config._attn_implementation = kernel
        self.has_dynamic_rope = any(has_length_dependent_rope(rope) for rope in rope_configs(config))
        # accelerate's hooks, which move hidden states between devices, run in the layers' own forwards only
        self.is_multi_device = any(hasattr(module, "_hf_hook") for module in backbone.modules())
        is_plain = self.attention_window_fns is None and not self.has_dynamic_rope and coordinates is None
        self.fused_layers = FusedDecoder.from_backbone(backbone) if is_plain and not self.is_multi_device else None
        # a backbone's own forward may look positions up in a table, or rescale all frequencies by the largest position
        self.clamps_positions = self.has_dynamic_rope or self.fused_layers is None

    @property
    def kv_bytes_per_position(self) -> int:
        """Return the KV cache size of one position of a physical row."""
        configs, layers = layer_configs(self.config), num_cached_layers(self.config)
        kinds = [ALL_LAYERS] * layers if ALL_LAYERS in configs else self.config.layer_types[:layers]
        sizes = {
            kind: each.num_attention_heads // self.heads_by_kind[kind].group_size * self.heads_by_kind[kind].head_dim
            for kind, each in configs.items()
        }
        return 2 * sum(sizes[kind] for kind in kinds) * self.dtype.itemsize

    def create_cache(self, branches: int) -> KVCache:
        """Return an empty KV cache for rows of `branches` guidance branches."""
        device = next(self.backbone.parameters()).device
        needs_contiguous_keys = self.heads.kernel == attention.MATMUL
        shortest = max(heads.min_view_len(self.dtype, device) for heads in self.heads_by_kind.values())
        view = ContiguousViews() if needs_contiguous_keys else BlockedViews(shortest)
        return KVCache(num_cached_layers(self.config), branches, view)

    def prefill(self, cache: KVCache, inputs: Tensor, rows: slice) -> Tensor:
        """Run prompts from slot 0 on, in chunks, and return their hidden states `[rows, L, D]`.

        Args:
            cache (KVCache): Is written to.
            inputs (Tensor): Ids `[rows, L]` or embeddings `[rows, L, D]`.
            rows (slice): Physical rows of the cache.
        """
        length = inputs.shape[1]
        inputs = F.pad(inputs, (0, -length % 8) if inputs.ndim == 2 else (0, 0, 0, -length % 8))
        hidden_states = []
        for start in range(0, inputs.shape[1], PREFILL_CHUNK):
            chunk = inputs[:, start : start + PREFILL_CHUNK]
            cache.ensure_capacity(start + chunk.shape[1])
            all_slots = cached_arange(cache.view_len, inputs.device)
            slots = all_slots[start : start + chunk.shape[1]].expand(len(chunk), -1)
            cache.set_write_slots(slots, rows)
            mask = self.build_masks(all_slots <= slots[..., None], slots, all_slots[None])
            hidden_states.append(self.forward(chunk, cache, slots, mask))
        return torch.cat(hidden_states, 1)[:, :length]

    def forward_tree(
        self, cache: KVCache, inputs: Tensor, ancestor_mask: Tensor, depth: Tensor, num_cached: Tensor
    ) -> Tensor:
        """Run the last C of M tree tokens, the root being the first; earlier passes wrote the others.

        Token m of the tree has KV slot `num_cached + m` and position `num_cached + depth[m]`. The cache must have
        capacity for all of them.

        Args:
            cache (KVCache): Is written to.
            inputs (Tensor): Ids `[B, C]`, the same for all branches, or embeddings `[B*R, C, D]`.
            ancestor_mask (Tensor): `[B, C, M]` bool, the tree tokens that each of the C attends to.
            depth (Tensor): `[B, M]`, distance from the root.
            num_cached (Tensor): `[B, R]`, length of the prefix in the cache.

        Returns:
            Hidden states `[B*R, C, D]`.
        """
        branches, num_new = num_cached.shape[1], inputs.shape[1]
        num_known = depth.shape[1] - num_new
        if branches > 1:
            inputs = inputs.repeat_interleave(branches, 0) if inputs.ndim == 2 else inputs
            depth, ancestor_mask = depth.repeat_interleave(branches, 0), ancestor_mask.repeat_interleave(branches, 0)
        first = num_cached.flatten()[:, None]
        slots = first + cached_arange(depth.shape[1], depth.device)
        cache.set_write_slots(slots[:, num_known:])
        positions = first + depth[:, num_known:]
        if self.attention_window_fns is None:
            mask = attention.build_tree_mask(first, ancestor_mask, cache.view_len, self.dtype, self.heads)
        else:
            all_slots = cached_arange(cache.view_len, depth.device)
            visible = (all_slots < first)[:, None].repeat(1, num_new, 1)
            visible.scatter_(2, slots[:, None].expand_as(ancestor_mask), ancestor_mask)
            key_positions = all_slots.repeat(len(slots), 1).scatter_(1, slots, first + depth)
            mask = self.build_masks(visible, positions, key_positions)
        return self.forward(inputs, cache, positions, mask)

    def forward_scattered(
        self, cache: KVCache, inputs: Tensor, layout: ParallelRowsLayout, num_cached: Tensor
    ) -> Tensor:
        """Run tokens whose slots, positions and visible keys are given by `layout` rather than by a tree.

        Args:
            cache (KVCache): Is written to; earlier passes wrote the other keys that these tokens attend to.
            inputs (Tensor): Ids `[B, C]`, the same for all branches, or embeddings `[B*R, C, D]`.
            layout (ParallelRowsLayout): Slots and depths relative to `num_cached`, and the attention mask.
            num_cached (Tensor): `[B, R]`, length of the prefix in the cache.

        Returns:
            Hidden states `[B*R, C, D]`.
        """
        branches = num_cached.shape[1]
        inputs = inputs.repeat_interleave(branches, 0) if inputs.ndim == 2 and branches > 1 else inputs
        layout_parts = layout.kv_slots, layout.depth, layout.attention_mask
        slots, depth, key_mask = (part.repeat_interleave(branches, 0) for part in layout_parts)
        first = num_cached.flatten()[:, None]
        cache.set_write_slots(first + slots)
        positions = first + depth
        if self.attention_window_fns is None:
            mask = attention.build_tree_mask(first, key_mask, cache.view_len, self.dtype, self.heads)
        else:  # every visible slot equals its position
            all_slots = cached_arange(cache.view_len, depth.device)
            visible = (all_slots < first)[:, None].repeat(1, key_mask.shape[1], 1)
            new_slots = first + cached_arange(key_mask.shape[2], depth.device)
            visible.scatter_(2, new_slots[:, None].expand_as(key_mask), key_mask)
            mask = self.build_masks(visible, positions, all_slots[None])
        return self.forward(inputs, cache, positions, mask)

    def tree_frontier(self, cache: KVCache, num_cached: Tensor, nodes: int) -> TreeFrontier:
        """Return the frontier at the root of a tree of `nodes` nodes after `num_cached` `[B, R]` positions."""
        first = num_cached.flatten()[:, None]
        all_slots = cached_arange(cache.view_len, first.device)
        mask = attention.fold_gqa_mask((all_slots < first)[:, None], self.dtype, self.heads)
        key_positions = None if self.attention_window_fns is None else all_slots.expand(len(first), -1)
        tree_slots = (first - 1) + cached_arange(nodes + 1, first.device)
        return TreeFrontier(mask, tree_slots[:, :1], tree_slots[:, :1], key_positions, self.heads, tree_slots)

    def forward_level(self, cache: KVCache, inputs: Tensor, level: TreeFrontier) -> Tensor:
        """Run the nodes of one tree level and return their hidden states `[B*R, W, D]`.

        Args:
            cache (KVCache): Is written to.
            inputs (Tensor): Ids `[B, W]`, the same for all branches, or embeddings `[B*R, W, D]`.
            level (TreeFrontier): From `tree_frontier` or `TreeFrontier.next_level`.
        """
        rows = len(level.slots)
        if inputs.ndim == 2 and len(inputs) < rows:
            inputs = inputs.repeat_interleave(rows // len(inputs), 0)
        cache.set_write_slots(level.slots)
        mask = level.mask
        if level.key_positions is not None:
            visible = level.mask[:, 0, : level.slots.shape[1]] == 0
            mask = self.build_masks(visible, level.positions, level.key_positions)
        return self.forward(inputs, cache, level.positions, mask)

    def forward(self, inputs: Tensor, cache: KVCache, positions: Tensor, mask: Any) -> Tensor:
        """Run the model over the cache's write rows and return hidden states `[rows, C, D]`.

        Args:
            inputs (Tensor): Ids `[rows, C]` or embeddings `[rows, C, D]`.
            cache (KVCache): Its write slots must be set.
            positions (Tensor): `[rows, C]`.
            mask (Any): From `build_masks`.
        """
        # nodes beyond the context, and padding, are never committed
        rotary_positions = positions.clamp(max=self.context_len - 1) if self.clamps_positions else positions
        if cache.rope_offsets is not None:
            rotary_positions = rotary_positions + cache.rope_offsets[cache.write_rows, None]
        if self.fused_layers is not None:
            return self.fused_layers(inputs, rotary_positions, cache, mask)
        position_ids = rotary_positions if self.coordinates is None else self.coordinates(rotary_positions)
        kwargs: dict[str, Any] = {"inputs_embeds" if inputs.ndim == 3 else "input_ids": inputs}
        kwargs |= cache_kwarg(cache, self.backbone)
        output = self.backbone(**kwargs, position_ids=position_ids, use_cache=True, attention_mask=mask)
        return output.last_hidden_state.to(inputs.device)

    def build_masks(self, visible: Tensor, positions: Tensor, key_positions: Tensor) -> Any:
        """Return the folded mask, or a dictionary with one per kind of layer where some have attention windows.

        Args:
            visible (Tensor): `[rows, C, view_len]` bool, keys that layers without a window attend to.
            positions (Tensor): `[rows, C]` of the queries.
            key_positions (Tensor): `[rows or 1, view_len]`.
        """
        if self.attention_window_fns is None:
            return attention.fold_gqa_mask(visible, self.dtype, self.heads)
        masks = {}
        for kind, window in self.attention_window_fns.items():
            in_window = visible if window is None else visible & window(positions[..., None], key_positions[:, None])
            masks[kind] = attention.fold_gqa_mask(in_window, self.dtype, self.heads_by_kind.get(kind, self.heads))
        return masks if "full_attention" in masks or len(masks) > 1 else next(iter(masks.values()))


def compact_accepted_path(cache: KVCache, branches: int, num_cached: Tensor, path: Tensor) -> None:
    """Move the KV entries of accepted nodes directly after the root's.

    Args:
        cache (KVCache): Is changed.
        branches (int): Guidance branches R.
        num_cached (Tensor): `[B, R]`, slot of the root.
        path (Tensor): `[B, D]` node indices, -1 beyond the accepted path.
    """
    order = torch.arange(1, path.shape[1] + 1, device=path.device)
    # beyond the accepted path a slot is copied onto itself
    source = torch.where(path >= 0, path + 1, order).repeat_interleave(branches, 0)
    root_slot = num_cached.flatten()[:, None]
    cache.move_slots(root_slot + source, (root_slot + order).expand_as(source))


def in_sliding_window(window: int, query: Tensor, key: Tensor) -> Tensor:
    """Return whether a key is in its query's sliding window (Beltagy et al. 2020, arXiv 2004.05150, section 3.1)."""
    return query - key < window


def in_same_chunk(size: int, query: Tensor, key: Tensor) -> Tensor:
    """Return whether a key is in its query's chunk (chunked attention)."""
    return query // size == key // size


def num_cached_layers(config: Any) -> int:
    """Return how many layers, the first ones, have keys and values of their own."""
    return int(config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0))


def layer_configs(config: Any) -> dict[str, Any]:
    """Return the configuration of every kind of layer, one under `ALL_LAYERS` if they have equal head counts.

    Raises:
        UnsupportedModel: Layers of one kind differ.
    """
    if not getattr(config, "is_heterogeneous", False):
        return {ALL_LAYERS: config}
    try:
        return {kind: config.per_layer_config[kind] for kind in dict.fromkeys(config.layer_types)}
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModel(
            "layers of this model differ in more than their kind, which polydraft does not compute; use another model."
        ) from error


def attention_window_fns(config: Any) -> dict[str, WindowFn] | None:
    """Return for every kind of layer which earlier keys it attends to; None if all layers attend to all of them.

    Raises:
        UnsupportedModel: A kind of layer is not known.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"sliding_attention": partial(in_sliding_window, window)} if window else None
    known: dict[str, WindowFn] = {"full_attention": None}
    if window:
        known["sliding_attention"] = partial(in_sliding_window, window)
    if chunk := getattr(config, "attention_chunk_size", None):
        known["chunked_attention"] = partial(in_same_chunk, chunk)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UnsupportedModel(
            f"a layer of this model is of the kind {unknown[0]!r}, which polydraft does not compute; "
            "it knows full_attention, sliding_attention, chunked_attention."
        )
    used = {kind: known[kind] for kind in dict.fromkeys(kinds)}
    return None if set(used) == {"full_attention"} else used


def max_context_len(config: Any) -> int:
    """Return the most positions of a row, below which rotary frequencies do not depend on the row's length."""
    longest = getattr(config, "max_position_embeddings", None) or 2**31
    ropes = [rope for rope in rope_configs(config) if has_length_dependent_rope(rope)]
    original = [rope.get("original_max_position_embeddings") for rope in ropes]
    original.append(getattr(config, "original_max_position_embeddings", None) if ropes else None)
    return min([longest, *(size for size in original if size)])


def has_length_dependent_rope(rope: dict[str, Any]) -> bool:
    """Return whether rotary frequencies depend on the longest position of a pass."""
    return rope.get("rope_type", rope.get("type")) in LENGTH_DEPENDENT_ROPE


def rope_configs(config: Any) -> list[dict[str, Any]]:
    """Return the rotary settings of a model, one dictionary for all layers or one per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [each for each in rope.values() if isinstance(each, dict)] or [rope]
