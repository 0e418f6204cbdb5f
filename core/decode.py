"""Draft, score, verify, commit: the one decoding loop behind every method and modality.

    method = Method("jacobi", target, drafter, verifier, sampler)
    batch = start_batch(method, prompts)
    for step in decode(method, batch): ...
    batch.outputs()      # generated ids of every request, in order

`decode` yields after every target pass; closing it cancels. `decode_step` is one iteration of the loop, for callers
that add and remove requests between steps (a server): `add_requests`, `remove_requests`, and `Batch.release` for
finished ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polydraft.core.batched_state import RowRemoval
from polydraft.core.cuda_graphs import CapturedGraph, CudaGraphRunner, EndPhase, graph_recorder
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, DraftOutcome
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.core.methods.tuning import PassTimes
from polydraft.core.model.threads import ThreadTuner
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.forced_tokens import fill_forced_tokens
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.stats import DecodeStats, PhaseTimer
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.core.verification import FINISH_REASONS, NO_VALID_TOKEN, keep_contiguous_prefix, truncate_at_stop
from polydraft.core.verifiers.base import Verifier


@dataclass(frozen=True)
class Method:
    """Decoding method: a target, the drafter that proposes tokens for it, the verifier, and the sampler."""

    name: str
    target: CausalTarget
    drafter: Drafter
    verifier: Verifier
    sampler: Any = Sampler()  # distributions of the target's outputs; latents have another kind (`core.continuous`)
    guarantee: str = ""  # overrides the verifier's where this machine fails `core.target.conformance`
    threads: ThreadTuner = field(default_factory=ThreadTuner, repr=False, compare=False)  # of its passes on CPUs
    pass_times: PassTimes | None = field(default=None, repr=False, compare=False)  # that draft sizes were chosen by
    # CUDA graphs of finished batches, for later batches; see `core.cuda_graphs`
    captured_graphs: list[CapturedGraph] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def effective_guarantee(self) -> str:
        """Return the guarantee that results are labelled with: "identical", "exact" or "lossy"."""
        return self.guarantee or self.verifier.guarantee

    def make_noise(self, prompts: list[PromptInputs]) -> Noise:
        """Create the noise of new rows."""
        rows, device = len(prompts), self.target.device
        seeds = torch.tensor([prompt.seed for prompt in prompts], dtype=torch.long, device=device)
        segments = torch.tensor([prompt.segment for prompt in prompts], dtype=torch.long, device=device)
        temperatures = [prompt.sampling_params.temperature for prompt in prompts]
        greedy = torch.tensor([temperature == 0 for temperature in temperatures], dtype=torch.bool, device=device)
        pass_index = torch.zeros(rows, dtype=torch.long, device=device)
        return Noise(
            seeds, segments, pass_index, greedy, temperatures, self.target.vocab_size, self.verifier.uses_shared_noise
        )


@dataclass
class Request:
    """State of a request on the host."""

    id: int
    stats: DecodeStats
    ids: list[Any] = field(default_factory=list)  # generated tokens: numbers, or lists of coordinates
    finish: str = "cancelled"  # why it ended; "cancelled" while it is running
    error: PolydraftError | None = None  # of a request that finished as "impossible"


@dataclass
class Batch:
    """Running requests, one per batch row, and all requests by id until they are released."""

    state: BatchState
    noise: Noise
    drafter_state: Any = None
    running: list[Request] = field(default_factory=list)  # in the order of the rows
    requests: dict[int, Request] = field(default_factory=dict)
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    graph_runner: CudaGraphRunner = field(default_factory=CudaGraphRunner)

    def __len__(self) -> int:
        return len(self.running)

    def release(self, request: int) -> Request:
        """Remove a finished request from the batch and return it."""
        if any(row.id == request for row in self.running):
            raise InvalidArgument(f"request {request} is running; remove it before it is released.")
        return self.requests.pop(request)

    def requests_in_order(self) -> list[Request]:
        """Return all requests, sorted by id."""
        return [self.requests[request] for request in sorted(self.requests)]

    def outputs(self) -> list[Tensor]:
        """Return the tokens of every request so far, `[T]` or `[T, C]`, sorted by request id."""
        like = self.state.tokens
        return [
            torch.tensor(request.ids, dtype=like.dtype).view(-1, *like.shape[2:])
            for request in self.requests_in_order()
        ]

    def finish_reasons(self) -> list[str]:
        """Return why each request ended, sorted by request id.

        It is "eos", "length", "impossible" (see the request's error), the reason it was stopped for, or "cancelled"
        while it is running.
        """
        return [request.finish for request in self.requests_in_order()]

    def raise_errors(self) -> None:
        """Raise the error of the first request that failed, for callers that need all of them."""
        for request in self.requests_in_order():
            if request.error is not None:
                raise request.error

    @property
    def stats(self) -> dict[int, DecodeStats]:
        """Return the statistics by request id."""
        return {request.id: request.stats for request in self.requests_in_order()}


@dataclass(frozen=True)
class StepResult:
    """Result of one target pass on the host, with one entry per row that took part."""

    requests: list[int]  # ids of the requests
    generated: list[int]  # tokens that each had before the step
    committed: list[list[Any]]  # tokens that the step committed
    accepted: list[int]  # how many of them had been drafted
    ended: list[int]  # ids of the requests that the step ended

    @property
    def counts(self) -> list[int]:
        """Return the number of tokens that the step committed, per row."""
        return [len(tokens) for tokens in self.committed]


@torch.inference_mode()
def start_batch(method: Method, prompts: list[PromptInputs], ids: list[int] | None = None) -> Batch:
    """Prefill a new batch of `prompts`, whose request ids default to 0, 1, …"""
    graph_runner = CudaGraphRunner(graph_recorder(method.target), method.captured_graphs)
    batch = Batch(method.target.empty_state(), method.make_noise([]), graph_runner=graph_runner)
    add_requests(method, batch, prompts, list(range(len(prompts))) if ids is None else ids)
    return batch


@torch.inference_mode()
def add_requests(method: Method, batch: Batch, prompts: list[PromptInputs], ids: list[int]) -> None:
    """Prefill target and drafter with `prompts`, and append them to the running rows.

    Args:
        method (Method): decoding method of the batch.
        batch (Batch): batch to extend.
        prompts (list[PromptInputs]): one per new request.
        ids (list[int]): request ids, none of which is in use.

    Raises:
        InvalidArgument: an id is in use or given twice, or a prompt does not fit the target.
    """
    if len(set(ids) - batch.requests.keys()) != len(prompts):
        raise InvalidArgument(f"requests {ids} are not {len(prompts)} new ones; every request needs an id of its own.")
    if not prompts:
        return
    batch.timer.end_phase("idle")
    batch.graph_runner.invalidate()
    with method.threads.apply():
        prefilled = method.target.prefill(batch.state, prompts)
        batch.drafter_state = method.drafter.begin(batch.drafter_state, prefilled)
    batch.noise.append_rows(method.make_noise(prompts))
    for request in ids:
        batch.requests[request] = Request(request, DecodeStats(method.name, method.effective_guarantee))
        batch.running.append(batch.requests[request])
    batch.timer.end_phase("prefill")


@torch.inference_mode()
def remove_requests(batch: Batch, reasons: Mapping[int, str]) -> None:
    """Remove requests from the running rows; their tokens stay until they are released.

    Args:
        batch (Batch): batch of the requests.
        reasons (Mapping[int, str]): finish reason by request id.
    """
    removed = [row for row, request in enumerate(batch.running) if request.id in reasons]
    if not removed:
        return
    for row in removed:
        batch.running[row].finish = reasons[batch.running[row].id]
    removal = RowRemoval.from_rows(removed, len(batch.running))
    batch.running = removal.apply_to_list(batch.running)
    batch.state.remove_rows(removal)
    batch.noise.remove_rows(removal)
    if batch.drafter_state is not None:
        batch.drafter_state.remove_rows(removal)
    if removal.num_kept:
        batch.graph_runner.invalidate()
    else:
        batch.graph_runner.return_graph(batch.state, [batch.drafter_state])


@torch.inference_mode()
def decode_step(method: Method, batch: Batch) -> StepResult:
    """Run one target pass over every row of `batch`, and remove the rows that end."""
    batch.timer.end_phase("idle")  # time spent by the caller between steps
    device_step = partial(decode_step_on_device, method, batch)
    score_seconds = batch.timer.seconds["score"]
    with method.threads.measure() as measured:
        readback = batch.graph_runner.run(
            device_step, batch.timer.end_phase, batch.state, [batch.noise, batch.drafter_state]
        )
        result = apply_readback(batch, readback)
        measured.method, measured.size = method.name, readback.num_scored
    if method.pass_times is not None:
        seconds = measured.compute_seconds(batch.timer.seconds["score"] - score_seconds)
        method.pass_times.observe(readback.num_scored - 1, seconds)
    remove_requests(batch, {request: batch.requests[request].finish for request in result.ended})
    batch.timer.end_phase("rest")
    return result


def decode(method: Method, batch: Batch) -> Iterator[StepResult]:
    """Run decoding steps until every row has ended."""
    while len(batch):
        yield decode_step(method, batch)


@dataclass(frozen=True)
class StepReadback:
    """Results of a step that the host reads, still on the device."""

    # [B, 4 + …] per row: tokens committed, tokens accepted, finish reason, nodes drafted; then the flattened tokens
    numbers: Tensor
    tokens_shape: torch.Size  # [B, D+1, …]
    drafter_passes: int
    num_scored: int  # positions that the target scored, of all rows


def decode_step_on_device(method: Method, batch: Batch, end_phase: EndPhase) -> StepReadback:
    """Draft, score, verify and commit, without reading from the device."""
    state = batch.state

    # draft
    draft = method.drafter.draft(state, batch.drafter_state, method.sampler, batch.noise)
    if method.sampler.max_forced_run:
        draft = fill_forced_tokens(draft, method.sampler, partial(generation_context, method, state))
    end_phase("draft")

    # score
    target_output = method.target.score(state, draft)
    end_phase("score")

    # verify
    context = generation_context(method, state, draft)
    distribution = method.sampler(target_output.outputs, state.sampling_tensors, context)
    result = method.verifier.verify(draft, distribution, batch.noise, state.num_generated)
    if method.verifier.guarantee == "identical" and not draft.is_chain:
        result = keep_contiguous_prefix(result)
    budget = state.max_new_tokens - state.num_generated
    is_allowed = distribution.is_allowed(result.token_indices, result.tokens)
    if state.is_finite is not None:
        is_allowed = is_allowed & state.is_finite
    result = truncate_at_stop(result, budget, method.sampler.stop_token_mask, is_allowed)
    end_phase("verify")

    # commit
    num_drafted = (draft.valid & (draft.depth[:, 1:] <= budget[:, None])).sum(1)  # nodes beyond the budget do not count
    method.target.commit(state, draft, result)
    outcome = DraftOutcome(draft, distribution, target_output.hidden_states, result)
    method.drafter.observe(state, batch.drafter_state, outcome)
    batch.noise.next_pass()

    assert result.finish_reason is not None
    numbers = torch.stack([result.num_committed, result.num_accepted, result.finish_reason, num_drafted], 1)
    numbers = torch.cat([numbers.to(result.tokens.dtype), result.tokens.flatten(1)], 1)
    return StepReadback(numbers, result.tokens.shape, draft.drafter_passes, len(numbers) * (draft.size + 1))


def generation_context(method: Method, state: BatchState, draft: Draft) -> GenerationContext | None:
    """Return the generation context at every tree index of `draft`; None if the sampler reads logits alone."""
    if not method.sampler.depends_on_history(state.sampling_tensors):
        return None
    positions = state.num_generated[:, None] + draft.depth
    path_tokens, depth = draft.path_tokens(state.root_tokens())
    return GenerationContext(state.tokens, state.num_tokens, path_tokens, depth, positions, state.max_new_tokens)


def apply_readback(batch: Batch, readback: StepReadback) -> StepResult:
    """Read the results of a step from the device, in one transfer, and update the requests."""
    numbers = readback.numbers.cpu()
    counts, tokens = numbers[:, :4].long().tolist(), numbers[:, 4:].view(readback.tokens_shape).tolist()
    requests = [request.id for request in batch.running]
    num_before = [len(request.ids) for request in batch.running]
    committed, accepted, ended = [], [], []
    for row, request in enumerate(batch.running):
        num_committed, num_accepted, finish_reason, num_drafted = counts[row]
        committed.append(tokens[row][:num_committed])
        accepted.append(num_accepted)
        request.ids += committed[row]
        request.stats.record_pass(num_drafted, num_accepted, num_committed, readback.drafter_passes)
        batch.state.seq_lens[row] += num_committed
        if reason := FINISH_REASONS[finish_reason]:
            request.finish = reason
            ended.append(request.id)
        if finish_reason == NO_VALID_TOKEN:
            request.error = InvalidArgument(
                f"nothing may follow token {len(request.ids)} of request {request.id}: grammar and sampling rule out "
                "every id, or the model's outputs are not finite; loosen them, or use float32."
            )
    return StepResult(requests, num_before, committed, accepted, ended)
