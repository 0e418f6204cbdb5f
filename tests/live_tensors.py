"""Count the bytes of tensors that are alive at once, which no allocator, kernel or processor changes.

with LiveTensors() as counted:
    train()
assert counted.peak < 1 << 26
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensors(TorchDispatchMode):
    """Count the storages that operations read or make, from when they are first met until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0  # Current bytes.
        self.peak = 0  # Peak bytes.
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for storage in _storages((args, kwargs, result)):
            self._meet(storage)
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        identity = storage._cdata
        if identity in self._known:
            return
        self._known[identity] = storage.nbytes()
        self.live += self._known[identity]
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, identity).atexit = False

    def _forget(self, identity: int) -> None:
        self.live -= self._known.pop(identity)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storage of every dense tensor in `tree`; packed weights have none."""
    for leaf in tree_iter(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.device.type != "meta":
            yield leaf.untyped_storage()
