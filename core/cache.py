"""A key/value cache written in place at per-row slots: rows of any length, trees, rollback by length.

It stands behind transformers' `Cache`, so unmodified model files use it. Its view has a constant capacity: what a row
computes must not depend on how long its neighbours are (bf16 sums regroup when the width of the keys changes).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, stored `[rows, capacity, heads, dim]`."""

    is_sliding = False

    keys: Tensor
    values: Tensor

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, capacity = self.cache.rows, self.cache.capacity
        for name, states in (("keys", key_states), ("values", value_states)):
            setattr(self, name, states.new_zeros(rows, capacity, states.shape[1], states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `[rows, heads, N, dim]` at the cache's current slots; return whole-capacity views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            store.view(-1, *store.shape[2:]).index_copy_(0, self.cache.flat_slots, states.transpose(1, 2).flatten(0, 1))
        return self.keys.transpose(1, 2), self.values.transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.capacity, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.cache.capacity


class SlotCache(Cache):
    """Caches of all layers over `rows` physical rows (request rows times guidance branches)."""

    layers: list[SlotLayer]  # type: ignore[assignment]
    shifts: Tensor | None = None  # `[rows]`: rotary coordinate less slot, where a slot is not its own coordinate

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])
        self.rows, self.capacity = rows, capacity
        self.flat_slots = torch.empty(0, dtype=torch.long)

    def aim(self, slots: Tensor) -> None:
        """Where the next pass writes: `[rows, N]` slots, one a position."""
        base = torch.arange(self.rows, device=slots.device)[:, None] * self.capacity
        self.flat_slots = (base + slots).flatten()

    def adopt(self, row: int, other: Cache) -> None:
        """Copy what `other`, a cache of one row as transformers fills it, holds to `row`, from slot 0 on."""
        layers: list[Any] = other.layers
        for mine, theirs in zip(self.layers, layers, strict=True):
            if not mine.is_initialized:
                mine.lazy_initialization(theirs.keys, theirs.values)
            for store, states in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                store[row, : states.shape[2]] = states[0].transpose(0, 1)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` to `target`, both `[rows, M]`; every source is read before any target is written."""
        base = torch.arange(self.rows, device=source.device)[:, None] * self.capacity
        source, target = (base + source).flatten(), (base + target).flatten()
        for layer in self.layers:
            for store in (layer.keys, layer.values):
                flat = store.view(-1, *store.shape[2:])
                flat.index_copy_(0, target, flat.index_select(0, source))

    def select(self, rows: Tensor) -> SlotCache:
        """A cache of the given physical rows, in that order."""
        chosen = SlotCache(len(self.layers), len(rows), self.capacity)
        for mine, theirs in zip(chosen.layers, self.layers, strict=True):
            mine.keys, mine.values = theirs.keys.index_select(0, rows), theirs.values.index_select(0, rows)
            mine.is_initialized = True
        chosen.shifts = None if self.shifts is None else self.shifts[rows]
        return chosen

    @staticmethod
    def concat(caches: list[SlotCache]) -> SlotCache:
        """All rows of `caches`, which must share layers and capacity."""
        first = caches[0]
        joined = SlotCache(len(first.layers), sum(cache.rows for cache in caches), first.capacity)
        for index, layer in enumerate(joined.layers):
            layer.keys = torch.cat([cache.layers[index].keys for cache in caches])
            layer.values = torch.cat([cache.layers[index].values for cache in caches])
            layer.is_initialized = True
        shifts = [cache.shifts for cache in caches if cache.shifts is not None]
        joined.shifts = torch.cat(shifts) if shifts else None
        return joined
