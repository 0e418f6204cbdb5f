"""Batches of long rows without their prefill: keys and values are random numbers, which a pass costs as much over.

batch = filled(plain(target), rows=1, length=8192, budget=64)
run = passes(method, batch, 16)          # 16 target passes; afterwards the rows are as long as before
"""

from __future__ import annotations

from functools import partial

import torch

from polydraft.apps.bench.measure.table import PLAIN
from polydraft.apps.bench.measure.timing import Run, timed
from polydraft.core.decode import Batch, Method, start, step
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.law.sampling import Sampling
from polydraft.core.model.cache import blocks
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify.tape import TapeVerifier


def plain(target: CausalTarget) -> Method:
    """Plain decoding without a grammar, so that nothing ends before its budget."""
    return Method(PLAIN, target, NoDrafter(), TapeVerifier())


def prompt_of(target: CausalTarget, length: int, budget: int, seed: int = 0) -> Prompt:
    """A greedy request of `length` random ids."""
    generator = torch.Generator().manual_seed(seed)
    ids = tuple(torch.randint(target.vocab, (length,), generator=generator).tolist())
    return Prompt((ids,) * target.branches, budget, seed, sampling=Sampling(temperature=0))


@torch.inference_mode()
def filled(method: Method, rows: int, length: int, budget: int) -> Batch:
    """`rows` greedy rows of `length` committed positions that have room for `budget` more.

    Prompts of one token are read; then the rows are said to be longer, and storage is filled up to there.
    """
    target = method.target
    batch = start(method, [prompt_of(target, 1, budget, row) for row in range(rows)])
    state, further = batch.state, length - 1
    state.tokens = torch.randint(target.vocab, (rows, blocks(length)), device=target.device)
    state.starts, state.offsets = state.starts + further, state.offsets + further
    state.reached = [length] * rows
    state.reach(budget)
    for layer in state.cache.layers:
        for store in (layer.keys, layer.values):
            store[: state.cache.live, :, :further].normal_()
    return batch


@torch.inference_mode()
def passes(method: Method, batch: Batch, count: int) -> Run:
    """A turn of `count` passes, fewer than rows have budget for; then rows are rolled back by length."""
    generated, reached = batch.state.generated, list(batch.state.reached)
    said = [len(request.ids) for request in batch.live]
    run = timed(partial(step, method, batch), count)
    batch.state.generated, batch.state.reached = generated, reached
    for request, before in zip(batch.live, said, strict=True):
        del request.ids[before:]
    return run
