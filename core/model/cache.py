"""KV cache of a batch: a pool of rows, written in place at per-row slots and rolled back by length.

It implements transformers' `Cache`, so that unmodified model files use it. Live rows are the first of the pool: a new
row is appended after them, and the last row moves into the gap of one that is removed. Rows and slots grow by an
eighth as needed, the slots of a few rows by whole blocks: every reallocation copies the whole cache, and short rows
would otherwise reallocate every few passes. Attention sees the cache cut to the longest live row, rounded up as the
attention kernel requires (`BlockedViews`, `ContiguousViews`).
"""

from __future__ import annotations

import inspect
import math
import weakref
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from polydraft.core.batched_state import RowRemoval
from polydraft.core.model.attention import KEY_BLOCK
from polydraft.core.model.linear import return_freed_memory

SLOT_GRANULARITY = 16  # slots per row are a multiple of this
FEW_ROWS = 4  # up to so many rows get whole blocks of slots; the unused ones cost little memory compared with a model


@dataclass(frozen=True)
class BlockedViews:
    """View policy of kernels that read whole blocks of keys."""

    min_view_len: int = KEY_BLOCK  # the shortest view; the next ones are twice that, and so on up to whole blocks
    min_allocation: ClassVar[int] = KEY_BLOCK  # the fewest slots of a row in a small pool

    def allocation_len(self, slots: int, rows: int) -> int:
        """Return how many slots to allocate per row so that `slots` fit; whole blocks in a pool of few rows."""
        return round_up_slots(slots) if rows > FEW_ROWS else round_up_to_blocks(slots, self.min_allocation)

    def view_len(self, needed: int, slots: int) -> int:
        """Return how many of the `slots` allocated per row attention sees when `needed` are in use."""
        return round_up_to_blocks(needed, self.min_view_len)


@dataclass(frozen=True)
class ContiguousViews(BlockedViews):
    """View policy of kernels that need contiguous keys: all slots, unless less than half of them are in use."""

    min_allocation: ClassVar[int] = SLOT_GRANULARITY

    def view_len(self, needed: int, slots: int) -> int:
        return slots if slots <= 2 * needed else round_up_slots(needed)


