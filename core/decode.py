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
from polydraft.core.draft import Draft, max_without_sync
from polydraft.core.drafters.base import Drafter, DraftOutcome, PassCost
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.core.methods.budget import NodeBudget
from polydraft.core.methods.tuning import PassTimes
from polydraft.core.model.threads import ThreadTuner
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.forced_tokens import fill_forced_tokens
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingTensors
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.stats import DecodeStats, PhaseTimer
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.core.verification import (
    FINISH_REASONS,
    NO_VALID_TOKEN,
    VerificationResult,
    keep_contiguous_prefix,
    truncate_at_stop,
)
from polydraft.core.verifiers.base import Verifier

PROMPT_END = 8  # ids of a prompt that are kept with its answer


@dataclass(frozen=True)
class Method:
    """Decoding method: a target, the drafter that proposes tokens for it, the verifier, and the sampler."""

    name: str
    target: CausalTarget
    drafter: Drafter
    verifier: Verifier
    sampler: Any = Sampler()  # or `LatentSampler` of `core.continuous`: from the target's outputs to distributions
    guarantee: str = ""  # overrides the verifier's where this machine fails `core.target.conformance`
    threads: ThreadTuner = field(default_factory=ThreadTuner, repr=False, compare=False)  # chooses CPU thread counts
    pass_times: PassTimes | None = field(default=None, repr=False, compare=False)  # by which the draft size was chosen
    node_budget: NodeBudget | None = field(default=None, repr=False, compare=False)  # drops draft nodes that do not pay
    # CUDA graphs of finished batches, for later batches; see `core.cuda_graphs`
    captured_graphs: list[CapturedGraph] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def effective_guarantee(self) -> str:
        """Return the guarantee that results are labelled with, such as "identical", "exact" or "lossy"."""
        return self.guarantee or self.verifier.guarantee

    def make_noise(self, prompts: list[PromptInputs]) -> Noise:
        """Create the random numbers of new batch rows, one per prompt, keyed by the prompt's seed and segment."""
        num_rows, device = len(prompts), self.target.device
        seeds = torch.tensor([prompt.seed for prompt in prompts], dtype=torch.long, device=device)
        segments = torch.tensor([prompt.segment for prompt in prompts], dtype=torch.long, device=device)
        temperatures = [prompt.sampling_params.temperature for prompt in prompts]
        greedy = torch.tensor([temperature == 0 for temperature in temperatures], dtype=torch.bool, device=device)
        pass_index = torch.zeros(num_rows, dtype=torch.long, device=device)
        return Noise(
            seeds, segments, pass_index, greedy, temperatures,
            vocab_size=self.target.vocab_size, uses_shared_noise=self.verifier.uses_shared_noise,
        )  # fmt: skip


@dataclass
class Request:
    """Generated tokens and statistics of a request, on the host."""

    id: int
    stats: DecodeStats
    ids: list[Any] = field(default_factory=list)  # generated tokens: ids, or lists of a latent's coordinates
    prompt_end: tuple[int, ...] = ()  # last ids of its prompt
    log_probs: list[float] = field(default_factory=list)  # of `ids`, if its sampling parameters ask for them
    finish: str = "cancelled"  # finish reason; "cancelled" while it is running
    error: PolydraftError | None = None  # set if the finish reason is "impossible"


