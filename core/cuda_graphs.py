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
    """Error of a step that cannot be captured: the next step would not run the same operations on the same memory."""


class GraphRecorder(Protocol):
    """Interface to capture the work of a device."""

    def run_and_watch(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Run `work` without capturing it.

        Returns:
            The result of `work`, and True if the host waited for the device meanwhile.
        """

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture the kernels of `work` without running them.

        Returns:
            The result of `work`, whose tensors have no values yet, and a function that runs the kernels, any number of
            times, and so fills these tensors.
        """


@dataclass(frozen=True)
class CapturedGraph:
    """Captured decoding step.

    Its owners are the dataclasses whose tensor fields the step uses: the batch state, the drafter's state and those
    nested in them.
    """

    signature: Any  # result of `replay_signature`
    launch: Callable[[], None]  # runs the step
    result: Any  # of the step; a launch fills its tensors
    tensors: list[Tensor]  # tensor fields of the owners during the capture, in the order of `tensor_fields`
    kv_storage: list[list[tuple[Tensor, Tensor]]]  # keys and values of every layer of every KV cache
    kv_headroom: list[int]  # per KV cache, slots after the longest row that the step asks for

    @property
    def nbytes(self) -> int:
        """Return the bytes of the KV caches that the graph uses."""
        return sum(tensor.nbytes for layers in self.kv_storage for pair in layers for tensor in pair)

    def move_owners_into_graph(self, owners: list[Any]) -> None:
        """Copy all tensors and KV caches of `owners` into the memory that the graph uses, and let fields refer to it.

        Args:
            owners (list): Dataclasses of the batch that is to replay the graph, of the same signature as those that it
                was captured over.
        """
        # in the order of `self.tensors`
        current = [(owner, name, value) for owner in owners for name, value in tensor_fields(owner)]
        for (owner, name, value), graph_tensor in zip(current, self.tensors, strict=True):
            if value is not graph_tensor:
                graph_tensor.copy_(value)
                vars(owner)[name] = graph_tensor
        for cache, layers in zip(kv_caches(owners), self.kv_storage, strict=True):
            for layer, (keys, values) in zip(cache.layers, layers, strict=True):
                if layer.keys is not keys:
                    keys.copy_(layer.keys)
                    values.copy_(layer.values)
                    layer.keys, layer.values = keys, values


@dataclass
class CudaGraphRunner:
    """Runner of one batch's steps, which captures and replays them where that is possible."""

    recorder: GraphRecorder | None = None  # None disables CUDA graphs; every step is launched kernel by kernel
    pooled_graphs: list[CapturedGraph] = field(default_factory=list)  # graphs that no batch uses, the latest last
    graph: CapturedGraph | None = None  # the captured step of this batch
    kv_headroom: list[int] = field(default_factory=list)  # per KV cache, slots after the longest row that a step uses
    last_signature: Any = None  # `replay_signature` after the last step
    is_ready_to_capture: bool = False  # the last step did not synchronize, and kept the signature of the one before
    attempts_left: int = MAX_FAILED_ATTEMPTS  # 0: steps are no longer captured
    capture_error: str = ""  # why the last capture failed
    num_replayed: int = 0  # steps that were replayed

    def invalidate(self) -> None:
        """Drop the captured step, which no longer fits the batch because rows were added or removed."""
        self.graph, self.last_signature, self.is_ready_to_capture = None, None, False

    def return_graph(self, state: BatchState, other_states: list[Any]) -> None:
        """Put the graph of a finished batch into the pool, so that a later batch of the same shapes can replay it.

        A graph whose KV caches take more than `MAX_POOL_SHARE` of the free memory is dropped instead.

        Args:
            state (BatchState): State of the batch, after the rows of all its requests were removed.
            other_states (list): Further dataclasses of the batch, such as the drafter's state. Entries may be None,
                since some drafters have no state.
        """
        if self.graph is not None:
            free_bytes = free_memory_bytes(state.tokens.device)  # None: unknown
            if free_bytes is None or self.graph.nbytes < free_bytes * MAX_POOL_SHARE:
                # the graph alone keeps this KV storage; if the batch gets new rows, its caches allocate other storage
                for cache in kv_caches(all_owners(state, other_states)):
                    cache.detach_storage()
                # in place, since the pool is shared with other batches; if it is full, the oldest graph is dropped
                self.pooled_graphs[:] = [*self.pooled_graphs, self.graph][-MAX_POOLED_GRAPHS:]
        self.invalidate()  # only this runner forgets the graph; a graph in the pool stays there

    def run(self, step: Callable[[EndPhase], T], end_phase: EndPhase, state: BatchState, other_states: list[Any]) -> T:
        """Run a decoding step, replayed from a graph where that is possible.

        Args:
            step (Callable): Runs the step kernel by kernel; it calls its argument with the name of each phase that it
                has finished.
            end_phase (EndPhase): Ends a phase of the batch's timer, see `PhaseTimer.end_phase`.
            state (BatchState): State of the batch.
            other_states (list): Further dataclasses whose fields the step reads and replaces, or None.

        Returns:
            The result of the step; the next run may overwrite its tensors.
        """
        if self.recorder is None or not self.attempts_left:  # CUDA graphs are disabled, or capturing was given up
            return step(end_phase)
        if self.last_signature is not None:  # a step has run since rows were last added or removed
            result = self.try_replay(self.recorder, step, state, all_owners(state, other_states))
            if result is not None:
                end_phase("score")
                return result
        result, has_synchronized = self.recorder.run_and_watch(lambda: step(ignore_phase))
        end_phase("score")
        owners = all_owners(state, other_states)  # some are only created during the first step
        signature = replay_signature(owners)
        # the first step of a new signature may synchronize while it creates buffers, so it does not count
        is_repeated = signature == self.last_signature
        self.attempts_left -= is_repeated and has_synchronized  # minus 1 if both are true
        self.is_ready_to_capture = is_repeated and not has_synchronized
        self.last_signature = signature
        # `requested_slots` is what the step asked of `ensure_capacity`; a replay must ask for as many beyond the rows
        self.kv_headroom = [cache.requested_slots - state.max_seq_len for cache in kv_caches(owners)]
        return result

    def try_replay(
        self, recorder: GraphRecorder, step: Callable[[EndPhase], Any], state: BatchState, owners: list[Any]
    ) -> Any:
        """Replay the step, and capture it before if it has not been captured.

        Args:
            recorder (GraphRecorder): Captures the step.
            step (Callable): Runs the step kernel by kernel, see `run`.
            state (BatchState): State of the batch.
            owners (list): All dataclasses whose fields the step reads and replaces, `state` included.

        Returns:
            The result of the step, or None if nothing was run and the step must be launched kernel by kernel.
        """
        # a replay runs no host code, so the caches are enlarged here as the step itself would do
        state.ensure_capacity(self.kv_headroom[0])  # entry 0 is the target's cache; this also lengthens `state.tokens`
        for cache, headroom in zip(kv_caches(owners), self.kv_headroom, strict=True):
            cache.ensure_capacity(state.max_seq_len + headroom)
        signature = replay_signature(owners)
        if signature != self.last_signature:  # shapes have changed, such as the number of KV slots that attention reads
            self.invalidate()
            return None
        if self.graph is None and not self.adopt_pooled_graph(signature, owners):
            if not self.is_ready_to_capture:
                return None  # the step before may have created buffers
            try:
                self.graph = capture_step(recorder, step, signature, owners, self.kv_headroom)
            except (NotCapturable, RuntimeError) as error:  # CUDA raises RuntimeError for what it cannot capture
                self.attempts_left, self.capture_error = self.attempts_left - 1, str(error)
                self.invalidate()
                return None
        assert self.graph is not None
        self.graph.move_owners_into_graph(owners)  # where another drafter's graph has run since
        self.graph.launch()
        self.num_replayed += 1
        return self.graph.result

    def adopt_pooled_graph(self, signature: Any, owners: list[Any]) -> bool:
        """Take a graph of this signature from the pool.

        Args:
            signature (Any): Result of `replay_signature` of `owners`: shapes, dtypes and host values of their fields.
            owners (list): Dataclasses of this batch whose fields the step reads and replaces.

        Returns:
            True if the pool had one; it is then `self.graph`, and no longer in the pool.
        """
        for index, graph in enumerate(self.pooled_graphs):
            if graph.signature == signature and graph.kv_headroom == self.kv_headroom:
                self.graph = self.pooled_graphs.pop(index)
                return True
        return False


def ignore_phase(phase: str) -> None:
    """Do nothing at the end of a phase; the phases of a step that may be captured are not timed separately."""


def capture_step(
    recorder: GraphRecorder,
    step: Callable[[EndPhase], Any],
    signature: Any,
    owners: list[Any],
    kv_headroom: list[int],
) -> CapturedGraph:
    """Capture a step as a CUDA graph that reads the tensors of `owners` and writes their new values back into them.

    Args:
        recorder (GraphRecorder): Captures the step.
        step (Callable): Runs the step; its argument, which ends phases, is ignored.
        signature (Any): Result of `replay_signature` of `owners`.
        owners (list): Dataclasses whose fields the step reads and replaces. Their tensor fields are replaced by copies.
        kv_headroom (list[int]): Per KV cache, slots after the longest row that the step asks for.

    Returns:
        CapturedGraph: The step, which has not been run.

    Raises:
        NotCapturable: The step changes something other than tensors of constant shape and dtype.
    """
    fields_before = [dict(vars(owner)) for owner in owners]
    # give every tensor memory of its own, since some are views of others, which copying back would overwrite
    for owner in owners:
        for name, value in tensor_fields(owner):
            vars(owner)[name] = value.clone()
    input_fields = [dict(vars(owner)) for owner in owners]
    tensors = [value for owner in owners for _, value in tensor_fields(owner)]
    kv_storage = [[(layer.keys, layer.values) for layer in cache.layers] for cache in kv_caches(owners)]

    def step_and_copy_back() -> Any:
        """Run the step, then copy every tensor that it assigned to a field into the tensor that was there before.

        So the next replay, which reads the same addresses, starts from the new values.
        """
        result = step(ignore_phase)
        replaced = []  # (old tensor, new tensor)
        for owner, old_fields in zip(owners, input_fields, strict=True):
            for name, old in old_fields.items():
                value = vars(owner)[name]
                if isinstance(value, Tensor) and value is not old:
                    replaced.append((old, value))
                # a replay runs no Python, so it would not change values that the host keeps
                elif isinstance(value, int | float | str | list) and value != old:
                    raise NotCapturable(f"a step changes {name}, which the host keeps")
        if any(old.shape != new.shape or old.dtype != new.dtype for old, new in replaced):
            raise NotCapturable("a step leaves tensors of other shapes")
        copies = [new.clone() for _, new in replaced]  # some new tensors are views of old ones, which are overwritten
        for (old, _), copy in zip(replaced, copies, strict=True):
            old.copy_(copy)
        return result

    # If the capture fails, owners are left as they were. If it succeeds, they get the tensors that the graph reads and
    # writes, since those that the step assigned have no values before the first launch.
    restored_fields = fields_before
    try:
        result, launch = recorder.capture(step_and_copy_back)
        restored_fields = input_fields
    finally:
        for owner, old_fields in zip(owners, restored_fields, strict=True):
            vars(owner).clear()
            vars(owner).update(old_fields)
    return CapturedGraph(signature, launch, result, tensors, kv_storage, kv_headroom)


def replay_signature(owners: list[Any]) -> Any:
    """Return the shapes, dtypes and host values of all fields, under which a captured step may be replayed.

    A step depends on them and on the values of tensors alone. A graph captured at one signature is replayed only while
    the signature is the same, so steps that change their own signature are never replayed.

    Args:
        owners (list): Dataclasses whose fields the step reads and replaces.

    Returns:
        list: Comparable with `==`.
    """
    signature: list[Any] = []
    for owner in owners:
        for field_info in fields(owner):
            name, value = field_info.name, getattr(owner, field_info.name)
            if isinstance(value, Tensor):
                signature.append((name, tuple(value.shape), value.dtype))
            elif isinstance(value, KVCache):
                signature.append((value.num_rows, value.num_slots, value.view_len, value.num_live_rows))
            elif isinstance(value, int | float | str | list) and name != "seq_lens":  # lengths grow in every step
                signature.append((name, list(value) if isinstance(value, list) else value))
    return signature


def all_owners(state: BatchState, other_states: list[Any]) -> list[Any]:
    """Return all dataclasses whose fields a step may replace: the given states and those nested in them."""
    return [owner for root in (state, *other_states) for owner in nested_dataclasses(root)]


def nested_dataclasses(root: Any) -> Iterator[Any]:
    """Yield `root` and the dataclasses in its fields, recursively; nothing if `root` is not a dataclass."""
    if root is not None and is_dataclass(root):
        yield root
        for field_info in fields(root):
            value = getattr(root, field_info.name)
            if is_dataclass(value):
                yield from nested_dataclasses(value)


def tensor_fields(owner: Any) -> list[tuple[str, Tensor]]:
    """Return names and values of those fields of a dataclass that are tensors."""
    values = ((field_info.name, getattr(owner, field_info.name)) for field_info in fields(owner))
    return [(name, value) for name, value in values if isinstance(value, Tensor)]


def kv_caches(owners: list[Any]) -> list[KVCache]:
    """Return the KV caches in the fields of the dataclasses `owners`, the target's first."""
    values = (getattr(owner, field_info.name) for owner in owners for field_info in fields(owner))
    return [value for value in values if isinstance(value, KVCache)]


class CudaGraphRecorder:
    """Recorder of CUDA graphs, which keeps the tensors alive that a graph reads, since it only knows addresses."""

    def run_and_watch(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Run `work` without capturing it; return its result, and True if the host waited for the device meanwhile."""
        with warnings.catch_warnings(record=True) as caught, warn_on_sync():
            warnings.simplefilter("always")
            result = work()
        return result, any("synchroniz" in str(warning.message) for warning in caught)

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture the kernels of `work` without running them.

        Returns:
            The result of `work`, whose tensors have no values yet, and a function that replays the kernels, any number
            of times, and so fills these tensors.
        """
        graph, tracker = torch.cuda.CUDAGraph(), ExternalTensorTracker()
        # "thread_local": only what this thread does can break the capture; other threads may use the device
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), tracker:
            result = work()
        inputs = list(tracker.external.values())

        def launch() -> None:
            """Replay the graph."""
            graph.replay()
            assert inputs is not None  # the reference keeps these tensors alive as long as the graph

        return result, launch


@contextmanager
def warn_on_sync() -> Iterator[None]:
    """Let torch warn, inside the block, whenever the host waits for the device."""
    previous_mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(previous_mode)


class ExternalTensorTracker(TorchDispatchMode):
    """Dispatch mode that collects the external inputs of the operations in its block.

    These are the tensors that an operation reads and none of the operations has created.
    """

    def __init__(self) -> None:
        """Start with no operation seen."""
        super().__init__()
        self.created: set[int] = set()  # addresses of the storages that operations have created
        self.external: dict[int, Tensor] = {}  # external inputs by the address of their storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation `func`, which torch passes here, record its inputs and outputs, and return its result."""
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and (address := value.untyped_storage().data_ptr()) not in self.created:
                self.external.setdefault(address, value)
        out = func(*args, **kwargs)
        # a result in the storage of an external input is a view or an in-place change of it, and not created here
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and (address := value.untyped_storage().data_ptr()) not in self.external:
                self.created.add(address)
        return out


def graph_recorder(target: CausalTarget) -> GraphRecorder | None:
    """Return the recorder for the steps of `target`, or None if they cannot be captured.

    Only steps on a single CUDA device can be.
    """
    network = getattr(target, "network", None)  # a model with a forward pass of its own has none
    if target.device.type != "cuda" or network is None or not network.is_capturable:
        return None
    return CudaGraphRecorder()
