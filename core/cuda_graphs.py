"""CUDA graphs of decoding steps.

A step launches hundreds of short kernels, and launching one takes the host longer than the kernel runs. While no
request is added or removed and attention sees as many KV slots, every step of a method runs the same operations on the
same memory, so all of them are captured as one CUDA graph and replayed. What a step replaces (lengths, guesses, the
drafter's state) is copied, as the last thing of the capture, into the tensors that it was read from. A batch that ends
leaves its graph, with the memory it uses, to the next batch of its shapes. A method that waits for the device in the
middle of a step (a loop whose length depends on the data) is never captured, nor is one that spans several devices.

    runner = CudaGraphRunner(graph_recorder(target), pooled_graphs)
    result = runner.run(step, end_phase, state, [noise, drafter_state])  # the next run overwrites its tensors
    runner.invalidate()                                                  # after requests were added or removed
    runner.return_graph(state, [drafter_state])                          # after the last one was removed
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

from polydraft.core.model.cache import KVCache, free_memory_bytes
from polydraft.core.target.causal import CausalTarget
from polydraft.core.target.state import BatchState

MAX_POOLED_GRAPHS = 2  # graphs that a method keeps for later batches, each with the memory it uses:
MAX_POOL_SHARE = 0.1  # at most this share of the free memory
MAX_FAILED_ATTEMPTS = 3  # give up after this many steps that synchronize and captures that fail

EndPhase: TypeAlias = Callable[[str], None]  # ends a phase, see `PhaseTimer.end_phase`
T = TypeVar("T")


class NotCapturable(Exception):
    """Error of a step that does not run the same operations on the same memory as the next one."""


class GraphRecorder(Protocol):
    """Interface to capture the work of a device."""

    def run_and_watch(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Run `work`; return its result, and True if the host waited for the device meanwhile."""

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture `work` without running it; return its result, and a function that runs it any number of times."""


@dataclass(frozen=True)
class CapturedGraph:
    """Captured decoding step."""

    signature: Any  # see `replay_signature`
    launch: Callable[[], None]  # runs the step
    result: Any  # of the step; a launch fills its tensors
    tensors: list[Tensor]  # tensor fields of the owners that it was captured over, in their order
    kv_storage: list[list[tuple[Tensor, Tensor]]]  # keys and values of every layer of every KV cache
    spare_slots: list[int]  # see `CudaGraphRunner`

    @property
    def nbytes(self) -> int:
        """Return the bytes of its keys and values."""
        return sum(tensor.nbytes for layers in self.kv_storage for pair in layers for tensor in pair)

    def adopt(self, owners: list[Any]) -> None:
        """Move the tensors of `owners` into the memory that the graph uses."""
        current = [(owner, name, value) for owner in owners for name, value in tensor_fields(owner)]
        for (owner, name, value), tensor in zip(current, self.tensors, strict=True):
            tensor.copy_(value)
            vars(owner)[name] = tensor
        for cache, layers in zip(kv_caches(owners), self.kv_storage, strict=True):
            for layer, (keys, values) in zip(cache.layers, layers, strict=True):
                keys.copy_(layer.keys)
                values.copy_(layer.values)
                layer.keys, layer.values = keys, values


@dataclass
class CudaGraphRunner:
    """Runner of one batch's steps, which captures and replays them where that is possible."""

    recorder: GraphRecorder | None = None  # None disables CUDA graphs; every step is launched kernel by kernel
    pooled: list[CapturedGraph] = field(default_factory=list)  # graphs that no batch uses, the latest last
    graph: CapturedGraph | None = None
    spare_slots: list[int] = field(default_factory=list)  # KV slots after the longest row that a step uses, per cache
    last_signature: Any = None  # after the last step
    is_stable: bool = False  # the step before the last had the same signature
    attempts_left: int = MAX_FAILED_ATTEMPTS
    refusal: str = ""  # why the last capture failed
    num_replayed: int = 0

    def invalidate(self) -> None:
        """Forget the captured step, since rows were added or removed."""
        self.graph, self.last_signature, self.is_stable = None, None, False

    def return_graph(self, state: BatchState, others: list[Any]) -> None:
        """Pool the graph of a batch without rows, with the memory of its KV caches, for another batch."""
        if self.graph is not None:
            free = free_memory_bytes(state.tokens.device)
            if free is None or self.graph.nbytes < free * MAX_POOL_SHARE:
                for cache in kv_caches(all_owners(state, others)):
                    cache.detach_storage()
                self.pooled[:] = [*self.pooled, self.graph][-MAX_POOLED_GRAPHS:]
        self.invalidate()

    def run(self, step: Callable[[EndPhase], T], end_phase: EndPhase, state: BatchState, others: list[Any]) -> T:
        """Run a step, replayed from a graph where that is possible.

        Args:
            step (Callable): runs the step kernel by kernel, and ends its phases with its argument.
            end_phase (EndPhase): ends a phase of the batch's timer.
            state (BatchState): state of the rows.
            others (list): further dataclasses that the step reads and replaces, or None.

        Returns:
            The result of the step; the next run may overwrite its tensors.
        """
        if self.recorder is None or not self.attempts_left:
            return step(end_phase)
        if self.last_signature is not None:
            result = self.try_replay(self.recorder, step, state, all_owners(state, others))
            if result is not None:
                end_phase("score")
                return result
        result, has_synchronized = self.recorder.run_and_watch(lambda: step(ignore_phase))
        end_phase("score")
        owners = all_owners(state, others)  # some are only created during the first step
        signature = replay_signature(owners)
        # the first step of a new signature may synchronize while it creates buffers, so it does not count
        is_repeated = signature == self.last_signature
        self.attempts_left -= is_repeated and has_synchronized
        self.is_stable = is_repeated and not has_synchronized
        self.last_signature = signature
        self.spare_slots = [cache.requested_slots - state.max_seq_len for cache in kv_caches(owners)]
        return result

    def try_replay(
        self, recorder: GraphRecorder, step: Callable[[EndPhase], Any], state: BatchState, owners: list[Any]
    ) -> Any:
        """Replay the step, captured first if it has not been; return None if it must be launched kernel by kernel."""
        state.ensure_capacity(self.spare_slots[0])  # as the step itself would, on the host
        for cache, spare in zip(kv_caches(owners), self.spare_slots, strict=True):
            cache.ensure_capacity(state.max_seq_len + spare)
        signature = replay_signature(owners)
        if signature != self.last_signature:
            self.invalidate()
            return None
        if self.graph is None and not self.adopt_pooled_graph(signature, owners):
            if not self.is_stable:
                return None  # the step before may have created buffers
            try:
                self.graph = capture_step(recorder, step, signature, owners, self.spare_slots)
            except (NotCapturable, RuntimeError) as error:  # CUDA raises RuntimeError for what it cannot capture
                self.attempts_left, self.refusal = self.attempts_left - 1, str(error)
                self.invalidate()
                return None
        assert self.graph is not None
        self.graph.launch()
        self.num_replayed += 1
        return self.graph.result

    def adopt_pooled_graph(self, signature: Any, owners: list[Any]) -> bool:
        """Take a pooled graph of this signature, if there is one."""
        for index, graph in enumerate(self.pooled):
            if graph.signature == signature and graph.spare_slots == self.spare_slots:
                self.graph = self.pooled.pop(index)
                self.graph.adopt(owners)
                return True
        return False


