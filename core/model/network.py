"""A decoder that scores whole trees: any transformers backbone, unforked, over our cache.

Root and nodes of every row and guidance branch run through the model's own forward, with per-row positions and a mask
a kind of layer. Targets and drafters that are networks share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.draft import Ahead
from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import attention
from polydraft.core.model.cache import Blocks, EndToEnd, SlotCache, over
from polydraft.core.model.layers import Layers
from polydraft.core.rows import places
from polydraft.core.tokens import take

PREFILL = 64  # positions of a prompt a pass
STRETCHED = ("longrope", "dynamic")  # rotary frequencies that change with the longest position of a pass
EVERY = "every"  # kind of the layers of a model whose layers have the same numbers of heads
Near: TypeAlias = "partial[Tensor] | None"


@dataclass(frozen=True)
class Frontier:
    """The newest level of a tree that grows in a cache: W nodes of every row and branch.

    seen: `[B*R, 1, groups * W + padding, width]` additive and folded (`attention.py`), which slots each sees, itself
    included. slots, positions: `[B*R, W]`. keys: `[B*R, width]` positions of all slots, where some layers ask for them.
    room: `[B*R, 1 + M]`, the root's slot and those behind it, `taken` so far; they are also the positions of levels, of
    which this one is the `level`th.
    """

    seen: Tensor
    slots: Tensor
    positions: Tensor
    keys: Tensor | None
    heads: attention.Heads
    room: Tensor
    taken: int = 1
    level: int = 0

    def below(self, above: Tensor) -> Frontier:
        """The level below: nodes whose parents have the places `above` `[B*R, W]` here, in the slots that follow."""
        width, known = above.shape[1], self.slots.shape[1]
        taken, level = self.taken + width, self.level + 1
        slots = self.room[:, self.taken : taken]
        positions = self.room[:, level : level + 1].expand_as(slots)
        seen, own = self.seen, slots if width == 1 else self.heads.lines(slots, 0)
        if width > 1 or known > 1:  # an only child sees what its parent saw, which is not asked for again
            lines = self.heads.lines(above, known)  # of the level above, a folded query each
            seen = take(seen.flatten(0, 1), lines)[:, None]
        keys = None if self.keys is None else self.keys.scatter(1, slots, positions)
        index = (own if own.shape[1] == seen.shape[2] else own.expand(-1, seen.shape[2]))[:, None, :, None]
        return Frontier(seen.scatter_(3, index, 0), slots, positions, keys, self.heads, self.room, taken, level)


class Network:
    """backbone: takes ids or embeddings, returns features; config: its text configuration.

    coordinates: what the backbone wants for positions `[rows, C]` (less `SlotCache.shifts`) where they are not its own
    rotary coordinates. context: positions that it can tell apart.
    """

    def __init__(self, backbone: nn.Module, config: Any, coordinates: Callable[[Tensor], Tensor] | None = None) -> None:
        self.backbone, self.config, self.coordinates = backbone, config, coordinates
        self.nearness = nearness(config)
        self.context = context(config)
        weight = next(backbone.parameters())
        self.dtype = weight.dtype
        shapes = layer_shapes(config)
        by_kind = {kind: attention.Heads.of(shape) for kind, shape in shapes.items()}
        largest = max(by_kind, key=lambda kind: by_kind[kind].size)
        wide = shapes[largest].num_attention_heads * by_kind[largest].size
        kernel = attention.chosen(self.context, wide, by_kind[largest].size, self.dtype, weight.device)
        self.heads_by_kind = {kind: replace(heads, kernel=kernel) for kind, heads in by_kind.items()}
        self.heads = self.heads_by_kind[largest]
        for part in backbone.modules():  # layers from several models (an adapter's) have configurations of their own
            if (own := getattr(part, "config", None)) is not None:
                own._attn_implementation = kernel
        self.stretched = any(stretches(rope) for rope in rope_settings(config))
        # layers on several devices, between which hooks of their own forwards carry what they read
        self.spread = any(hasattr(part, "_hf_hook") for part in backbone.modules())
        whole = self.nearness is None and not self.stretched and not self.spread and coordinates is None
        self.layers = Layers.of(backbone) if whole else None
        # a backbone's own forward may look positions up in a table, or change all frequencies with the furthest
        self.bounded = self.stretched or self.layers is None

    @property
    def slot_bytes(self) -> int:
        """What a position of a physical row takes."""
        shapes, layers = layer_shapes(self.config), cached_layers(self.config)
        kinds = [EVERY] * layers if EVERY in shapes else self.config.layer_types[:layers]
        sizes = {
            kind: shape.num_attention_heads // self.heads_by_kind[kind].groups * self.heads_by_kind[kind].size
            for kind, shape in shapes.items()
        }
        return 2 * sum(sizes[kind] for kind in kinds) * self.dtype.itemsize

    def cache(self, branches: int) -> SlotCache:
        device = next(self.backbone.parameters()).device
        by_products = self.heads.kernel == attention.PRODUCTS
        shortest = max(heads.shortest_view(self.dtype, device) for heads in self.heads_by_kind.values())
        view = EndToEnd() if by_products else Blocks(shortest)
        return SlotCache(cached_layers(self.config), branches, view)

    def prefill(self, cache: SlotCache, inputs: Tensor, rows: slice) -> Tensor:
        """Features `[rows, L, D]` of prompts from slot 0 on; inputs: ids `[rows, L]` or embeddings `[rows, L, D]`."""
        length = inputs.shape[1]
        inputs = F.pad(inputs, (0, -length % 8) if inputs.ndim == 2 else (0, 0, 0, -length % 8))
        features = []
        for start in range(0, inputs.shape[1], PREFILL):
            part = inputs[:, start : start + PREFILL]
            cache.reach(start + part.shape[1])
            every = places(cache.width, inputs.device)
            slots = every[start : start + part.shape[1]].expand(len(part), -1)
            cache.aim(slots, rows)
            mask = self.masks(every <= slots[..., None], slots, every[None])
            features.append(self.forward(part, cache, slots, mask))
        return torch.cat(features, 1)[:, :length]

    def tree_pass(self, cache: SlotCache, inputs: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor) -> Tensor:
        """Features `[B*R, C, D]` of the last C of M tree columns behind `cached` `[B, R]` positions.

        inputs: ids `[B, C]`, the same for all branches, or embeddings `[B*R, C, D]`. Column m of the tree has slot
        `cached + m` and position `cached + depth[m]` (depth `[B, M]`); the new columns see the prefix and their lineage
        `[B, C, M]`. Earlier columns were written by earlier passes. The cache has been told how far rows reach.
        """
        branches, columns = cached.shape[1], inputs.shape[1]
        known = depth.shape[1] - columns
        if branches > 1:
            inputs = inputs.repeat_interleave(branches, 0) if inputs.ndim == 2 else inputs
            depth, lineage = depth.repeat_interleave(branches, 0), lineage.repeat_interleave(branches, 0)
        cached = cached.flatten()[:, None]
        slots = cached + places(depth.shape[1], depth.device)
        cache.aim(slots[:, known:])
        positions = cached + depth[:, known:]
        if self.nearness is None:
            mask = attention.tree_mask(cached, lineage, cache.width, self.dtype, self.heads)
        else:
            every = places(cache.width, depth.device)
            visible = (every < cached)[:, None].repeat(1, columns, 1)
            visible.scatter_(2, slots[:, None].expand_as(lineage), lineage)
            keys = every.repeat(len(slots), 1).scatter_(1, slots, cached + depth)
            mask = self.masks(visible, positions, keys)
        return self.forward(inputs, cache, positions, mask)

    def scattered_pass(self, cache: SlotCache, inputs: Tensor, ahead: Ahead, cached: Tensor) -> Tensor:
        """Features `[B*R, C, D]` of columns that stand anywhere behind `cached` `[B, R]` positions; inputs as in
        `tree_pass`. What they see beside each other was written by earlier passes."""
        branches = cached.shape[1]
        inputs = inputs.repeat_interleave(branches, 0) if inputs.ndim == 2 and branches > 1 else inputs
        slots, depth, sees = (part.repeat_interleave(branches, 0) for part in (ahead.slots, ahead.depth, ahead.sees))
        cached = cached.flatten()[:, None]
        cache.aim(cached + slots)
        positions = cached + depth
        if self.nearness is None:
            mask = attention.tree_mask(cached, sees, cache.width, self.dtype, self.heads)
        else:  # a slot that is seen is its position
            every = places(cache.width, depth.device)
            visible = (every < cached)[:, None].repeat(1, sees.shape[1], 1)
            behind = cached + places(sees.shape[2], depth.device)
            visible.scatter_(2, behind[:, None].expand_as(sees), sees)
            mask = self.masks(visible, positions, every[None])
        return self.forward(inputs, cache, positions, mask)

    def frontier(self, cache: SlotCache, cached: Tensor, nodes: int) -> Frontier:
        """Where a tree of so many nodes behind `cached` `[B, R]` positions begins to grow."""
        first = cached.flatten()[:, None]
        every = places(cache.width, first.device)
        seen = attention.folded((every < first)[:, None], self.dtype, self.heads)
        keys = None if self.nearness is None else every.expand(len(first), -1)
        room = (first - 1) + places(nodes + 1, first.device)
        return Frontier(seen, room[:, :1], room[:, :1], keys, self.heads, room)

    def level_pass(self, cache: SlotCache, inputs: Tensor, level: Frontier) -> Tensor:
        """Features `[B*R, W, D]` of a further level of a tree; inputs as in `tree_pass`. See `frontier`."""
        rows = len(level.slots)
        if inputs.ndim == 2 and len(inputs) < rows:
            inputs = inputs.repeat_interleave(rows // len(inputs), 0)
        cache.aim(level.slots)
        mask = level.seen
        if level.keys is not None:
            mask = self.masks(level.seen[:, 0, : level.slots.shape[1]] == 0, level.positions, level.keys)
        return self.forward(inputs, cache, level.positions, mask)

    def forward(self, inputs: Tensor, cache: SlotCache, positions: Tensor, mask: Any) -> Tensor:
        """The model's own forward over the rows that `cache` aims at: inputs and positions `[rows, C, …]`."""
        # nodes beyond the context, and padding, are never committed
        turned = positions.clamp(max=self.context - 1) if self.bounded else positions
        turned = turned if cache.shifts is None else turned + cache.shifts[cache.aimed_rows, None]
        if self.layers is not None:
            return self.layers(inputs, turned, cache, mask)
        turned = turned if self.coordinates is None else self.coordinates(turned)
        named: dict[str, Any] = {"inputs_embeds" if inputs.ndim == 3 else "input_ids": inputs}
        named |= over(cache, self.backbone)
        output = self.backbone(**named, position_ids=turned, use_cache=True, attention_mask=mask)
        return output.last_hidden_state.to(inputs.device)

    def masks(self, visible: Tensor, positions: Tensor, key_positions: Tensor) -> Any:
        """The folded mask of visible `[rows, C, width]`, or one a kind of layer where some see less than everything."""
        if self.nearness is None:
            return attention.folded(visible, self.dtype, self.heads)
        made = {}
        for kind, near in self.nearness.items():
            seen = visible if near is None else visible & near(positions[..., None], key_positions[:, None])
            made[kind] = attention.folded(seen, self.dtype, self.heads_by_kind.get(kind, self.heads))
        return made if "full_attention" in made or len(made) > 1 else next(iter(made.values()))


