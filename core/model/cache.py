"""KV cache of a batch: a pool of rows, written in place at per-row slots and rolled back by length.

It implements transformers' `Cache`, so that unmodified model files use it. Live rows are the first of the pool: a new
row is appended after them, and the last row moves into the gap of one that is removed. Rows and slots grow by an
eighth as needed, the slots of a few rows by whole blocks: every reallocation copies the whole cache, and short rows
would otherwise reallocate every few passes. Attention sees the cache cut to the longest live row, rounded up as the
attention kernel requires (`BlockedViews`, `ContiguousViews`).
"""

from __future__ import annotations

import ctypes
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

SLOT_GRANULARITY = 16  # slots allocated per row are a multiple of this
FEW_ROWS = 4  # up to this many rows get whole blocks of slots; unused ones cost little memory compared with a model


@dataclass(frozen=True)
class BlockedViews:
    """Policy of how many KV slots to allocate, and how many attention reads, for kernels that read whole key blocks."""

    min_view_len: int = KEY_BLOCK  # the shortest view; the next ones are twice that, and so on up to whole blocks
    min_allocation: ClassVar[int] = KEY_BLOCK  # the fewest slots of a row in a small pool

    def allocation_len(self, slots: int, rows: int) -> int:
        """Return the number of slots to allocate per row so that `slots` fit, when the pool has `rows` rows."""
        return round_up_slots(slots) if rows > FEW_ROWS else round_up_to_blocks(slots, self.min_allocation)

    def view_len(self, num_used: int, num_allocated: int) -> int:
        """Return the number of keys that attention reads per row (the view).

        Args:
            num_used (int): Slots in use by the longest row.
            num_allocated (int): Slots allocated per row; the view may be longer, what it exceeds them by is masked.
        """
        return round_up_to_blocks(num_used, self.min_view_len)


@dataclass(frozen=True)
class ContiguousViews(BlockedViews):
    """Policy of how many KV slots to allocate, and how many attention reads, for kernels that need contiguous keys.

    A view of all allocated slots is contiguous; a shorter one has to be copied by the kernel.
    """

    min_allocation: ClassVar[int] = SLOT_GRANULARITY

    def view_len(self, num_used: int, num_allocated: int) -> int:
        """Return the number of keys that attention reads per row: all allocated slots, unless over half are unused.

        Args:
            num_used (int): Slots in use by the longest row.
            num_allocated (int): Slots allocated per row.
        """
        return num_allocated if num_allocated <= 2 * num_used else round_up_slots(num_used)


@dataclass(frozen=True)
class ExactViews(BlockedViews):
    """Policy for kernels whose sums do not depend on the view: it ends with the longest row."""

    def view_len(self, num_used: int, num_allocated: int) -> int:
        """Return the number of keys that attention reads per row: `num_used`, rounded up to whole vectors."""
        return round_up_slots(num_used)


