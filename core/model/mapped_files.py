"""Copy weights that a loader left in a memory-mapped file into ordinary memory.

safetensors maps files: a tensor is read from the disk when it is first used, and again after its page was dropped. A
file that is overwritten in place would then silently change results, and one that is truncated ends the process with
SIGBUS. Tensors are copied one by one, so that peak memory grows by the largest of them alone.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import torch
from torch import Tensor, nn

MAPS = Path("/proc/self/maps")
SUFFIX = ".safetensors"


def copy_mapped(*models: nn.Module) -> None:
    """Replace parameters and buffers that lie in a memory-mapped weight file by copies in ordinary memory."""
    starts, stops = mapped_ranges()
    for module in [module for model in models for module in model.modules()]:
        for parameter in module._parameters.values():
            if parameter is not None and lies_within(parameter, starts, stops):
                parameter.data = parameter.data.clone()  # the parameter object stays, so tied modules stay tied
        for name, buffer in module._buffers.items():
            if buffer is not None and lies_within(buffer, starts, stops):
                # a new tensor, since setting `data` of a view would keep its base alive
                module._buffers[name] = buffer.clone()


def mapped_ranges() -> tuple[list[int], list[int]]:
    """Return start and end addresses of the memory-mapped weight files of this process, ascending.

    Where the system does not list them (outside Linux) it is one range of all addresses.
    """
    if not MAPS.exists():
        return [0], [2**64]
    # a line begins with the range, "start-stop" in hexadecimal digits, and ends with the file's path
    lines = [line.split() for line in MAPS.read_text().splitlines() if line.endswith((SUFFIX, f"{SUFFIX} (deleted)"))]
    ranges = sorted(tuple(int(bound, 16) for bound in line[0].split("-")) for line in lines)
    return [start for start, _ in ranges], [stop for _, stop in ranges]


def lies_within(tensor: Tensor, starts: list[int], stops: list[int]) -> bool:
    """Return whether `tensor` is a CPU tensor whose data begins within an address range `starts[i]` … `stops[i]`.

    Args:
        tensor (Tensor): The tensor.
        starts (list[int]): First address of every range, ascending; ranges do not overlap.
        stops (list[int]): End address of every range.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return False
    index = bisect_right(starts, tensor.data_ptr()) - 1  # last range that begins at or before the tensor; -1: none
    return index >= 0 and tensor.data_ptr() < stops[index]