def ignore_phase(phase: str) -> None:
    """Ignore the end of a phase: the phases of a step that may be captured are not timed apart."""


def capture_step(
    recorder: GraphRecorder,
    step: Callable[[EndPhase], Any],
    signature: Any,
    owners: list[Any],
    spare_slots: list[int],
) -> CapturedGraph:
    """Capture a step over the tensors of `owners`, which stay theirs.

    Raises:
        NotCapturable: the step leaves something behind that a replay would not.
    """
    before = [dict(vars(owner)) for owner in owners]
    for owner in owners:  # give every tensor memory of its own, since some are views of others
        for name, value in tensor_fields(owner):
            vars(owner)[name] = value.clone()
    inputs = [dict(vars(owner)) for owner in owners]
    tensors = [value for owner in owners for _, value in tensor_fields(owner)]
    kv_storage = [[(layer.keys, layer.values) for layer in cache.layers] for cache in kv_caches(owners)]

    def step_and_copy_back() -> Any:
        """Run the step, then copy what it replaced into the tensors that it was read from."""
        result = step(ignore_phase)
        replaced = []
        for owner, old_fields in zip(owners, inputs, strict=True):
            for name, old in old_fields.items():
                value = vars(owner)[name]
                if isinstance(value, Tensor) and value is not old:
                    replaced.append((old, value))
                elif isinstance(value, int | float | str | list) and value != old:
                    raise NotCapturable(f"a step changes {name}, which the host keeps")
        if any(old.shape != new.shape or old.dtype != new.dtype for old, new in replaced):
            raise NotCapturable("a step leaves tensors of other shapes")
        copies = [new.clone() for _, new in replaced]  # some are views of what is overwritten
        for (old, _), copy in zip(replaced, copies, strict=True):
            old.copy_(copy)
        return result

    restored = before  # if the capture fails, nothing has happened
    try:
        result, launch = recorder.capture(step_and_copy_back)
        restored = inputs
    finally:
        for owner, old_fields in zip(owners, restored, strict=True):
            vars(owner).clear()
            vars(owner).update(old_fields)
    return CapturedGraph(signature, launch, result, tensors, kv_storage, spare_slots)


