"""Keys and values of a batch: a pool of rows written in place at per-row slots, rolled back by length.

It stands behind transformers' `Cache`, so unmodified model files use it. Live rows are the first of the pool: a row
joins behind them and, where one leaves, the last moves into the gap. Rows and slots grow by an eighth as needed, slots
of few rows by whole blocks: to grow is to copy everything, and short rows would do it every few passes. What attention
sees is cut to the longest live row as its kernel wants it (`Blocks`, `EndToEnd`).
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

from polydraft.core.model.attention import KEYS
from polydraft.core.model.kernels import return_freed
from polydraft.core.rows import Departure

GRAIN = 16  # slots that rows grow by at least
FEW = 4  # rows of a pool whose slots may be whole blocks: what they do not use is little beside a model


@dataclass(frozen=True)
class Blocks:
    """Views of whole blocks of keys, below one block of `shortest`, twice that and so on."""

    shortest: int = KEYS
    kept: ClassVar[int] = KEYS  # slots that few rows have at least, twice that and so on

    def room(self, slots: int, rows: int) -> int:
        """Slots that each of so many physical rows gets to hold `slots`; of few rows whole blocks, which last."""
        return in_grains(slots) if rows > FEW else blocks(slots, self.kept)

    def width(self, needed: int, slots: int) -> int:
        """Slots that attention sees where rows need so many of those they have."""
        return blocks(needed, self.shortest)


@dataclass(frozen=True)
class EndToEnd(Blocks):
    """Views of all slots there are, unless rows need less than half of them, so that keys need no copy."""

    kept: ClassVar[int] = GRAIN

    def width(self, needed: int, slots: int) -> int:
        return slots if slots <= 2 * needed else in_grains(needed)


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, stored `[rows, heads, slots, dim]`."""

    is_sliding = False

    keys: Tensor
    values: Tensor

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = weakref.proxy(cache)  # in a circle keys and values would wait for the garbage collector

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self.store(key_states), self.store(value_states)
        self.is_initialized = True

    def store(self, like: Tensor) -> Tensor:
        """Zeros for all rows, as `like` `[…, heads, …, dim]`; behind them what a view of the last row sees too much."""
        room = self.cache.rows, like.shape[1], self.cache.slots, like.shape[3]
        whole = like.new_zeros(math.prod(room) + KEYS * like.shape[3])
        return whole[: math.prod(room)].view(room)

    def view(self, store: Tensor) -> Tensor:
        """What attention sees of the aimed rows. Views are wider than rows: what is seen of the next row is masked."""
        rows, (_, heads, _, size) = self.cache.aimed_rows, store.shape
        shape = rows.stop - rows.start, heads, self.cache.width, size
        return store.as_strided(shape, store.stride(), rows.start * store.stride(0))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `[rows, heads, N, dim]` where the cache aims; return views of the rows it aims at."""
        keys, values, places = self.stores(key_states, value_states)
        keys.index_copy_(0, places, finite_(key_states.flatten(0, 2)))
        values.index_copy_(0, places, finite_(value_states.flatten(0, 2)))
        return self.views()

    def stores(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of everybody, flat `[slots, dim]`, and where in them such states go."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        places = self.cache.places(key_states.shape[1]).to(key_states.device)  # of this layer, see `Network.spread`
        return self.keys.view(-1, self.keys.shape[3]), self.values.view(-1, self.values.shape[3]), places

    def views(self) -> tuple[Tensor, Tensor]:
        return self.view(self.keys), self.view(self.values)

    def grow(self) -> None:
        """Room for what the cache holds now."""
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = self.store(old)
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.width, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.cache.slots


class SlotCache(Cache):
    """Caches of all layers over `rows` physical rows, `branches` for each live row of the batch.

    live: physical rows in use; width: slots that attention sees, as `view` says; asked: how many `reach` was last asked
    for. shifts: `[live]`, rotary coordinate less slot, where a slot is not its own coordinate.
    """

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, layers: int, branches: int = 1, view: Blocks | None = None) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])
        self.branches, self.rows, self.slots, self.live = branches, 0, 0, 0
        self.view = view or Blocks()
        self.width, self.asked = self.view.width(1, GRAIN), 0
        self.shifts: Tensor | None = None
        self.aimed_rows = slice(0, 0)
        self.aimed_slots = torch.empty(0, 0, dtype=torch.long)
        self.found_places: dict[int, Tensor] = {}

    def join(self, rows: int) -> slice:
        """Take `rows` more rows into use, with all their branches; which they are."""
        first = self.live
        self.live += rows * self.branches
        if self.live > self.rows:
            self.rows = max(self.live, self.rows + self.rows // 8)
            self.grow()
        return slice(first, self.live)

    def shift(self, own: Tensor) -> None:
        """Rotary coordinates less slots, `[rows]`, of rows that have just joined."""
        self.shifts = own if self.shifts is None else torch.cat([self.shifts, own])

    def leave(self, leaving: Departure) -> None:
        """Rows leave; the physical rows of the last ones move into their places."""
        for gap, mover in zip(leaving.gaps, leaving.movers, strict=True):
            into, out_of = (slice(row * self.branches, (row + 1) * self.branches) for row in (gap, mover))
            for layer in self.layers:
                if layer.is_initialized:
                    layer.keys[into], layer.values[into] = layer.keys[out_of], layer.values[out_of]
            if self.shifts is not None:
                self.shifts[into] = self.shifts[out_of]
        self.live = leaving.left * self.branches
        if self.shifts is not None:
            self.shifts = self.shifts[: self.live]

    def give_up(self) -> None:
        """Memory belongs to somebody else from now on; there are no rows."""
        assert not self.live
        self.rows = self.slots = self.asked = 0
        for layer in self.layers:
            layer.is_initialized = False
            layer.keys = layer.values = torch.empty(0)

    def reach(self, slots: int) -> None:
        """Attention sees at least so many slots from now on, and no more than its kernel wants."""
        if slots > self.slots:
            self.slots = self.view.room(max(slots, self.slots + self.slots // 8), self.rows)
            self.grow()
        self.width, self.asked = self.view.width(slots, self.slots), slots

    def grow(self) -> None:
        for layer in self.layers:  # one after the other: the old and the new of a single layer are held at once
            if layer.is_initialized:
                layer.grow()
        return_freed()

    def aim(self, slots: Tensor, rows: slice | None = None) -> None:
        """Where the next pass writes: `[rows, N]` slots of `rows` (default: all live ones), one a position."""
        self.aimed_slots, self.aimed_rows = slots, slice(0, self.live) if rows is None else rows
        self.found_places.clear()

    def places(self, heads: int) -> Tensor:
        """The aimed slots of all heads as places of flat storage."""
        if heads not in self.found_places:
            first = lines(self.rows, heads, self.slots, self.aimed_slots.device)[self.aimed_rows]
            self.found_places[heads] = (first + self.aimed_slots[:, None]).flatten()
        return self.found_places[heads]

    def adopt(self, row: int, other: Cache) -> None:
        """Copy what `other`, a cache of one row as transformers fills it, holds to `row`, from slot 0 on."""
        layers: list[Any] = other.layers
        for mine, theirs in zip(self.layers, layers, strict=True):
            if not mine.is_initialized:
                mine.lazy_initialization(theirs.keys, theirs.values)
            for store, states in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                store[row, :, : states.shape[2]] = states[0].nan_to_num(0, 0, 0)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` to `target` `[live, M]` of all live rows; sources are read before targets are written."""
        rows = torch.arange(len(source), device=source.device)[:, None]
        for layer in self.layers:
            here, out_of, into = (places.to(layer.keys.device) for places in (rows, source, target))
            for store in (layer.keys, layer.values):
                store[here, :, into] = store[here, :, out_of]