class KVCacheLayer(CacheLayerMixin):
    """Keys and values of one layer, stored as `[rows, heads, slots, dim]`."""

    is_sliding = False

    keys: Tensor
    values: Tensor

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache = weakref.proxy(cache)  # a reference cycle would delay freeing until garbage collection

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self.allocate(key_states), self.allocate(value_states)
        self.is_initialized = True

    def allocate(self, like: Tensor) -> Tensor:
        """Return zeros for all rows, with the heads, dim and dtype of `like` `[…, heads, …, dim]`.

        The storage is one block longer, since the view of the last row may extend beyond it.
        """
        shape = self.cache.num_rows, like.shape[1], self.cache.num_slots, like.shape[3]
        storage = like.new_zeros(math.prod(shape) + KEY_BLOCK * like.shape[3])
        return storage[: math.prod(shape)].view(shape)

    def attention_view(self, store: Tensor) -> Tensor:
        """Return the part of `store` that attention sees of the rows being written.

        Views may be longer than rows; the slots of the next row that they cover are masked.
        """
        rows, (_, heads, _, size) = self.cache.write_rows, store.shape
        shape = rows.stop - rows.start, heads, self.cache.view_len, size
        return store.as_strided(shape, store.stride(), rows.start * store.stride(0))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write states `[rows, heads, N, dim]` to the cache's write slots; return the views that attention sees."""
        keys, values, slots = self.flat_storage(key_states, value_states)
        keys.index_copy_(0, slots, zero_nonfinite_(key_states.flatten(0, 2)))
        values.index_copy_(0, slots, zero_nonfinite_(value_states.flatten(0, 2)))
        return self.attention_views()

    def flat_storage(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values of all rows as `[slots, dim]`, and the flat slots that these states go to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # layers may be on several devices, see `TreeDecoder.is_multi_device`
        slots = self.cache.flat_write_slots(key_states.shape[1]).to(key_states.device)
        return self.keys.view(-1, self.keys.shape[3]), self.values.view(-1, self.values.shape[3]), slots

    def attention_views(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values that attention sees."""
        return self.attention_view(self.keys), self.attention_view(self.values)

    def reallocate(self) -> None:
        """Copy keys and values to storage of the cache's present size."""
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = self.allocate(old)
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.view_len, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.cache.num_slots


class KVCache(Cache):
    """KV cache of all layers; every batch row has `num_branches` physical rows, one per guidance branch."""

    layers: list[KVCacheLayer]  # type: ignore[assignment]
    num_branches: int
    num_rows: int  # physical rows allocated
    num_slots: int  # slots allocated per physical row
    num_live_rows: int  # physical rows in use, the first of the pool
    view_len: int  # slots that attention sees, as `view_policy` rounds `requested_slots`
    requested_slots: int  # argument of the last `ensure_capacity`
    rope_offsets: Tensor | None  # [live] rotary position minus slot; None where both are equal
    write_rows: slice  # physical rows of the next pass
    write_slots: Tensor  # [rows, N] slots that the next pass writes to

    def __init__(self, layers: int, branches: int = 1, view: BlockedViews | None = None) -> None:
        super().__init__(layers=[KVCacheLayer(self) for _ in range(layers)])
        self.num_branches, self.num_rows, self.num_slots, self.num_live_rows = branches, 0, 0, 0
        self.view_policy = view or BlockedViews()
        self.view_len, self.requested_slots = self.view_policy.view_len(1, SLOT_GRANULARITY), 0
        self.rope_offsets = None
        self.write_rows = slice(0, 0)
        self.write_slots = torch.empty(0, 0, dtype=torch.long)
        self.flat_slots_by_heads: dict[int, Tensor] = {}

    def add_rows(self, rows: int) -> slice:
        """Take `rows` more batch rows into use, with all their branches; return their physical rows."""
        first = self.num_live_rows
        self.num_live_rows += rows * self.num_branches
        if self.num_live_rows > self.num_rows:
            self.num_rows = max(self.num_live_rows, self.num_rows + self.num_rows // 8)
            self.reallocate()
        return slice(first, self.num_live_rows)

    def append_rope_offsets(self, offsets: Tensor) -> None:
        """Append the rotary position minus slot, `[rows]`, of rows that were just added."""
        self.rope_offsets = offsets if self.rope_offsets is None else torch.cat([self.rope_offsets, offsets])

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove batch rows; the last ones move into their place."""
        for gap, mover in zip(removal.gaps, removal.moved_rows, strict=True):
            into, out_of = (slice(row * self.num_branches, (row + 1) * self.num_branches) for row in (gap, mover))
            for layer in self.layers:
                if layer.is_initialized:
                    layer.keys[into], layer.values[into] = layer.keys[out_of], layer.values[out_of]
            if self.rope_offsets is not None:
                self.rope_offsets[into] = self.rope_offsets[out_of]
        self.num_live_rows = removal.num_kept * self.num_branches
        if self.rope_offsets is not None:
            self.rope_offsets = self.rope_offsets[: self.num_live_rows]

    def detach_storage(self) -> None:
        """Forget the storage, which a captured CUDA graph owns from now on; the cache must have no rows."""
        assert not self.num_live_rows
        self.num_rows = self.num_slots = self.requested_slots = 0
        for layer in self.layers:
            layer.is_initialized = False
            layer.keys = layer.values = torch.empty(0)

    def ensure_capacity(self, slots: int) -> None:
        """Allocate at least `slots` per row and set the view that attention sees accordingly."""
        if slots > self.num_slots:
            wanted = max(slots, self.num_slots + self.num_slots // 8)
            self.num_slots = self.view_policy.allocation_len(wanted, self.num_rows)
            self.reallocate()
        self.view_len, self.requested_slots = self.view_policy.view_len(slots, self.num_slots), slots

    def reallocate(self) -> None:
        """Copy all layers to storage of the present size."""
        for layer in self.layers:  # one by one, so that old and new storage of only one layer exist at once
            if layer.is_initialized:
                layer.reallocate()
        return_freed_memory()

    def set_write_slots(self, slots: Tensor, rows: slice | None = None) -> None:
        """Set the slots that the next forward pass writes to.

        Args:
            slots (Tensor): `[rows, N]`, one per position.
            rows (slice | None): Physical rows of the pass; None: all live ones.
        """
        self.write_slots, self.write_rows = slots, slice(0, self.num_live_rows) if rows is None else rows
        self.flat_slots_by_heads.clear()

    def flat_write_slots(self, heads: int) -> Tensor:
        """Return the write slots of all heads as indices into flat storage `[rows * heads * slots]`."""
        if heads not in self.flat_slots_by_heads:
            first = head_slot_offsets(self.num_rows, heads, self.num_slots, self.write_slots.device)[self.write_rows]
            self.flat_slots_by_heads[heads] = (first + self.write_slots[:, None]).flatten()
        return self.flat_slots_by_heads[heads]

    def copy_from(self, row: int, other: Cache) -> None:
        """Copy a transformers cache of one row to physical row `row`, from slot 0 on."""
        layers: list[Any] = other.layers
        for mine, theirs in zip(self.layers, layers, strict=True):
            if not mine.is_initialized:
                mine.lazy_initialization(theirs.keys, theirs.values)
            for store, states in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                store[row, :, : states.shape[2]] = states[0].nan_to_num(0, 0, 0)

    def move_slots(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` to `target`, `[live, M]` each; all sources are read before a target is written."""
        rows = torch.arange(len(source), device=source.device)[:, None]
        for layer in self.layers:
            here, out_of, into = (index.to(layer.keys.device) for index in (rows, source, target))
            for store in (layer.keys, layer.values):
                store[here, :, into] = store[here, :, out_of]


def zero_nonfinite_(states: Tensor) -> Tensor:
    """Replace NaN and infinity by 0, in place.

    An attention mask hides a slot by adding -inf, so that its weight is 0, and 0 times NaN or infinity is NaN: one such
    slot would spread to every query whose view it is in, of other nodes and of the rows before it. The output of the
    position that computed it is NaN all the same.
    """
    return states.nan_to_num_(0, 0, 0)


def cache_kwarg(cache: Cache, module: nn.Module) -> dict[str, Cache]:
    """Return `cache` as a keyword argument of a transformers module, whose name changed with release 5.24."""
    kind: Any = type(module)
    return {cache_parameter_name(kind): cache}


@lru_cache(maxsize=64)
def cache_parameter_name(kind: Any) -> str:
    """Return the name of the parameter by which a module class takes its KV cache."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


@lru_cache(maxsize=64)
def head_slot_offsets(rows: int, heads: int, slots: int, device: torch.device) -> Tensor:
    """Return the index of every head's first slot in flat storage, `[rows, heads, 1]`."""
    with torch.inference_mode(False):
        return (torch.arange(rows * heads, device=device) * slots).view(rows, heads, 1)


def free_memory_bytes(device: torch.device) -> int | None:
    """Return how much memory is free on `device`, or None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    fields = {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
    return 1024 * int(fields["MemAvailable"].split()[0]) if "MemAvailable" in fields else None


def round_up_slots(slots: int) -> int:
    """Round up to a multiple of SLOT_GRANULARITY."""
    return -(-slots // SLOT_GRANULARITY) * SLOT_GRANULARITY


def round_up_to_blocks(slots: int, shortest: int = KEY_BLOCK) -> int:
    """Round up to whole blocks of keys; below one block to `shortest`, twice that, and so on."""
    if slots > KEY_BLOCK // 2 or shortest == KEY_BLOCK:
        return -(-max(1, slots) // KEY_BLOCK) * KEY_BLOCK
    return shortest if slots <= shortest else round_up_to_blocks(slots, 2 * shortest)
