"""Peak memory of a run in a separate process, compared with the weights and the live rows' keys and values."""

from __future__ import annotations

import gc
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from polydraft.apps.measure import shapes
from polydraft.apps.measure.filled import filled_batch, passes, plain, prompt_of
from polydraft.core.decode import add_requests, remove_requests
from polydraft.core.model.cache import KVCache
from polydraft.core.model.linear import return_freed_memory
from polydraft.core.target.causal import CausalTarget

PASSES = 3
NOTHING = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=64,
)  # fmt: skip


def apart(shape: str, rows: int, length: int, prompt: int, device: torch.device, dtype: torch.dtype) -> dict[str, int]:
    """Run `of_run` in a fresh process, for which a shape travels with its name."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(of_run, shape, shapes.CONFIGS.get(shape), rows, length, prompt, device, dtype).result()


def of_run(
    shape: str, config: Any, rows: int, length: int, prompt: int, device: torch.device, dtype: torch.dtype
) -> dict[str, int]:
    """Return bytes of a run of `rows` rows of `length` positions in which one leaves and another joins.

    The row that joins is prefilled. `before` is the memory at the start: Python and its libraries, as a run of a
    tiny model has loaded them. `loading` and `peak` are the most while the target is built and while it runs, less
    that. `weights` counts each weight once; `live` is keys and values at the rows' positions; `stored` is what the
    pool holds for them, in whole blocks and spare rows.
    """
    if config is not None:
        shapes.CONFIGS[shape] = config
    shapes.CONFIGS["nothing"] = NOTHING
    cost_of(shapes.target_of("nothing", device, dtype), 2, 2, 2)
    before = begin_anew(device)
    target = shapes.target_of(shape, device, dtype)
    loading = most(device) - before
    begin_anew(device)
    found = cost_of(target, rows, length, prompt)
    return {"before": before, "loading": loading, "peak": most(device) - before} | found


def cost_of(target: CausalTarget, rows: int, length: int, prompt: int) -> dict[str, int]:
    """Run; the bytes that the target and its rows must have."""
    method = plain(target)
    batch = filled_batch(method, rows, length, PASSES + 1)
    passes(method, batch, PASSES)
    remove_requests(batch, {batch.running[rows // 2].id: "cancelled"})
    add_requests(method, batch, [prompt_of(target, prompt, PASSES + 1, rows)], [rows])
    passes(method, batch, PASSES)
    cache = batch.state.cache
    stored = stored_bytes(cache)
    live = stored * sum(batch.state.seq_lens) * cache.num_branches // (cache.num_rows * cache.num_slots)
    return {"weights": shapes.bytes_of(target.model), "live": live, "stored": stored}


def stored_bytes(cache: KVCache) -> int:
    return sum(store.numel() * store.itemsize for layer in cache.layers for store in (layer.keys, layer.values))


def begin_anew(device: torch.device) -> int:
    """Give back what is free but kept, and forget earlier peaks; the bytes that are left in use.

    Where a system cannot do either, peaks are those since the start: too much, never too little.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return_freed_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return most(device)


def most(device: torch.device) -> int:
    """Return the peak memory so far in bytes, of this process or on its accelerator.

    Linux counts in `ru_maxrss` what the process was forked from; VmHWM begins anew with the program.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