class KVCacheLayer(CacheLayerMixin):
    """Keys and values of one layer, stored as `[rows, heads, slots, dim]`; one row per batch row and branch."""

    is_sliding = False

    keys: Tensor
    values: Tensor

    def __init__(self, cache: KVCache) -> None:
        """Create the layer of `cache`; its storage is allocated when keys are first written."""
        super().__init__()
        self.cache: Any = weakref.proxy(cache)  # a reference cycle would delay freeing until garbage collection

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate storage with the heads, size and dtype of the first states, `[…, heads, …, dim]` each."""
        self.keys, self.values = self.allocate(key_states), self.allocate(value_states)
        self.is_initialized = True

    def allocate(self, like: Tensor) -> Tensor:
        """Return zeros `[rows, heads, slots, dim]` for all rows of the cache.

        `like` `[…, heads, …, dim]` gives heads, dim, dtype and device. One block of slots more is allocated after them,
        since the attention view of the last row may extend beyond its slots.
        """
        shape = self.cache.num_rows, like.shape[1], self.cache.num_slots, like.shape[3]
        storage = like.new_zeros(math.prod(shape) + KEY_BLOCK * like.shape[3])
        return storage[: math.prod(shape)].view(shape)

    def attention_view(self, store: Tensor) -> Tensor:
        """Return the keys or values `store` of the rows being written, as attention reads them.

        Args:
            store (Tensor): `[rows, heads, slots, dim]`, `keys` or `values` of this layer.

        Returns:
            Tensor: `[write rows, heads, view_len, dim]`, a view. If it is longer than a row it overlaps the next row,
            whose slots are masked.
        """
        rows, (_, heads, _, dim) = self.cache.write_rows, store.shape
        shape = rows.stop - rows.start, heads, self.cache.view_len, dim
        # strides of the whole storage, from the first write row on; `allocate` adds memory that the last view may cover
        return store.as_strided(shape, store.stride(), rows.start * store.stride(0))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values to the cache's write slots (implements transformers' `CacheLayerMixin.update`).

        Args:
            key_states (Tensor): `[write rows, heads, N, dim]`, keys of N new positions per row. NaN and infinity are
                replaced by 0, since they would spread to other rows through masked slots (`zero_nonfinite_`).
            value_states (Tensor): `[write rows, heads, N, dim]`, values, in which they are replaced, too.

        Returns:
            Keys and values that attention reads, `[write rows, heads, view_len, dim]` each.
        """
        keys, values, slots = self.flat_storage(key_states, value_states)
        # one line of the flattened storage per row, head and slot; `slots` are indices of the lines to write
        keys.index_copy_(0, slots, zero_nonfinite_(key_states.flatten(0, 2)))
        values.index_copy_(0, slots, zero_nonfinite_(value_states.flatten(0, 2)))
        return self.attention_views()

    def flat_storage(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the storage of the layer as matrices, and the indices of the lines to write new states to.

        A line holds the key or value of one cache row, head and slot. Of the states only shape, dtype and device are
        read, to allocate the storage at the first call.

        Args:
            key_states (Tensor): `[write rows, heads, N, dim]`, keys of N new positions per row.
            value_states (Tensor): `[write rows, heads, N, dim]`, their values.

        Returns:
            Keys and values, `[rows * heads * slots, dim]` each, and indices into them, `[write rows * heads * N]`.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # layers may be on several devices, see `TreeDecoder.is_multi_device`
        slots = self.cache.flat_write_slots(key_states.shape[1]).to(key_states.device)
        return self.keys.view(-1, self.keys.shape[3]), self.values.view(-1, self.values.shape[3]), slots

    def attention_views(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values that attention reads, `[write rows, heads, view_len, dim]` each."""
        return self.attention_view(self.keys), self.attention_view(self.values)

    def resize_storage(self) -> None:
        """Copy keys and values to new storage of the cache's present number of rows and slots."""
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = self.allocate(old)
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys that a mask must cover (called by transformers)."""
        return self.cache.view_len, 0

    def get_seq_length(self) -> int:
        """Return 0, since positions are always passed to the model (called by transformers)."""
        return 0

    def get_max_length(self) -> int:
        """Return the number of slots per row (called by transformers)."""
        return self.cache.num_slots


class KVCache(Cache):
    """KV cache of all layers; every batch row has `num_branches` physical rows, one per guidance branch."""

    layers: list[KVCacheLayer]  # type: ignore[assignment]
    num_branches: int
    num_rows: int  # physical rows allocated
    num_slots: int  # slots allocated per physical row
    num_live_rows: int  # physical rows in use, the first of the pool
    view_len: int  # keys that attention reads per row, at least `requested_slots` (see `BlockedViews.view_len`)
    requested_slots: int  # argument of the last `ensure_capacity`
    rope_offsets: Tensor | None  # [live] rotary position minus slot; None where both are equal
    write_rows: slice  # physical rows of the next pass
    write_slots: Tensor  # [rows, N] slots that the next pass writes to
    # keys and values of the same rows that do not grow, such as a sound's, which all positions also attend to: its
    # `requested_slots`; None without any
    cross: KVCache | None = None

    def __init__(self, num_layers: int, num_branches: int = 1, view_policy: BlockedViews | None = None) -> None:
        """Create a cache without rows.

        Args:
            num_layers (int): Layers of the model that have keys and values.
            num_branches (int): Guidance branches per batch row.
            view_policy (BlockedViews | None): How many slots are allocated and read, as the attention kernel requires.
        """
        super().__init__(layers=[KVCacheLayer(self) for _ in range(num_layers)])
        self.num_branches, self.num_rows, self.num_slots, self.num_live_rows = num_branches, 0, 0, 0
        self.view_policy: BlockedViews = view_policy or BlockedViews()
        self.view_len, self.requested_slots = self.view_policy.view_len(1, SLOT_GRANULARITY), 0
        self.rope_offsets = None
        self.write_rows = slice(0, 0)
        self.write_slots = torch.empty(0, 0, dtype=torch.long)
        self.flat_slots_by_heads: dict[int, Tensor] = {}  # results of `flat_write_slots` for the present write slots
        self.addresses: tuple[Any, Any] | None = None  # result of `storage_addresses` for the present storage

    def add_rows(self, num_batch_rows: int) -> slice:
        """Append batch rows, each with a physical row per guidance branch.

        Returns:
            slice: Their physical rows.
        """
        if self.cross is not None:
            self.cross.add_rows(num_batch_rows)
        first = self.num_live_rows
        self.num_live_rows += num_batch_rows * self.num_branches
        if self.num_live_rows > self.num_rows:
            # by at least an eighth, so that adding rows one by one does not copy the cache every time
            self.num_rows = max(self.num_live_rows, self.num_rows + self.num_rows // 8)
            self.resize_storage()
        return slice(first, self.num_live_rows)

    def append_rope_offsets(self, offsets: Tensor) -> None:
        """Set how far rotary positions of newly added rows exceed their slots.

        Args:
            offsets (Tensor): `[new physical rows]` int64.
        """
        self.rope_offsets = offsets if self.rope_offsets is None else torch.cat([self.rope_offsets, offsets])

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove batch rows with all their branches; the last rows are copied into the gaps.

        Batch row i has the physical rows i * num_branches … (i + 1) * num_branches - 1. Storage is not shrunk.
        """
        if self.cross is not None:
            self.cross.remove_rows(removal)
        for gap, moved in zip(removal.gaps, removal.moved_rows, strict=True):
            target, source = (slice(row * self.num_branches, (row + 1) * self.num_branches) for row in (gap, moved))
            for layer in self.layers:
                if layer.is_initialized:
                    layer.keys[target], layer.values[target] = layer.keys[source], layer.values[source]
            if self.rope_offsets is not None:
                self.rope_offsets[target] = self.rope_offsets[source]
        self.num_live_rows = removal.num_kept * self.num_branches
        if self.rope_offsets is not None:
            self.rope_offsets = self.rope_offsets[: self.num_live_rows]

    def detach_storage(self) -> None:
        """Drop the storage of a cache without rows, since a captured CUDA graph keeps it for another batch."""
        assert not self.num_live_rows
        if self.cross is not None:
            self.cross.detach_storage()
        self.num_rows = self.num_slots = self.requested_slots = 0
        self.addresses = None
        for layer in self.layers:
            layer.is_initialized = False
            layer.keys = layer.values = torch.empty(0)

    def ensure_capacity(self, slots: int) -> None:
        """Allocate more slots if a row has fewer than `slots`, and let attention read that many keys per row."""
        if slots > self.num_slots:
            # by at least an eighth, so that rows that grow slot by slot do not copy the cache every time
            min_slots = max(slots, self.num_slots + self.num_slots // 8)
            self.num_slots = self.view_policy.allocation_len(min_slots, self.num_rows)
            self.resize_storage()
        self.view_len, self.requested_slots = self.view_policy.view_len(slots, self.num_slots), slots

    def resize_storage(self) -> None:
        """Copy all layers to new storage of `num_rows` rows and `num_slots` slots."""
        self.addresses = None
        for layer in self.layers:  # one by one, so that old and new storage of only one layer exist at once
            if layer.is_initialized:
                layer.resize_storage()
        return_freed_memory()

    def set_write_slots(self, slots: Tensor, rows: slice | None = None) -> None:
        """Set the slots that the next forward pass writes keys and values to.

        Args:
            slots (Tensor): `[rows, N]` int64, one per position of the pass.
            rows (slice | None): Physical rows of the pass; None: all live ones.
        """
        self.write_slots, self.write_rows = slots, slice(0, self.num_live_rows) if rows is None else rows
        self.flat_slots_by_heads.clear()

    def flat_write_slots(self, heads: int) -> Tensor:
        """Return the write slots of all heads as indices into storage flattened to `[rows * heads * slots, dim]`.

        They are kept until the write slots change, since all layers with equally many heads need the same.

        Args:
            heads (int): Key/value heads of the layer.

        Returns:
            Tensor: `[write rows * heads * N]`, for N new positions per row.
        """
        if heads not in self.flat_slots_by_heads:
            first_slots = head_slot_offsets(self.num_rows, heads, self.num_slots, self.write_slots.device)
            flat_slots = first_slots[self.write_rows] + self.write_slots[:, None]  # [write rows, heads, N]
            self.flat_slots_by_heads[heads] = flat_slots.flatten()
        return self.flat_slots_by_heads[heads]

    def storage_addresses(self, heads: int, dim: int, dtype: torch.dtype) -> tuple[Any, Any]:
        """Return the addresses of the keys and of the values of all layers, as arrays of C pointers.

        Storage is allocated at the first call, for `heads` key/value heads of size `dim`.
        """
        if self.addresses is None:
            states = torch.empty(1, heads, 1, dim, dtype=dtype)
            for layer in self.layers:
                if not layer.is_initialized:
                    layer.lazy_initialization(states, states)
            pointers = ctypes.c_void_p * len(self.layers)
            self.addresses = (
                pointers(*(layer.keys.data_ptr() for layer in self.layers)),
                pointers(*(layer.values.data_ptr() for layer in self.layers)),
            )
        return self.addresses

    def copy_from(self, row: int, other: Cache) -> None:
        """Copy the keys and values of another cache to a row, from slot 0 on.

        NaN and infinity are replaced by 0, since they would spread to other rows through masked slots.

        Args:
            row (int): Physical row to write to.
            other (Cache): Cache of one row and L positions; its layers have `keys` and `values` `[1, heads, L, dim]`.
        """
        source_layers: list[Any] = other.layers
        for layer, source in zip(self.layers, source_layers, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(source.keys, source.values)
            for store, states in ((layer.keys, source.keys), (layer.values, source.values)):
                store[row, :, : states.shape[2]] = states[0].nan_to_num(0, 0, 0)

    def move_slots(self, source: Tensor, target: Tensor) -> None:
        """Copy keys and values from slots to other slots of the same row.

        Args:
            source (Tensor): `[live rows, M]`, M slots per row to copy from; all are read before any is overwritten.
            target (Tensor): `[live rows, M]`, slots to copy to.
        """
        rows = torch.arange(len(source), device=source.device)[:, None]
        for layer in self.layers:  # which may be on several devices
            row_index, source_slots, target_slots = (index.to(layer.keys.device) for index in (rows, source, target))
            for store in (layer.keys, layer.values):
                store[row_index, :, target_slots] = store[row_index, :, source_slots]


def zero_nonfinite_(states: Tensor) -> Tensor:
    """Replace NaN and infinity in keys or values of any shape by 0, in place.

    An attention mask hides a slot by adding -inf, so that its weight is 0, and 0 times NaN or infinity is NaN. One such
    slot would turn the output of every query into NaN whose view contains it, also in other nodes and rows. The row
    that the NaN belongs to is still noticed, since the output of the position that computed it is NaN.
    """
    return states.nan_to_num_(0, 0, 0)


def cache_kwarg(cache: Cache, module: nn.Module) -> dict[str, Cache]:
    """Return `cache` as a keyword argument of a transformers module, whose name changed with release 5.24."""
    module_class: Any = type(module)
    return {cache_parameter_name(module_class): cache}


@lru_cache(maxsize=64)
def cache_parameter_name(module_class: Any) -> str:
    """Return the name of the parameter by which the `forward` of a module class takes its KV cache."""
    return "cache" if "cache" in inspect.signature(module_class.forward).parameters else "past_key_values"


@lru_cache(maxsize=64)
def head_slot_offsets(rows: int, heads: int, slots: int, device: torch.device) -> Tensor:
    """Return `[rows, heads, 1]`, the index of every head's slot 0 in storage flattened to `[rows * heads * slots]`."""
    with torch.inference_mode(False):
        return (torch.arange(rows * heads, device=device) * slots).view(rows, heads, 1)


def free_memory_bytes(device: torch.device) -> int | None:
    """Return the free memory of `device` in bytes, or None if the system does not report it."""
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
    """Round up to a multiple of KEY_BLOCK, or, up to half of it, to `shortest` times a power of two."""
    if slots > KEY_BLOCK // 2 or shortest == KEY_BLOCK:
        return -(-max(1, slots) // KEY_BLOCK) * KEY_BLOCK  # division rounded up; at least one block
    return shortest if slots <= shortest else round_up_to_blocks(slots, 2 * shortest)