def finite_(states: Tensor) -> Tensor:
    """Replace what is not a number by 0, in place.

    A mask hides a slot by -inf and its weight by 0, and neither hides NaN or infinity: one such slot would spread to
    every query whose view it is in, of other nodes and of the rows before it. What computed it is NaN all the same.
    """
    return states.nan_to_num_(0, 0, 0)


def over(cache: Cache, module: nn.Module) -> dict[str, Cache]:
    """`cache` as the argument of one of transformers' modules that takes one: its name changed with release 5.24."""
    kind: Any = type(module)
    return {cache_argument(kind): cache}


@lru_cache(maxsize=64)
def cache_argument(kind: Any) -> str:
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


@lru_cache(maxsize=64)
def lines(rows: int, heads: int, slots: int, device: torch.device) -> Tensor:
    """Where in flat storage every head's slots begin, `[rows, heads, 1]`."""
    with torch.inference_mode(False):
        return (torch.arange(rows * heads, device=device) * slots).view(rows, heads, 1)


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on `device`; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    told = {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
    return 1024 * int(told["MemAvailable"].split()[0]) if "MemAvailable" in told else None


def in_grains(slots: int) -> int:
    return -(-slots // GRAIN) * GRAIN


def blocks(slots: int, shortest: int = KEYS) -> int:
    """Whole blocks of keys that hold `slots`; below one block `shortest`, twice that, and so on."""
    if slots > KEYS // 2 or shortest == KEYS:
        return -(-max(1, slots) // KEYS) * KEYS
    return shortest if slots <= shortest else blocks(slots, 2 * shortest)
