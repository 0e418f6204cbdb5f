"""Batches of long rows without their prefill: keys and values are random numbers, which a pass costs as much over.

batch = filled(plain(target), rows=1, length=8192, budget=64)
run = passes(method, batch, 16)          # 16 target passes; afterwards the rows are as long as before
"""

from __future__ import annotations

from functools import partial

import torch

from polydraft.apps.measure.table import PLAIN
from polydraft.apps.measure.timing import Run, timed
from polydraft.core.decode import Batch, Method, decode_step, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.model.cache import round_up_to_blocks
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier


def plain(target: CausalTarget) -> Method:
    """Plain decoding without a grammar, so that nothing ends before its budget."""
    return Method(PLAIN, target, NoDrafter(), SharedNoiseVerifier())


def prompt_of(target: CausalTarget, length: int, budget: int, seed: int = 0) -> PromptInputs:
    """Build a greedy request of `length` random ids."""
    generator = torch.Generator().manual_seed(seed)
    ids = tuple(torch.randint(target.vocab_size, (length,), generator=generator).tolist())
    return PromptInputs((ids,) * target.num_branches, budget, seed, sampling_params=SamplingParams(temperature=0))


@torch.inference_mode()
def filled_batch(method: Method, rows: int, length: int, budget: int) -> Batch:
    """Build `rows` greedy rows of `length` committed positions with capacity for `budget` more.

    Prompts of one token are prefilled; then the row lengths are raised, and the KV cache is filled up to there.
    """
    target = method.target
    batch = start_batch(method, [prompt_of(target, 1, budget, row) for row in range(rows)])
    state, further = batch.state, length - 1
    state.tokens = torch.randint(target.vocab_size, (rows, round_up_to_blocks(length)), device=target.device)
    state.prompt_lens, state.branch_prompt_lens = state.prompt_lens + further, state.branch_prompt_lens + further
    state.seq_lens = [length] * rows
    state.ensure_capacity(budget)
    for layer in state.cache.layers:
        for store in (layer.keys, layer.values):
            store[: state.cache.num_live_rows, :, :further].normal_()
    return batch


@torch.inference_mode()
def passes(method: Method, batch: Batch, count: int) -> Run:
    """Time `count` passes, fewer than rows have budget for; then rows are rolled back by length."""
    generated, reached = batch.state.num_generated, list(batch.state.seq_lens)
    lengths_before = [len(request.ids) for request in batch.running]
    run = timed(partial(decode_step, method, batch), count)
    batch.state.num_generated, batch.state.seq_lens = generated, reached
    for request, before in zip(batch.running, lengths_before, strict=True):
        del request.ids[before:]
    return run
