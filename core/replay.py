"""Steps that are recorded once and replayed: a step is hundreds of short kernels, and to ask a GPU for one takes the
host longer than the kernel runs.

Between joins and leaves, and while attention sees as many keys, every step of a method asks for the same operations on
the same memory, so that all of them are one CUDA graph. What a step replaces (lengths, guesses, whatever the drafter
remembers) is copied, as the last thing of the recording, into the tensors it was read from. A batch that ends leaves
its recording, with the memory it is of, to the next of its shape. A method that waits for the device in the middle of a
step (a loop as long as the data says) is never recorded, nor is one over several devices.

    replays = Replays(recorder_of(target), recordings)
    made = replays.run(work, lap, state, [noise, drafts])    # what `work` returns; the next run writes over its tensors
    replays.forget()                                         # rows have joined or left
    replays.hand_on(state, [drafts])                         # the last has left
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polydraft.core.model.cache import SlotCache, free_bytes
from polydraft.core.state import State
from polydraft.core.target import CausalTarget

KEPT = 2  # recordings a method keeps for batches to come, each with the memory it is of:
SHARE = 0.1  # of what is free, at most
TURNS = 3  # steps that wait, and recordings that come to nothing, before no more are tried

Lap: TypeAlias = Callable[[str], None]  # ends a phase, see `Stopwatch`
T = TypeVar("T")


class Unsteady(Exception):
    """This step is not the same operations on the same memory as the next."""


class Recorder(Protocol):
    """How a device records."""

    def watched(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Do `work`; and whether the host waited for the device in it."""

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record what `work` asks for, which is not done; and what does it, as often as one likes."""


@dataclass(frozen=True)
class Recording:
    """shape: of what it reads, see `shape_of`; launch does it all; made: what it fills.

    tensors: of the dataclasses it was made over, in their order; stores: keys and values of their caches, a layer each;
    ahead: see `Replays`.
    """

    shape: Any
    launch: Callable[[], None]
    made: Any
    tensors: list[Tensor]
    stores: list[list[tuple[Tensor, Tensor]]]
    ahead: list[int]

    @property
    def bytes(self) -> int:
        """What keys and values take."""
        return sum(store.nbytes for layers in self.stores for pair in layers for store in pair)

    def taken_over(self, owners: list[Any]) -> None:
        """From now on `owners` are in the memory that it reads."""
        places = [(owner, name, value) for owner in owners for name, value in tensors_of(owner)]
        for (owner, name, value), own in zip(places, self.tensors, strict=True):
            own.copy_(value)
            vars(owner)[name] = own
        for cache, layers in zip(caches_of(owners), self.stores, strict=True):
            for layer, (keys, values) in zip(cache.layers, layers, strict=True):
                keys.copy_(layer.keys)
                values.copy_(layer.values)
                layer.keys, layer.values = keys, values


@dataclass
class Replays:
    """Of one batch. recorder: None where every step is asked for anew. left: recordings that nobody uses, the latest
    last.

    last: the shape that the last step left; steady: the one before left it too. ahead: slots behind the longest row
    that it wanted, a cache each. turns: how often more a recording may come to nothing; refused: why the last did.
    replayed: steps so far.
    """

    recorder: Recorder | None = None
    left: list[Recording] = field(default_factory=list)
    recording: Recording | None = None
    ahead: list[int] = field(default_factory=list)
    last: Any = None
    steady: bool = False
    turns: int = TURNS
    refused: str = ""
    replayed: int = 0

    def forget(self) -> None:
        self.recording, self.last, self.steady = None, None, False

    def hand_on(self, state: State, others: list[Any]) -> None:
        """Leave the recording, and the memory of caches with it, to another batch: this one has no rows."""
        if self.recording is not None:
            free = free_bytes(state.tokens.device)
            if free is None or self.recording.bytes < free * SHARE:
                for cache in caches_of(every_owner(state, others)):
                    cache.give_up()
                self.left[:] = [*self.left, self.recording][-KEPT:]
        self.forget()

    def run(self, work: Callable[[Lap], T], lap: Lap, state: State, others: list[Any]) -> T:
        """Do `work` over the rows of `state` and `others` (dataclasses, or None), replayed where that is possible."""
        if self.recorder is None or not self.turns:
            return work(lap)
        if self.last is not None:
            made = self.replay(self.recorder, work, state, every_owner(state, others))
            if made is not None:
                lap("score")
                return made
        made, waited = self.recorder.watched(lambda: work(silent))
        lap("score")
        owners = every_owner(state, others)  # some begin with their first step
        found = shape_of(owners)
        again = found == self.last  # the first of a shape may well wait for what is made once
        self.turns -= again and waited
        self.steady = again and not waited
        self.last, self.ahead = found, [cache.asked - state.longest for cache in caches_of(owners)]
        return made

    def replay(self, recorder: Recorder, work: Callable[[Lap], Any], state: State, owners: list[Any]) -> Any:
        """What the step made, recorded if it has not been; None where it must be done as usual."""
        state.reach(self.ahead[0])  # what `work` would find out itself
        for cache, ahead in zip(caches_of(owners), self.ahead, strict=True):
            cache.reach(state.longest + ahead)
        found = shape_of(owners)
        if found != self.last:
            self.forget()
            return None
        if self.recording is None and not self.take_over(found, owners):
            if not self.steady:
                return None  # the step before may have made what is made once
            try:
                self.recording = recorded(recorder, work, found, owners, self.ahead)
            except (Unsteady, RuntimeError) as error:  # what CUDA cannot record it says so
                self.turns, self.refused = self.turns - 1, str(error)
                self.forget()
                return None
        assert self.recording is not None
        self.recording.launch()
        self.replayed += 1
        return self.recording.made

    def take_over(self, shape: Any, owners: list[Any]) -> bool:
        """Go on with what a batch of this shape has left, if one has."""
        for place, recording in enumerate(self.left):
            if recording.shape == shape and recording.ahead == self.ahead:
                self.recording = self.left.pop(place)
                self.recording.taken_over(owners)
                return True
        return False


def silent(phase: str) -> None:
    """Phases of a step are not told apart where it may be recorded."""


def recorded(
    recorder: Recorder, work: Callable[[Lap], Any], shape: Any, owners: list[Any], ahead: list[int]
) -> Recording:
    """Record a step over the tensors of `owners`, which stay theirs."""
    before = [dict(vars(owner)) for owner in owners]
    for owner in owners:  # memory of their own, for some are parts of others
        for name, value in tensors_of(owner):
            vars(owner)[name] = value.clone()
    kept = [dict(vars(owner)) for owner in owners]
    tensors = [value for owner in owners for _, value in tensors_of(owner)]
    stores = [[(layer.keys, layer.values) for layer in cache.layers] for cache in caches_of(owners)]

    def whole() -> Any:
        made = work(silent)
        replaced = []
        for owner, was in zip(owners, kept, strict=True):
            for name, old in was.items():
                value = vars(owner)[name]
                if isinstance(value, Tensor) and value is not old:
                    replaced.append((old, value))
                elif isinstance(value, int | float | str | list) and value != old:
                    raise Unsteady(f"a step changes {name}, which the host keeps")
        if any(old.shape != new.shape or old.dtype != new.dtype for old, new in replaced):
            raise Unsteady("a step leaves tensors of other shapes")
        copies = [new.clone() for _, new in replaced]  # some are parts of what is written over
        for (old, _), copy in zip(replaced, copies, strict=True):
            old.copy_(copy)
        return made

    left = before  # nothing is done unless it was recorded
    try:
        made, launch = recorder.record(whole)
        left = kept
    finally:
        for owner, was in zip(owners, left, strict=True):
            vars(owner).clear()
            vars(owner).update(was)
    return Recording(shape, launch, made, tensors, stores, ahead)


def shape_of(owners: list[Any]) -> Any:
    """What a step that may be replayed leaves as it is, and what it depends on besides the values of tensors."""
    found: list[Any] = []
    for owner in owners:
        for part in fields(owner):
            value = getattr(owner, part.name)
            if isinstance(value, Tensor):
                found.append((part.name, tuple(value.shape), value.dtype))
            elif isinstance(value, SlotCache):
                found.append((value.rows, value.slots, value.width, value.live))
            elif isinstance(value, int | float | str | list) and part.name != "reached":
                found.append((part.name, list(value) if isinstance(value, list) else value))
    return found


def every_owner(state: State, others: list[Any]) -> list[Any]:
    return [owner for rows in (state, *others) for owner in owners_of(rows)]


def owners_of(rows: Any) -> Iterator[Any]:
    """`rows` and the dataclasses in its fields, which hold what a step replaces."""
    if rows is not None and is_dataclass(rows):
        yield rows
        for part in fields(rows):
            value = getattr(rows, part.name)
            if is_dataclass(value):
                yield from owners_of(value)


def tensors_of(owner: Any) -> list[tuple[str, Tensor]]:
    named = ((part.name, getattr(owner, part.name)) for part in fields(owner))
    return [(name, value) for name, value in named if isinstance(value, Tensor)]


def caches_of(owners: list[Any]) -> list[SlotCache]:
    """The target's first."""
    named = (getattr(owner, part.name) for owner in owners for part in fields(owner))
    return [value for value in named if isinstance(value, SlotCache)]