def keep_path(cache: SlotCache, branches: int, cached: Tensor, path: Tensor) -> None:
    """Move accepted nodes `path` `[B, D]` right behind the root's slot `cached` `[B, R]`."""
    order = torch.arange(1, path.shape[1] + 1, device=path.device)
    # beyond the accepted path a slot is copied onto itself
    source = torch.where(path >= 0, path + 1, order).repeat_interleave(branches, 0)
    first = cached.flatten()[:, None]
    cache.move(first + source, (first + order).expand_as(source))


def within(window: int, query: Tensor, key: Tensor) -> Tensor:
    """A sliding window (Beltagy et al. 2020, Longformer, arXiv 2004.05150, section 3.1)."""
    return query - key < window


def same_chunk(size: int, query: Tensor, key: Tensor) -> Tensor:
    """Chunked attention: only keys of the query's own chunk."""
    return query // size == key // size


def cached_layers(config: Any) -> int:
    """Return how many layers, the first ones, have keys and values of their own."""
    return int(config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0))


def layer_shapes(config: Any) -> dict[str, Any]:
    """Return the configuration of every kind of layer, `EVERY` for all where they have the same numbers of heads.

    Raises:
        UnsupportedModel: layers of one kind differ.
    """
    if not getattr(config, "is_heterogeneous", False):
        return {EVERY: config}
    try:
        return {kind: config.per_layer_config[kind] for kind in dict.fromkeys(config.layer_types)}
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModel(
            "layers of this model differ in more than their kind, which polydraft does not compute; use another model."
        ) from error


