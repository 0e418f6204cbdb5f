"""Data-parallel training on CPU cores: a process per core is faster than one process with threads.

torchrun --nproc-per-node 2 -m polydraft.apps.lab.recipes.speech.target …
on_every_core("polydraft.apps.lab.recipes.speech.target", 4608, "--tokens", …)    # the same from Python
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def init_process_group() -> int:
    """Initialise the process group where torchrun started one; return this process's rank."""
    if "RANK" not in os.environ:
        return 0
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def barrier() -> None:
    """Wait for the other processes, if there are any."""
    if dist.is_initialized():
        dist.barrier()


def average_gradients(weights: Iterable[Tensor], clock: float) -> float:
    """Average gradients over all processes in place; return the average of their clocks, which all follow."""
    if not dist.is_initialized():
        return clock
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([clock])])
    dist.all_reduce(flat)
    *means, clocks = (flat / dist.get_world_size()).split([*(gradient.numel() for gradient in gradients), 1])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
    return clocks.item()


def map_distributed(work: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Apply a shape-preserving function to every input, a part in each process; return all results in all of them."""
    if not dist.is_initialized() or not inputs:
        return [work(one) for one in inputs]
    rank, others = dist.get_rank(), dist.get_world_size()
    done = [work(one) if at % others == rank else torch.zeros_like(one) for at, one in enumerate(inputs)]
    flat = torch.cat([one.flatten() for one in done])
    dist.all_reduce(flat)
    parts = flat.split([one.numel() for one in done])
    return [part.view_as(one) for part, one in zip(parts, done, strict=True)]


def launch_on_all_cores(module: str, batch: int, share: str, *arguments: object) -> None:
    """Run `module` in a process per core, each with its part of a batch as the option `share`."""
    cores = os.cpu_count() or 1
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(cores), "-m", module,
            *map(str, arguments), share, str(max(1, batch // cores)),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
