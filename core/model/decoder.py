"""Decoder that scores whole draft trees: any transformers backbone, unmodified, over our KV cache.

Root and nodes of all rows and guidance branches run through the model's own forward, with per-row positions and one
attention mask per layer type. Targets and network drafters share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import ParallelRowsLayout
from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import attention
from polydraft.core.model.cache import BlockedViews, ContiguousViews, ExactViews, KVCache, cache_kwarg
from polydraft.core.model.layers import FusedDecoder
from polydraft.core.tokens import batch_gather

if TYPE_CHECKING:
    from polydraft.core.model.attention import AttentionHeads

PREFILL_CHUNK = 64  # prompt positions per pass
LENGTH_DEPENDENT_ROPE = ("longrope", "dynamic")  # rotary frequencies change with the longest position of a pass
ALL_LAYERS = "every"  # the only layer type in a model whose layers have equal head counts
WindowFn: TypeAlias = "partial[Tensor] | None"  # (query positions, key positions) -> bool; None: no restriction


@dataclass(frozen=True)
class TreeFrontier:
    """Deepest level of a draft tree that a drafter's network extends level by level, with KV entries for all nodes.

    It has W nodes in every batch row; B*R counts batch rows times guidance branches.
    """

    mask: Tensor  # [B*R, 1, group_size * W + padding, view_len] folded additive mask; a node attends to itself, too
    slots: Tensor  # [B*R, W] KV slots of the nodes
    positions: Tensor  # [B*R, W] sequence positions of the nodes
    key_positions: Tensor | None  # [B*R, view_len] positions of all slots; None if no layer has an attention window
    heads: attention.AttentionHeads
    # [B*R, 1 + M] KV slots of the root and of all M nodes that the tree may have. The slots are consecutive, and the
    # root's slot equals its position, so tree_slots[:, i] is also the position of all nodes of level i
    tree_slots: Tensor
    num_used_slots: int = 1  # how many of `tree_slots` have nodes
    level: int = 0  # distance from the root

    def next_level(self, parents: Tensor) -> TreeFrontier:
        """Return the frontier of the next level, whose nodes get the next free KV slots.

        This frontier must not be used afterwards, since its mask may be changed.

        Args:
            parents (Tensor): `[B*R, W']`, for each of W' new nodes the index of its parent among the W nodes of this
                level; B*R counts batch rows times guidance branches.
        """
        width, previous_width = parents.shape[1], self.slots.shape[1]
        num_used_slots, level = self.num_used_slots + width, self.level + 1
        slots = self.tree_slots[:, self.num_used_slots : num_used_slots]  # [B*R, W']
        # entry i of `tree_slots` equals the position of all nodes of level i
        positions = self.tree_slots[:, level : level + 1].expand_as(slots)
        # A node attends to what its parent attends to, and to itself: its mask is the parent's line, plus its own slot.
        # A line of the mask belongs to a folded query (query head of a group, node), so slots are repeated per head;
        # a single slot is expanded below.
        mask, self_slots = self.mask, slots if width == 1 else self.heads.fold_queries(slots, step=0)
        if width > 1 or previous_width > 1:  # with one node per level the parent's mask is changed in place
            # indices of folded queries in `mask`, where each query head has `previous_width` lines
            parent_queries = self.heads.fold_queries(parents, step=previous_width)
            mask = batch_gather(mask.flatten(0, 1), parent_queries)[:, None]  # [B*R, 1, folded queries, view_len]
        key_positions = None if self.key_positions is None else self.key_positions.scatter(1, slots, positions)
        is_folded = self_slots.shape[1] == mask.shape[2]
        self_index = (self_slots if is_folded else self_slots.expand(-1, mask.shape[2]))[:, None, :, None]
        return TreeFrontier(
            mask.scatter_(3, self_index, 0),
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
        backbone (nn.Module): Transformers model without LM head: takes ids or embeddings and returns hidden states.
        config (Any): Its text configuration.
        position_ids_fn (Callable[[Tensor], Tensor] | None): Maps positions `[rows, T]`, with the cache's `rope_offsets`
            added, to what the backbone takes as `position_ids`; None: the positions themselves.
    """

    num_fixed = 0  # keys of every row that all its positions attend to beside those of tokens

    def __init__(
        self, backbone: nn.Module, config: Any, position_ids_fn: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Choose attention kernel and layer implementation for a backbone, and set its configurations accordingly."""
        self.backbone: nn.Module = backbone
        self.config: Any = config
        self.position_ids_fn: Callable[[Tensor], Tensor] | None = position_ids_fn
        self.attention_window_fns: dict[str, WindowFn] | None = attention_window_fns(config)
        self.context_len: int = max_context_len(config)
        weight = next(backbone.parameters())
        self.dtype: torch.dtype = weight.dtype
        configs = layer_configs(config)
        heads_by_type = {
            layer_type: attention.AttentionHeads.from_config(layer_config)
            for layer_type, layer_config in configs.items()
        }
        # the kernel is chosen for the layers with the largest heads, and used for all
        largest_type = max(heads_by_type, key=lambda layer_type: heads_by_type[layer_type].head_dim)
        head_dim = heads_by_type[largest_type].head_dim
        query_width = configs[largest_type].num_attention_heads * head_dim
        kernel = attention.choose_kernel(self.context_len, query_width, head_dim, self.dtype, weight.device)
        self.heads_by_layer_type: dict[str, AttentionHeads] = {
            layer_type: replace(heads, kernel=kernel) for layer_type, heads in heads_by_type.items()
        }
        self.heads: AttentionHeads = self.heads_by_layer_type[largest_type]
        for module in backbone.modules():  # layers from several models (an adapter's) have their own configurations
            if (module_config := getattr(module, "config", None)) is not None:
                module_config._attn_implementation = kernel
        self.has_dynamic_rope: bool = any(has_length_dependent_rope(rope) for rope in rope_configs(config))
        # accelerate's hooks, which move hidden states between devices, run in the layers' own forwards only
        self.is_multi_device: bool = any(hasattr(module, "_hf_hook") for module in backbone.modules())
        is_plain = self.attention_window_fns is None and not self.has_dynamic_rope and position_ids_fn is None
        self.fused_layers: FusedDecoder | None
        self.fused_layers = FusedDecoder.from_backbone(backbone) if is_plain and not self.is_multi_device else None
        # a backbone's own forward may look positions up in a table, or rescale all frequencies by the largest position
        self.clamps_positions: bool = self.has_dynamic_rope or self.fused_layers is None

    @property
    def is_capturable(self) -> bool:
        """Return whether passes can be parts of CUDA graphs: all tensors are on one device, and grow with the row."""
        return not self.is_multi_device

    @property
    def is_native(self) -> bool:
        """Return whether passes are calls of the C library, whose bits depend neither on views nor on threads."""
        return self.fused_layers is not None and self.fused_layers.native is not None

    def refresh_norms(self) -> None:
        """Read the present weights of norms, of which the C library has copies."""
        if self.fused_layers is not None and self.fused_layers.native is not None:
            self.fused_layers.native.refresh_norms()

    @property
    def kv_bytes_per_position(self) -> int:
        """Return the bytes of keys and values of one position of a physical KV cache row, over all layers."""
        configs, num_layers = layer_configs(self.config), num_cached_layers(self.config)
        layer_types = [ALL_LAYERS] * num_layers if ALL_LAYERS in configs else self.config.layer_types[:num_layers]
        key_widths = {}  # key/value heads times head size
        for layer_type, layer_config in configs.items():
            heads = self.heads_by_layer_type[layer_type]
            key_widths[layer_type] = layer_config.num_attention_heads // heads.group_size * heads.head_dim
        # 2: keys and values
        return 2 * sum(key_widths[layer_type] for layer_type in layer_types) * self.dtype.itemsize

    @property
    def kv_bytes_per_row(self) -> int:
        """Return the bytes that a physical KV cache row takes beside those of its positions."""
        return 0

    def create_cache(self, num_branches: int) -> KVCache:
        """Return a KV cache without rows, for batch rows of `num_branches` guidance branches each."""
        device = next(self.backbone.parameters()).device
        if self.is_native:
            return KVCache(num_cached_layers(self.config), num_branches, ExactViews())
        needs_contiguous_keys = self.heads.kernel == attention.MATMUL
        min_view_len = max(heads.min_view_len(self.dtype, device) for heads in self.heads_by_layer_type.values())
        view_policy = ContiguousViews() if needs_contiguous_keys else BlockedViews(min_view_len)
        return KVCache(num_cached_layers(self.config), num_branches, view_policy)

    def write_fixed(self, cache: KVCache, row: int, states: Tensor) -> None:
        """Compute the fixed keys and values of a row from an encoder's output `[S, D]`; here there are none."""
        return

    def prefill(self, cache: KVCache, inputs: Tensor, rows: slice) -> Tensor:
        """Run prompts in chunks of PREFILL_CHUNK positions, writing their KV entries from slot 0 on.

        A position's slot equals its position. Entries of padding are never attended to, and overwritten by new tokens.

        Args:
            cache (KVCache): Is written to.
            inputs (Tensor): Ids `[rows, L]` or embeddings `[rows, L, D]`, right-padded to L positions.
            rows (slice): Physical rows of the cache to write to.

        Returns:
            Tensor: Hidden states `[rows, L, D]` of the last layer; undefined at padding.
        """
        length = inputs.shape[1]
        # positions are padded to a multiple of 8; the padding is cut off at the end
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
        """Run the last T of the M tokens of a draft tree in one pass. Token 0 of the tree is its root.

        Earlier passes have written the KV entries of the other M - T tokens. Token m of the tree has KV slot
        `num_cached + m` and position `num_cached + depth[m]`. The cache must have capacity for all of them.

        Args:
            cache (KVCache): Is written to.
            inputs (Tensor): Ids `[B, T]`, which all R guidance branches share, or embeddings `[B*R, T, D]`.
            ancestor_mask (Tensor): `[B, T, M]` bool, the tree tokens that each of the T attends to, itself included.
            depth (Tensor): `[B, M]`, distance from the root.
            num_cached (Tensor): `[B, R]`, length of the prefix in the cache.

        Returns:
            Tensor: Hidden states `[B*R, T, D]` of the last layer.
        """
        num_branches, num_new = num_cached.shape[1], inputs.shape[1]
        num_written = depth.shape[1] - num_new  # tree tokens that already have KV entries
        if num_branches > 1:
            inputs = inputs.repeat_interleave(num_branches, 0) if inputs.ndim == 2 else inputs
            depth = depth.repeat_interleave(num_branches, 0)
            ancestor_mask = ancestor_mask.repeat_interleave(num_branches, 0)
        prefix_lens = num_cached.flatten()[:, None]  # [B*R, 1]
        slots = prefix_lens + cached_arange(depth.shape[1], depth.device)  # [B*R, M]
        cache.set_write_slots(slots[:, num_written:])
        positions = prefix_lens + depth[:, num_written:]  # [B*R, T]
        if self.attention_window_fns is None:
            mask = attention.build_tree_mask(prefix_lens, ancestor_mask, cache.view_len, self.dtype, self.heads)
        else:
            all_slots = cached_arange(cache.view_len, depth.device)
            # every token attends to the whole prefix, and to those tree slots that `ancestor_mask` gives
            visible = (all_slots < prefix_lens)[:, None].repeat(1, num_new, 1)  # [B*R, T, view_len]
            visible.scatter_(2, slots[:, None].expand_as(ancestor_mask), ancestor_mask)
            # a slot of the prefix equals its position, a slot of the tree does not
            key_positions = all_slots.repeat(len(slots), 1).scatter_(1, slots, prefix_lens + depth)
            mask = self.build_masks(visible, positions, key_positions)
        return self.forward(inputs, cache, positions, mask)

    def forward_scattered(
        self, cache: KVCache, inputs: Tensor, layout: ParallelRowsLayout, num_cached: Tensor
    ) -> Tensor:
        """Run T tokens of several image rows, whose slots, positions and visible keys `layout` gives instead of a tree.

        Args:
            cache (KVCache): Is written to; earlier passes have written the other keys that these tokens attend to.
            inputs (Tensor): Ids `[B, T]`, which all R guidance branches share, or embeddings `[B*R, T, D]`.
            layout (ParallelRowsLayout): KV slots and depths, counted from `num_cached`, and the attention mask.
            num_cached (Tensor): `[B, R]`, length of the prefix in the cache.

        Returns:
            Tensor: Hidden states `[B*R, T, D]` of the last layer.
        """
        num_branches = num_cached.shape[1]
        inputs = inputs.repeat_interleave(num_branches, 0) if inputs.ndim == 2 and num_branches > 1 else inputs
        # [B, T] slots, [B, T] depths, and [B, T, M] bool: which of M slots after the prefix each token attends to
        layout_tensors = layout.kv_slots, layout.depth, layout.attention_mask
        slots, depth, key_mask = (tensor.repeat_interleave(num_branches, 0) for tensor in layout_tensors)
        prefix_lens = num_cached.flatten()[:, None]  # [B*R, 1]
        cache.set_write_slots(prefix_lens + slots)
        positions = prefix_lens + depth  # [B*R, T]
        if self.attention_window_fns is None:
            mask = attention.build_tree_mask(prefix_lens, key_mask, cache.view_len, self.dtype, self.heads)
        else:  # every visible slot equals its position
            all_slots = cached_arange(cache.view_len, depth.device)
            visible = (all_slots < prefix_lens)[:, None].repeat(1, key_mask.shape[1], 1)  # [B*R, T, view_len]
            new_slots = prefix_lens + cached_arange(key_mask.shape[2], depth.device)
            visible.scatter_(2, new_slots[:, None].expand_as(key_mask), key_mask)
            mask = self.build_masks(visible, positions, all_slots[None])
        return self.forward(inputs, cache, positions, mask)

    def tree_frontier(self, cache: KVCache, num_cached: Tensor, max_nodes: int) -> TreeFrontier:
        """Return the frontier that consists of the root, from which a tree is then extended level by level.

        Args:
            cache (KVCache): Must have capacity for the tree.
            num_cached (Tensor): `[B, R]` positions with KV entries, those of the root included.
            max_nodes (int): Most nodes that the tree may get.
        """
        prefix_lens = num_cached.flatten()[:, None]  # [B*R, 1]
        all_slots = cached_arange(cache.view_len, prefix_lens.device)
        mask = attention.fold_gqa_mask((all_slots < prefix_lens)[:, None], self.dtype, self.heads)
        key_positions = None if self.attention_window_fns is None else all_slots.expand(len(prefix_lens), -1)
        # the root is the last cached position, and nodes get the slots after it: [B*R, 1 + max_nodes]
        tree_slots = (prefix_lens - 1) + cached_arange(max_nodes + 1, prefix_lens.device)
        return TreeFrontier(mask, tree_slots[:, :1], tree_slots[:, :1], key_positions, self.heads, tree_slots)

    def forward_level(self, cache: KVCache, inputs: Tensor, frontier: TreeFrontier) -> Tensor:
        """Run the W nodes of one tree level, and write their KV entries.

        Args:
            cache (KVCache): Is written to.
            inputs (Tensor): Ids `[B, W]`, which all R guidance branches share, or embeddings `[B*R, W, D]`.
            frontier (TreeFrontier): Slots, positions and attention mask of the nodes.

        Returns:
            Tensor: Hidden states `[B*R, W, D]` of the last layer.
        """
        num_rows = len(frontier.slots)
        if inputs.ndim == 2 and len(inputs) < num_rows:
            inputs = inputs.repeat_interleave(num_rows // len(inputs), 0)
        cache.set_write_slots(frontier.slots)
        mask = frontier.mask
        if frontier.key_positions is not None:  # layers of some type have an attention window, so need another mask
            # folded queries repeat the W nodes per query head of a group, so the first W give all; 0 means visible
            visible = frontier.mask[:, 0, : frontier.slots.shape[1]] == 0  # [B*R, W, view_len]
            mask = self.build_masks(visible, frontier.positions, frontier.key_positions)
        return self.forward(inputs, cache, frontier.positions, mask)

    def forward(self, inputs: Tensor, cache: KVCache, positions: Tensor, mask: Any) -> Tensor:
        """Run one pass of the model over T tokens per cache row, and write keys and values to the cache's write slots.

        Args:
            inputs (Tensor): Ids `[rows, T]` or embeddings `[rows, T, D]`, for the cache's write rows.
            cache (KVCache): Its write slots must be set.
            positions (Tensor): `[rows, T]` sequence positions.
            mask (Any): Result of `build_masks`.

        Returns:
            Tensor: Hidden states `[rows, T, D]` of the last layer.
        """
        # Positions beyond the context are only those of padding and of nodes that are never committed, so the values
        # computed there do not matter. Unclamped, some backbones would fail at them or rescale all rotary frequencies.
        rotary_positions = positions.clamp(max=self.context_len - 1) if self.clamps_positions else positions
        if cache.rope_offsets is not None:
            rotary_positions = rotary_positions + cache.rope_offsets[cache.write_rows, None]
        if self.fused_layers is not None:
            return self.fused_layers(inputs, rotary_positions, cache, mask)
        position_ids = rotary_positions if self.position_ids_fn is None else self.position_ids_fn(rotary_positions)
        # embeddings [rows, T, D] have three dimensions, ids two
        kwargs: dict[str, Any] = {"inputs_embeds" if inputs.ndim == 3 else "input_ids": inputs}
        kwargs |= cache_kwarg(cache, self.backbone)
        output = self.backbone(**kwargs, position_ids=position_ids, use_cache=True, attention_mask=mask)
        return output.last_hidden_state.to(inputs.device)

    def build_masks(self, visible: Tensor, positions: Tensor, key_positions: Tensor) -> Any:
        """Return attention masks for all layers (results of `attention.fold_gqa_mask`).

        Args:
            visible (Tensor): `[rows, T, view_len]` bool: which of the `view_len` KV slots that attention reads are
                visible to each of T queries in layers without an attention window.
            positions (Tensor): `[rows, T]` of the queries.
            key_positions (Tensor): `[rows or 1, view_len]` of the keys.

        Returns:
            One mask if all layers have the same, else a dictionary of masks by layer type, as transformers takes it.
        """
        if self.attention_window_fns is None:
            return attention.fold_gqa_mask(visible, self.dtype, self.heads)
        masks = {}
        for layer_type, window in self.attention_window_fns.items():
            in_window = visible if window is None else visible & window(positions[..., None], key_positions[:, None])
            heads = self.heads_by_layer_type.get(layer_type, self.heads)
            masks[layer_type] = attention.fold_gqa_mask(in_window, self.dtype, heads)
        # a model whose layers are all of one windowed type takes a single mask
        return masks if "full_attention" in masks or len(masks) > 1 else next(iter(masks.values()))


def compact_accepted_path(cache: KVCache, num_branches: int, num_cached: Tensor, path: Tensor) -> None:
    """Move the KV entries of the accepted draft nodes to the slots directly after the root's.

    Args:
        cache (KVCache): Is changed.
        num_branches (int): Guidance branches R.
        num_cached (Tensor): `[B, R]`, KV slot of the root; node i has slot `num_cached + 1 + i`.
        path (Tensor): `[B, P]` indices of the accepted nodes from the root's child on, at most P; -1 after the last.
    """
    # slots relative to the root's: the i-th accepted node (i from 1) moves from path[i - 1] + 1 to i
    target_offsets = torch.arange(1, path.shape[1] + 1, device=path.device)
    # -1 after the last accepted node: there a slot is copied onto itself
    source_offsets = torch.where(path >= 0, path + 1, target_offsets).repeat_interleave(num_branches, 0)  # [B*R, P]
    root_slots = num_cached.flatten()[:, None]  # [B*R, 1]
    cache.move_slots(root_slots + source_offsets, (root_slots + target_offsets).expand_as(source_offsets))


def in_sliding_window(window: int, query: Tensor, key: Tensor) -> Tensor:
    """Return a bool tensor: the key is in its query's sliding window; `query` and `key` are broadcastable positions.

    Beltagy et al. 2020, arXiv 2004.05150, section 3.1.
    """
    return query - key < window


def in_same_chunk(size: int, query: Tensor, key: Tensor) -> Tensor:
    """Return a bool tensor: key and query positions are in the same chunk of `size` positions (chunked attention)."""
    return query // size == key // size


def num_cached_layers(config: Any) -> int:
    """Return the number of layers with keys and values of their own; later layers reuse those of earlier ones."""
    return int(config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0))


def layer_configs(config: Any) -> dict[str, Any]:
    """Return a model's configuration by layer type; a single one under `ALL_LAYERS` if all layers have equal heads.

    Raises:
        UnsupportedModel: Layers of one type differ.
    """
    if not getattr(config, "is_heterogeneous", False):
        return {ALL_LAYERS: config}
    try:
        return {layer_type: config.per_layer_config[layer_type] for layer_type in dict.fromkeys(config.layer_types)}
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModel(
            "layers of this model differ in more than their kind, which polydraft does not compute; use another model."
        ) from error


def attention_window_fns(config: Any) -> dict[str, WindowFn] | None:
    """Return the attention window functions of a model by layer type.

    A function takes query and key positions and returns a bool tensor, True where the key is in the query's window; it
    is None for layer types that attend to all earlier keys.

    Args:
        config (Any): Text configuration of transformers.

    Returns:
        dict | None: None if all layers attend to all earlier keys.

    Raises:
        UnsupportedModel: A layer type is not known.
    """
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return {"sliding_attention": partial(in_sliding_window, window)} if window else None
    known: dict[str, WindowFn] = {"full_attention": None}
    if window:
        known["sliding_attention"] = partial(in_sliding_window, window)
    if chunk := getattr(config, "attention_chunk_size", None):
        known["chunked_attention"] = partial(in_same_chunk, chunk)
    if unknown := [layer_type for layer_type in layer_types if layer_type not in known]:
        raise UnsupportedModel(
            f"a layer of this model is of the kind {unknown[0]!r}, which polydraft does not compute; "
            "it knows full_attention, sliding_attention, chunked_attention."
        )
    used = {layer_type: known[layer_type] for layer_type in dict.fromkeys(layer_types)}
    return None if set(used) == {"full_attention"} else used


def max_context_len(config: Any) -> int:
    """Return the largest number of positions that a sequence may have.

    Where rotary frequencies change with the sequence length (longrope, dynamic) it is the length below which they do
    not: beyond it the keys in the cache would have to be computed anew.
    """
    max_positions = getattr(config, "max_position_embeddings", None) or 2**31  # no limit in the configuration
    ropes = [rope for rope in rope_configs(config) if has_length_dependent_rope(rope)]
    original_lens = [rope.get("original_max_position_embeddings") for rope in ropes]
    original_lens.append(getattr(config, "original_max_position_embeddings", None) if ropes else None)
    return min([max_positions, *(length for length in original_lens if length)])


def has_length_dependent_rope(rope: dict[str, Any]) -> bool:
    """Return whether rotary frequencies depend on the longest position of a pass."""
    return rope.get("rope_type", rope.get("type")) in LENGTH_DEPENDENT_ROPE


def rope_configs(config: Any) -> list[dict[str, Any]]:
    """Return the rotary settings of a model, one dictionary for all layers or one per layer type."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # settings by layer type are a dictionary of dictionaries
    return [settings for settings in rope.values() if isinstance(settings, dict)] or [rope]