@dataclass
class Batch:
    """Running requests, one per batch row, and all requests by id until they are released."""

    state: BatchState
    noise: Noise
    drafter_state: Any = None
    running: list[Request] = field(default_factory=list)  # in the order of the batch rows
    requests: dict[int, Request] = field(default_factory=dict)  # by request id
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    # one per drafter that takes turns (`Drafter.active_name`), since each has its own captured step
    graph_runners: dict[str, CudaGraphRunner] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of running requests, B."""
        return len(self.running)

    def release(self, request: int) -> Request:
        """Return a finished request, given its id, and drop it from `requests`.

        Raises:
            InvalidArgument: the request is still running.
        """
        if any(running.id == request for running in self.running):
            raise InvalidArgument(f"request {request} is running; remove it before it is released.")
        return self.requests.pop(request)

    def requests_in_order(self) -> list[Request]:
        """Return all requests, sorted by id."""
        return [self.requests[request] for request in sorted(self.requests)]

    def outputs(self) -> list[Tensor]:
        """Return the T tokens that every request has generated, sorted by request id: `[T]` ids or `[T, C]` latents."""
        dtype, token_shape = self.state.tokens.dtype, self.state.tokens.shape[2:]  # () for ids, (C,) for latents
        return [torch.tensor(request.ids, dtype=dtype).view(-1, *token_shape) for request in self.requests_in_order()]

    def finish_reasons(self) -> list[str]:
        """Return the finish reason of each request, sorted by request id.

        It is "eos", "length", "impossible" (see the request's error), a reason passed to `remove_requests`, or
        "cancelled" while the request is running.
        """
        return [request.finish for request in self.requests_in_order()]

    def raise_errors(self) -> None:
        """Raise the error of the first request that failed, for callers that need all of them."""
        for request in self.requests_in_order():
            if request.error is not None:
                raise request.error

    @property
    def stats(self) -> dict[int, DecodeStats]:
        """Return the statistics of all requests, by request id."""
        return {request.id: request.stats for request in self.requests_in_order()}


@dataclass(frozen=True)
class StepResult:
    """Result of one target pass on the host; lists have one entry per running request unless noted."""

    requests: list[int]  # request ids
    num_generated_before: list[int]  # generated tokens of each request before the step
    committed: list[list[Any]]  # tokens that the step committed
    num_accepted: list[int]  # number of those that had been drafted
    ended_requests: list[int]  # ids of the requests that the step ended, any number

    @property
    def num_committed(self) -> list[int]:
        """Return the number of tokens that the step committed, per running request."""
        return [len(tokens) for tokens in self.committed]


@torch.inference_mode()
def start_batch(method: Method, prompts: list[PromptInputs], ids: list[int] | None = None) -> Batch:
    """Return a new batch with prefilled `prompts`; `ids` are their request ids, by default 0, 1, …"""
    batch = Batch(method.target.empty_state(), method.make_noise([]))
    add_requests(method, batch, prompts, list(range(len(prompts))) if ids is None else ids)
    return batch


@torch.inference_mode()
def add_requests(method: Method, batch: Batch, prompts: list[PromptInputs], ids: list[int]) -> None:
    """Prefill target and drafter with `prompts`, and append them to the batch as running requests.

    Args:
        method (Method): decoding method of the batch.
        batch (Batch): batch to extend.
        prompts (list[PromptInputs]): one per new request.
        ids (list[int]): request ids, distinct and not in use.

    Raises:
        InvalidArgument: an id is in use or given twice, or a prompt does not fit the target.
    """
    if len(set(ids) - batch.requests.keys()) != len(prompts):
        raise InvalidArgument(f"requests {ids} are not {len(prompts)} new ones; every request needs an id of its own.")
    if not prompts:  # the batch stays as it is, and so its captured graphs stay valid
        return
    batch.timer.end_phase("idle")  # time spent by the caller since the last step
    for runner in batch.graph_runners.values():
        runner.invalidate()  # captured graphs are for the old batch size
    with method.threads.apply():
        prefilled = method.target.prefill(batch.state, prompts)
        batch.drafter_state = method.drafter.begin(batch.drafter_state, prefilled)
    batch.noise.append_rows(method.make_noise(prompts))
    for request_id, prompt in zip(ids, prompts, strict=True):
        request = Request(request_id, DecodeStats(method.name, method.effective_guarantee))
        request.prompt_end = prompt.branch_token_ids[0][-PROMPT_END:]
        batch.requests[request_id] = request
        batch.running.append(request)
    batch.timer.end_phase("prefill")


@torch.inference_mode()
def remove_requests(batch: Batch, reasons: Mapping[int, str]) -> None:
    """Remove requests from the running ones; their tokens and statistics stay in `batch.requests`.

    Args:
        batch (Batch): batch of the requests.
        reasons (Mapping[int, str]): finish reason by request id.
    """
    removed_rows = [row for row, request in enumerate(batch.running) if request.id in reasons]
    if not removed_rows:  # the batch stays as it is, and so its captured graphs stay valid
        return
    for row in removed_rows:
        request = batch.running[row]
        request.finish = reasons[request.id]
    removal = RowRemoval.from_rows(removed_rows, len(batch.running))
    batch.running = removal.apply_to_list(batch.running)
    batch.state.remove_rows(removal)
    batch.noise.remove_rows(removal)
    if batch.drafter_state is not None:
        batch.drafter_state.remove_rows(removal)
    runners = list(batch.graph_runners.values())
    if not removal.num_kept and runners:
        # A later batch may reuse the graph. Those of several drafters share a KV cache, so only one is kept.
        runners.pop().return_graph(batch.state, [batch.drafter_state])
    for runner in runners:
        runner.invalidate()  # captured graphs are for the old batch size


@torch.inference_mode()
def decode_step(method: Method, batch: Batch) -> StepResult:
    """Run one draft-and-verify step for all running requests, and remove those that end."""
    batch.timer.end_phase("idle")  # time spent by the caller between steps
    score_seconds_before, seconds_before = batch.timer.seconds["score"], pass_seconds(batch)
    decode_seconds_before, num_rows = batch.timer.decode_seconds, len(batch)
    device_step = partial(decode_step_on_device, method, batch)
    with method.threads.measure() as measured:
        method.drafter.prepare(batch.state, batch.drafter_state)
        drafter_name = method.drafter.active_name(batch.drafter_state)
        # launches the step, or replays it as a CUDA graph
        readback = graph_runner(method, batch, drafter_name).run(
            device_step, batch.timer.end_phase, batch.state, [batch.noise, batch.drafter_state]
        )
        result = apply_readback(batch, readback, drafter_name)
        # the number of threads is tuned on passes of the same method and of about the same number of positions
        measured.method, measured.size = method.name, readback.num_scored
    if method.pass_times is not None:  # compare the pass with the times by which the draft size was chosen
        score_seconds = measured.compute_seconds(batch.timer.seconds["score"] - score_seconds_before)
        # those were measured by the number of draft nodes after one root, which is scored too
        method.pass_times.observe(nodes=readback.num_scored - 1, seconds=score_seconds, num_sequences=num_rows)
    if method.node_budget is not None:
        num_accepted = sum(result.num_accepted)
        method.node_budget.observe(readback.num_scored, pass_seconds(batch) - seconds_before, num_accepted, num_rows)
    batch.timer.end_phase("rest")
    seconds = batch.timer.decode_seconds - decode_seconds_before
    if method.pass_times is not None:
        overhead = seconds - (batch.timer.seconds["score"] - score_seconds_before)
        method.pass_times.observe_overhead(readback.num_scored, overhead)
    cost = PassCost(num_rows, readback.num_scored, sum(result.num_committed), seconds)
    method.drafter.record(batch.drafter_state, cost)
    remove_requests(batch, {request: batch.requests[request].finish for request in result.ended_requests})
    batch.timer.end_phase("rest")
    return result


def graph_runner(method: Method, batch: Batch, drafter_name: str) -> CudaGraphRunner:
    """Return the runner of the steps of one drafter of the method, created when it is first needed."""
    runner = batch.graph_runners.pop(drafter_name, None)
    if runner is None:
        runner = CudaGraphRunner(graph_recorder(method.target), method.captured_graphs)
    batch.graph_runners[drafter_name] = runner  # the one used last comes last
    return runner


def drafter_key(method: Method, batch: Batch) -> str:
    """Return the name of the drafter of a pass: the method's, or that of the candidate whose turn it is."""
    return method.drafter.active_name(batch.drafter_state) or method.name


def pass_seconds(batch: Batch) -> float:
    """Return the seconds of scoring and verification so far, which depend on the number of scored positions."""
    return batch.timer.seconds["score"] + batch.timer.seconds["verify"]


def decode(method: Method, batch: Batch) -> Iterator[StepResult]:
    """Run decoding steps until no request is running, and yield the result of each."""
    while len(batch):
        yield decode_step(method, batch)


@dataclass(frozen=True)
class StepReadback:
    """Results of a step that the host reads, still on the device."""

    # [B, 4 + …], one tensor for one transfer. Per batch row: number of committed tokens, of accepted tokens, finish
    # reason, number of drafted nodes; then the committed tokens, flattened and padded
    flat_results: Tensor
    tokens_shape: torch.Size  # of the committed tokens, [B, D+1] for ids, [B, D+1, C] for latents
    drafter_passes: int  # forward passes of the drafter's network
    num_scored: int  # positions that the target scored, over all batch rows
    log_probs: Tensor | None = None  # [B, K] of the first committed tokens, K at least all; None if no request asks


def decode_step_on_device(method: Method, batch: Batch, end_phase: EndPhase) -> StepReadback:
    """Draft, score, verify and commit for every batch row, without reading from the device.

    Args:
        method (Method): decoding method of the batch.
        batch (Batch): batch whose device state is advanced; requests on the host are updated by `apply_readback`.
        end_phase (EndPhase): called with the name of every phase that ends.
    """
    state, sampler, noise = batch.state, method.sampler, batch.noise

    # draft: x_1 … x_N ~ q, a tree of tokens after the last committed token of every batch row
    draft = method.drafter.draft(state, batch.drafter_state, sampler, noise)
    if method.node_budget is not None:
        draft = method.node_budget.prune(draft, drafter_key(method, batch))
    if sampler.max_forced_run:  # tokens that are the only choice of the grammar need no drafter
        draft = fill_forced_tokens(draft, sampler, partial(generation_context, method, state))
    end_phase("draft")

    # score: one target pass over all nodes
    target_output = method.target.score(state, draft)
    end_phase("score")

    # verify: p at every node; the longest accepted path, and the bonus token after it
    context = generation_context(method, state, draft)
    distribution = sampler(target_output.outputs, state.sampling_tensors, context)
    result = method.verifier.verify(draft, distribution, noise, state.num_generated)
    if method.verifier.guarantee == "identical" and not draft.is_chain:
        result = keep_contiguous_prefix(result)  # KV entries that move would change the last bits of later logits

    # stop: at the first stop token, at the budget, and before a token that may not be sampled
    budget = state.max_new_tokens - state.num_generated
    is_allowed = distribution.is_allowed(result.token_indices, result.tokens)
    if state.is_finite is not None:  # [B, 1], False if the hidden states of a prompt are not finite
        is_allowed = is_allowed & state.is_finite
    result = truncate_at_stop(result, budget, sampler.stop_token_mask, is_allowed)
    num_drafted = (draft.valid & (draft.depth[:, 1:] <= budget[:, None])).sum(1)  # nodes beyond the budget do not count
    end_phase("verify")

    # commit: tokens and KV entries of the target, then the drafter's state
    method.target.commit(state, draft, result)
    outcome = DraftOutcome(draft, distribution, target_output.hidden_states, result)
    method.drafter.observe(state, batch.drafter_state, outcome)
    noise.next_pass()
    log_probs = committed_log_probs(distribution, result, state.sampling_tensors)
    return make_readback(draft, result, num_drafted, log_probs)


def committed_log_probs(
    distribution: TokenDistribution, result: VerificationResult, sampling_tensors: SamplingTensors
) -> Tensor | None:
    """Return the log probabilities of committed tokens, as `StepReadback.log_probs`; None if no request asks."""
    if not sampling_tensors.uses("log_probs"):
        return None
    count = max_without_sync(result.num_committed, upper_bound=result.tokens.shape[1])
    indices, tokens = result.token_indices[:, :count], result.tokens[:, :count]
    return distribution.log_probs_of(indices, tokens, sampling_tensors.temperature)


def make_readback(
    draft: Draft, result: VerificationResult, num_drafted: Tensor, log_probs: Tensor | None
) -> StepReadback:
    """Pack the results of a step into one tensor, so that the host reads them in one transfer.

    Args:
        draft (Draft): verified draft.
        result (VerificationResult): its verification, truncated at the end of every batch row.
        num_drafted (Tensor): `[B]` drafted nodes within each batch row's budget.
        log_probs (Tensor | None): result of `committed_log_probs`, a transfer of its own.
    """
    assert result.finish_reason is not None
    counts = torch.stack([result.num_committed, result.num_accepted, result.finish_reason, num_drafted], 1)  # [B, 4]
    flat_results = torch.cat([counts.to(result.tokens.dtype), result.tokens.flatten(1)], 1)
    num_scored = len(counts) * (draft.size + 1)
    return StepReadback(flat_results, result.tokens.shape, draft.drafter_passes, num_scored, log_probs)


def generation_context(method: Method, state: BatchState, draft: Draft) -> GenerationContext | None:
    """Return the tokens and positions before every tree index of `draft`, `[B, N+1, …]`, for logits processors.

    None if no logits processor of the batch reads them.
    """
    if not method.sampler.depends_on_history(state.sampling_tensors):
        return None
    positions = state.num_generated[:, None] + draft.depth
    path_tokens, depth = draft.path_tokens(state.root_tokens())
    return GenerationContext(state.tokens, state.num_tokens, path_tokens, depth, positions, state.max_new_tokens)


def apply_readback(batch: Batch, readback: StepReadback, drafter_name: str = "") -> StepResult:
    """Read the results of a step from the device, in one transfer, and update the running requests.

    Tokens, statistics and finish reasons of the requests are updated; requests that ended stay in the batch.

    Args:
        batch (Batch): batch of the step.
        readback (StepReadback): results of the step.
        drafter_name (str): who drafted, where several take turns.
    """
    flat_results = readback.flat_results.cpu()  # four counts per batch row as `make_readback` packs them, then tokens
    log_probs = None if readback.log_probs is None else readback.log_probs.tolist()
    counts, tokens = flat_results[:, :4].long().tolist(), flat_results[:, 4:].view(readback.tokens_shape).tolist()
    result = StepResult(
        requests=[request.id for request in batch.running],
        num_generated_before=[len(request.ids) for request in batch.running],
        committed=[],
        num_accepted=[],
        ended_requests=[],
    )
    for row, request in enumerate(batch.running):
        num_committed, num_accepted, finish_reason, num_drafted = counts[row]
        committed_tokens = tokens[row][:num_committed]
        result.committed.append(committed_tokens)
        result.num_accepted.append(num_accepted)
        request.ids += committed_tokens
        if log_probs is not None:
            request.log_probs += log_probs[row][:num_committed]
        request.stats.record_pass(num_drafted, num_accepted, num_committed, readback.drafter_passes, drafter_name)
        batch.state.seq_lens[row] += num_committed
        if reason := FINISH_REASONS[finish_reason]:  # None while the request goes on
            request.finish = reason
            result.ended_requests.append(request.id)
        if finish_reason == NO_VALID_TOKEN:
            request.error = InvalidArgument(
                f"nothing may follow token {len(request.ids)} of request {request.id}: grammar and sampling rule out "
                "every id, or the model's outputs are not finite; loosen them, or use float32."
            )
    return result
