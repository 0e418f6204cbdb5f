"""Several processes train one model, each on batches of its own; on a few cores that beats one process with threads.

torchrun --nproc-per-node 2 -m polydraft.apps.train.speech.target …
on_every_core("polydraft.apps.train.speech.target", 4608, "--tokens", …)    # the same from Python
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def join() -> int:
    """Meet the others, if torchrun has started any; this process's rank."""
    if "RANK" not in os.environ:
        return 0
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def meet() -> None:
    """Wait for the others, if there are any."""
    if dist.is_initialized():
        dist.barrier()


def average(weights: Iterable[Tensor], clock: float) -> float:
    """Gradients become their mean over all processes; so does the clock, which comes back: all go by one."""
    if not dist.is_initialized():
        return clock
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([clock])])
    dist.all_reduce(flat)
    *means, clocks = (flat / dist.get_world_size()).split([*(gradient.numel() for gradient in gradients), 1])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
    return clocks.item()


def in_parts(work: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """`work` of every input, which it leaves in its shape; every process does a part of it, and all have all of it."""
    if not dist.is_initialized() or not inputs:
        return [work(one) for one in inputs]
    rank, others = dist.get_rank(), dist.get_world_size()
    done = [work(one) if at % others == rank else torch.zeros_like(one) for at, one in enumerate(inputs)]
    flat = torch.cat([one.flatten() for one in done])
    dist.all_reduce(flat)
    parts = flat.split([one.numel() for one in done])
    return [part.view_as(one) for part, one in zip(parts, done, strict=True)]


def on_every_core(module: str, batch: int, share: str, *arguments: object) -> None:
    """Run `module`, a process a core, each with its part of a batch as the option `share`."""
    cores = os.cpu_count() or 1
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(cores), "-m", module,
            *map(str, arguments), share, str(max(1, batch // cores)),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
