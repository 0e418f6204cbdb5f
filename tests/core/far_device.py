"""A device that is not there: tensors hold CPU data and claim to live elsewhere, so that mistakes with devices show
without an accelerator.

    with far_device() as reads:
        move(model)                    # its parameters and buffers now claim DEVICE
        ...                            # run anything; results equal the CPU's
        reads                          # every time the host had to wait for the device
        made, launch = Recorder().capture(work)     # what `work` asks for, to be done as often as `launch` is called

An operation that mixes a far tensor with a CPU one raises, as CUDA does (scalars and indices may mix). `reads` lists
what makes the host wait: values that are read (`item`, `bool`, `tolist`, copies to the CPU), and operations whose
results have as many entries as the data says (`nonzero`, masks as indices).

DEVICE is called `meta` because advanced indexing needs a device guard, which only devices that PyTorch was built for
have. True meta tensors never arise while the context is open: every factory is caught, and one that is not raises.
Everything that is replaced is put back when the context closes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import inference_mode, no_grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from polydraft.core.drafters.tree.shapes import tree_template
from polydraft.core.sampling.noise import token_keys

DEVICE, HOST = torch.device("meta"), torch.device("cpu")
MOVES = ("aten::_to_copy", "aten::copy_", "aten::to.")
INDEXED = ("aten::index.", "aten::index_put", "aten::_index_put")
SIZED = ("aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique", "aten::repeat_interleave.Tensor")
READS: list[str] = []
UPLOADS: list[str] = []  # of what the host has, which waits as well unless memory is pinned


class Far(Tensor):
    """Claims DEVICE; `held` is the CPU tensor with the data."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Far:
        far = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE, requires_grad=False,
        )  # fmt: skip
        far.held = held
        return far

    def __init__(self, held: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"Far({self.held})"

    # replaced here and not in `Tensor`: a class whose `__getitem__` was ever replaced is taken for a sequence after

    def __getitem__(self, place: Any) -> Tensor:
        return super().__getitem__(index(place))

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(index(place), value)

    def tolist(self) -> list:
        READS.append("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatched(func, args, kwargs or {})


class Everywhere(TorchDispatchMode):
    """Catches factories too, which have no tensor among their arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatched(func, args, kwargs or {})


def dispatched(func: Any, args: tuple, kwargs: dict) -> Any:
    """`func` on the data; the result is far if a far tensor took part or DEVICE was asked for."""
    name, tensors, devices = func.name(), [], []

    def near(value: Any) -> Any:
        """Replace an argument of `func`, and note tensors and devices."""
        if isinstance(value, Tensor):
            tensors.append(value)
            return value.held if isinstance(value, Far) else value
        if isinstance(value, torch.device):
            devices.append(value)
            return HOST
        return value

    given, named = map_nested(near, args), {key: map_nested(near, value) for key, value in kwargs.items()}
    far = [value for value in tensors if isinstance(value, Far)]
    asked = devices[-1] if devices else None
    if name == "aten::to.other":
        asked = args[1].device
    moves, indexed = name.startswith(MOVES), name.startswith(INDEXED)
    if far and not moves:
        for value in tensors[:1] if indexed else tensors:
            if not isinstance(value, Far) and value.dim() > 0:
                raise RuntimeError(f"{name}: a CPU tensor of shape {tuple(value.shape)} meets one on another device")
    masks = indexed and any(value.dtype == torch.bool for value in far if value is not args[0])
    into_host = name.startswith("aten::copy_") and far and not isinstance(args[0], Far)
    if (
        far
        and (name == "aten::_local_scalar_dense" or (moves and asked == HOST) or into_host)
        or far
        and (masks or name.startswith(SIZED))
    ):
        READS.append(name)
    if moves and asked == DEVICE and not far:
        UPLOADS.append(name)
    if Recorder.open is not None:
        out = Recorder.open.tape(func, given, named)
    else:
        out = func(*given, **named)
    if name.startswith("aten::copy_"):
        return args[0]
    to = asked or (DEVICE if far else HOST)

    def claimed(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Far):
            return value
        assert value.device == HOST, f"{name} made a true meta tensor"
        for known in far:  # operations in place return what they were given
            if known.held is value:
                return known
        return Far(value) if to == DEVICE else value

    return map_nested(claimed, out)


def map_nested(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply `change` to `value`, or to the items of a list or tuple; operations use no other nesting."""
    if isinstance(value, list | tuple):
        return type(value)([map_nested(change, each) for each in value])
    return change(value)


class Recorder:
    """Records as a GPU does: operations and addresses, not values. What was recorded is not done until it is launched,
    and to wait for the device meanwhile raises."""

    open: Recorder | None = None

    def run_and_watch(self, work: Callable[[], Any]) -> tuple[Any, bool]:
        before = len(READS) + len(UPLOADS)
        return work(), len(READS) + len(UPLOADS) > before

    def capture(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.asked: list[tuple[Any, Any, Any, Any]] = []
        self.undo: dict[int, tuple[Any, Any]] = {}
        before, Recorder.open = len(READS) + len(UPLOADS), self
        try:
            made = work()
        finally:
            Recorder.open = None
            for storage, was in self.undo.values():
                storage.copy_(was)
        if len(READS) + len(UPLOADS) > before:
            raise RuntimeError("the host waits for the device while it records")
        asked = self.asked
        return made, lambda: play(asked)

    def tape(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func._schema.is_mutable:
            for value in tree_flatten((args, kwargs))[0]:
                if isinstance(value, Tensor):
                    storage = value.untyped_storage()
                    self.undo.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = func(*args, **kwargs)
        self.asked.append((func, args, kwargs, out))
        return out


def play(asked: list[tuple[Any, Any, Any, Any]]) -> None:
    """Run what was captured, in the memory that it was captured over."""
    for func, args, kwargs, out in asked:
        found = func(*args, **kwargs)
        for old, new in zip(tree_flatten(out)[0], tree_flatten(found)[0], strict=True):
            if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                old.copy_(new)


def move(*modules: nn.Module) -> None:
    """Move parameters and buffers of `modules` to DEVICE."""
    for part in itertools.chain(*(module.modules() for module in modules)):
        for name, value in part._parameters.items():
            if value is not None and not isinstance(value, Far):
                part._parameters[name] = nn.Parameter(Far(value.detach()), requires_grad=False)
        for name, value in part._buffers.items():
            if value is not None and not isinstance(value, Far):
                part._buffers[name] = Far(value)


def index(place: Any) -> Any:
    """Convert list indices, which would become tensors below the dispatcher."""
    if isinstance(place, tuple):
        return tuple(map(index, place))
    return made(place, dtype=None if place else torch.long) if isinstance(place, list) else place


made = torch.tensor


def tensor(data: Any, *, device: Any = None, **others: Any) -> Tensor:
    """Replace `torch.tensor`, which builds below the dispatcher."""
    whole = made(data, **others)
    if device is None or torch.device(device) != DEVICE:
        return whole
    UPLOADS.append("tensor")
    return Far(whole)


@contextmanager
def far_device() -> Iterator[list[str]]:
    """Enable DEVICE while the context is open; yield the list of reads."""
    READS.clear()
    UPLOADS.clear()
    with ExitStack() as replaced:
        for owner, name, by in (
            (torch, "tensor", tensor),
            # wrapped tensors and inference tensors do not mix
            (inference_mode, "__enter__", lambda mode: no_grad.__enter__(mode)),
            (inference_mode, "__exit__", lambda mode, *error: no_grad.__exit__(mode, *error)),
        ):  # fmt: skip
            replaced.enter_context(patch.object(owner, name, by))
        replaced.enter_context(Everywhere())
        try:
            yield READS
        finally:
            for cached in (token_keys, tree_template):  # what they hold is on DEVICE
                cached.cache_clear()