def nearness(config: Any) -> dict[str, Near] | None:
    """Which keys every kind of layer sees, of those before a query; None where all layers see everything."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"sliding_attention": partial(within, window)} if window else None
    known: dict[str, Near] = {"full_attention": None}
    if window:
        known["sliding_attention"] = partial(within, window)
    if chunk := getattr(config, "attention_chunk_size", None):
        known["chunked_attention"] = partial(same_chunk, chunk)
    if strange := [kind for kind in kinds if kind not in known]:
        raise UnsupportedModel(
            f"a layer of this model is of the kind {strange[0]!r}, which polydraft does not compute; "
            "it knows full_attention, sliding_attention, chunked_attention."
        )
    found = {kind: known[kind] for kind in dict.fromkeys(kinds)}
    return None if set(found) == {"full_attention"} else found


def context(config: Any) -> int:
    """Positions that rows may have; where frequencies would change further out, as many as they stay the same for."""
    longest = getattr(config, "max_position_embeddings", None) or 2**31
    ropes = [rope for rope in rope_settings(config) if stretches(rope)]
    first = [rope.get("original_max_position_embeddings") for rope in ropes]
    first.append(getattr(config, "original_max_position_embeddings", None) if ropes else None)
    return min([longest, *(size for size in first if size)])


def stretches(rope: dict[str, Any]) -> bool:
    """Whether frequencies depend on the longest position of a pass."""
    return rope.get("rope_type", rope.get("type")) in STRETCHED


def rope_settings(config: Any) -> list[dict[str, Any]]:
    """Rotary settings, of all layers or a kind of layer each."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [each for each in rope.values() if isinstance(each, dict)] or [rope]
