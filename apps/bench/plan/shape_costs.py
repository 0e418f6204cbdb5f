"""Costs of a shape with random weights: a step of B rows of the asked length, τ prescribed.

ways = measure_shape("smolvlm", Work(640, 128, 4.0), [1, 4, 16], target)

Nothing would be accepted with random weights: an EAGLE-2 tree is drafted, scored and verified in earnest, then as many
tokens are accepted as --tau says. There is no tokenizer, no pixel decoder, no sound and no server, so a request takes
its prefill and its steps, and everything else counts as nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from polydraft.apps.bench.plan.capacity import ServiceCosts, StepCost
from polydraft.apps.bench.roofline import SURE, Prescribed, check_tau
from polydraft.apps.measure import shapes
from polydraft.apps.measure.filled import plain, prompt_of
from polydraft.apps.measure.timing import timed
from polydraft.apps.terminal.terminal import note
from polydraft.core.decode import Method, decode_step, start_batch
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleModel
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.linear import prepare_linears
from polydraft.core.target.causal import CausalTarget

WARM_UP, TIMED, REPEATS = 2, 8, 3  # steps, and rounds of timed ones
PLAN = DynamicTree(5, 4, 16)  # draft tree: depth, live nodes of a level, nodes


@dataclass(frozen=True)
class Work:
    """Sizes of the requests to a shape, and their acceptance."""

    prompt: int  # tokens
    tokens: int  # of an answer
    tau: float  # tokens that a drafted step commits of a row


def check_work(shape: str, work: Work, target: CausalTarget) -> None:
    """Refuse a τ that the draft tree cannot give, and work that the shape has no positions for."""
    check_tau(work.tau, PLAN)
    needed = work.prompt + work.tokens + (WARM_UP + REPEATS * TIMED + 1) * (PLAN.depth + 1)
    if needed > target.context_len:
        raise InvalidArgument(
            f"{shape} holds {target.context_len} positions and the measurement needs {needed}; give a shorter --prompt "
            "or fewer --tokens."
        )


def measure_shape(shape: str, work: Work, row_counts: Sequence[int], target: CausalTarget) -> dict[str, ServiceCosts]:
    """Return the costs of plain and drafted requests at every number of rows.

    Args:
        shape: Name of the shape.
        work: Requests.
        row_counts: Numbers of rows, ascending from 1.
        target: The shape's target, of `shapes.target_of`.
    """
    check_work(shape, work, target)
    config = shapes.config_of(shape)
    with torch.device(target.device):
        head = EagleModel(config).to(target.model.dtype).eval().requires_grad_(False)
    prepare_linears(head)
    drafted = replace(
        plain(target), name="eagle2", drafter=EagleDrafter(head, target, PLAN, CandidateRanking(SURE)),
        verifier=Prescribed(work.tau),
    )  # fmt: skip
    return {
        "drafted": measure_method(shape, drafted, work, row_counts),
        "plain": measure_method(shape, plain(target), work, row_counts),
    }


@torch.inference_mode()
def measure_method(shape: str, method: Method, work: Work, row_counts: Sequence[int]) -> ServiceCosts:
    """Return the costs of one method; rows are as long as halfway through their answers."""
    nodes = PLAN.total if method.name != plain(method.target).name else 0
    tau = work.tau if nodes else 1.0
    prompt = prompt_of(method.target, work.prompt, work.tokens)
    joins = [timed(lambda: start_batch(method, [prompt])).seconds for _ in range(REPEATS + 1)][1:]
    steps = []
    for rows in row_counts:
        note(f"{shape}, {method.name}, {rows} rows")
        budget = (WARM_UP + REPEATS * TIMED + 1) * (PLAN.depth + 1)
        length = work.prompt + work.tokens // 2
        batch = start_batch(method, [prompt_of(method.target, length, budget, row) for row in range(rows)])
        step = partial(decode_step, method, batch)
        timed(step, WARM_UP)
        seconds = statistics.median(timed(step, TIMED).pace for _ in range(REPEATS))
        steps.append(StepCost(rows, nodes, seconds, tau))
    return ServiceCosts(
        method.name, max(row_counts), tuple(steps), statistics.median(joins), 0.0, 0.0, (work.tokens,)
    )  # fmt: skip