def replay_signature(owners: list[Any]) -> Any:
    """Return the shapes, dtypes and host values under which a captured step may be replayed.

    They are what a step depends on besides the values of tensors, and a step that may be replayed leaves them as they
    are.
    """
    signature: list[Any] = []
    for owner in owners:
        for part in fields(owner):
            value = getattr(owner, part.name)
            if isinstance(value, Tensor):
                signature.append((part.name, tuple(value.shape), value.dtype))
            elif isinstance(value, KVCache):
                signature.append((value.num_rows, value.num_slots, value.view_len, value.num_live_rows))
            elif isinstance(value, int | float | str | list) and part.name != "seq_lens":
                signature.append((part.name, list(value) if isinstance(value, list) else value))
    return signature


def all_owners(state: BatchState, others: list[Any]) -> list[Any]:
    """Return all dataclasses that hold what a step replaces."""
    return [owner for root in (state, *others) for owner in nested_dataclasses(root)]


def nested_dataclasses(root: Any) -> Iterator[Any]:
    """Yield `root` and the dataclasses in its fields, recursively."""
    if root is not None and is_dataclass(root):
        yield root
        for part in fields(root):
            value = getattr(root, part.name)
            if is_dataclass(value):
                yield from nested_dataclasses(value)


def tensor_fields(owner: Any) -> list[tuple[str, Tensor]]:
    """Return the fields of a dataclass that are tensors."""
    named = ((part.name, getattr(owner, part.name)) for part in fields(owner))
    return [(name, value) for name, value in named if isinstance(value, Tensor)]


def kv_caches(owners: list[Any]) -> list[KVCache]:
    """Return the KV caches in the fields of `owners`, the target's first."""
    values = (getattr(owner, part.name) for owner in owners for part in fields(owner))
    return [value for value in values if isinstance(value, KVCache)]


class CudaGraphRecorder:
    """Recorder of CUDA graphs, which keeps alive what a graph reads, since the graph only knows addresses."""

    def run_and_watch(self, work: Callable[[], T]) -> tuple[T, bool]:
        with warnings.catch_warnings(record=True) as caught, warn_on_sync():
            warnings.simplefilter("always")
            result = work()
        return result, any("synchroniz" in str(warning.message) for warning in caught)

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        graph, tracker = torch.cuda.CUDAGraph(), ExternalTensorTracker()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), tracker:
            result = work()
        external = list(tracker.external.values())

        def launch() -> None:
            graph.replay()
            assert external is not None  # the reference keeps these tensors alive as long as the graph

        return result, launch


@contextmanager
def warn_on_sync() -> Iterator[None]:
    """Let torch warn whenever the host waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class ExternalTensorTracker(TorchDispatchMode):
    """Dispatch mode that collects the tensors that operations read and none of them created."""

    def __init__(self) -> None:
        super().__init__()
        self.created: set[int] = set()  # addresses of storages
        self.external: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and (address := value.untyped_storage().data_ptr()) not in self.created:
                self.external.setdefault(address, value)
        out = func(*args, **kwargs)
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and (address := value.untyped_storage().data_ptr()) not in self.external:
                self.created.add(address)
        return out


def graph_recorder(target: CausalTarget) -> GraphRecorder | None:
    """Return the recorder of steps of `target`; None where they cannot be captured."""
    network = getattr(target, "network", None)  # a model with a forward pass of its own has none
    if target.device.type != "cuda" or network is None or network.is_multi_device:
        return None
    return CudaGraphRecorder()