class Graphs:
    """Records CUDA graphs. What a graph reads beside its own memory is kept for it: it knows addresses alone."""

    def watched(self, work: Callable[[], T]) -> tuple[T, bool]:
        with warnings.catch_warnings(record=True) as heard, waits_told():
            warnings.simplefilter("always")
            made = work()
        return made, any("synchroniz" in str(warning.message) for warning in heard)

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        graph, reads = torch.cuda.CUDAGraph(), Reads()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), reads:
            made = work()
        outside = list(reads.outside.values())

        def launch() -> None:
            graph.replay()
            assert outside is not None  # alive as long as the graph

        return made, launch


@contextmanager
def waits_told() -> Iterator[None]:
    """torch warns whenever the host waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Reads(TorchDispatchMode):
    """Collects the tensors that operations read and none of them made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[int] = set()
        self.outside: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and (place := value.untyped_storage().data_ptr()) not in self.made:
                self.outside.setdefault(place, value)
        out = func(*args, **kwargs)
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and (place := value.untyped_storage().data_ptr()) not in self.outside:
                self.made.add(place)
        return out


def recorder_of(target: CausalTarget) -> Recorder | None:
    """What records steps of `target`; None where nothing does."""
    network = getattr(target, "network", None)  # a model that computes in a way of its own has none
    return None if target.device.type != "cuda" or network is None or network.spread else Graphs()
