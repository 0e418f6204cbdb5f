"""Draft, score, verify, commit: the one loop behind every method and modality.

    method = Method("jacobi", target, drafter, verifier, sampler)
    batch = start(method, prompts)
    for step in decode(method, batch): ...
    batch.outputs()      # generated ids of every request, in order

`decode` yields after every target pass; closing it cancels. `step` is one turn of the loop, for callers whose rows join
and leave (a server): `join` and `leave` between steps, `Batch.release` for what has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, Outcome
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.core.law.forced import told
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.methods.fit import PassTimes
from polydraft.core.model.threads import ThreadTuner
from polydraft.core.replay import Lap, Recording, Replays, recorder_of
from polydraft.core.rows import Departure
from polydraft.core.state import State
from polydraft.core.stats import DecodeStats, Stopwatch
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verdict import IMPOSSIBLE, REASONS, cut_at_end, in_place
from polydraft.core.verify.base import Verifier


@dataclass(frozen=True)
class Method:
    """A named way to decode: who drafts, who is drafted for, who judges, under which grammar.

    sampler: laws of the target's outputs; another kind of token has another (`core.latent`).
    guarantee: what results are labelled with; the verifier's, unless this machine fails `core.model.proof`. recordings:
    what batches that ended have left to those to come, see `core.replay`.
    """

    name: str
    target: CausalTarget
    drafter: Drafter
    verifier: Verifier
    sampler: Any = Sampler()
    guarantee: str = ""
    threads: ThreadTuner = field(default_factory=ThreadTuner, repr=False, compare=False)  # of its passes on CPUs
    pass_times: PassTimes | None = field(default=None, repr=False, compare=False)  # that drafts were sized by
    recordings: list[Recording] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def label(self) -> str:
        return self.guarantee or self.verifier.guarantee

    def noise(self, prompts: list[Prompt]) -> Noise:
        """What new rows draw."""
        rows, device = len(prompts), self.target.device
        seeds = torch.tensor([prompt.seed for prompt in prompts], dtype=torch.long, device=device)
        segments = torch.tensor([prompt.segment for prompt in prompts], dtype=torch.long, device=device)
        temperatures = [prompt.sampling.temperature for prompt in prompts]
        greedy = torch.tensor([not heat for heat in temperatures], dtype=torch.bool, device=device)
        passes = torch.zeros(rows, dtype=torch.long, device=device)
        return Noise(seeds, segments, passes, greedy, temperatures, self.target.vocab, self.verifier.on_tape)


@dataclass
class Request:
    """What became of a request so far, on the host.

    ids: generated tokens, numbers or lists of coordinates. finish: why it ended, "cancelled" while it has not. error:
    what a request that finished as "impossible" failed with.
    """

    id: int
    stats: DecodeStats
    ids: list[Any] = field(default_factory=list)
    finish: str = "cancelled"
    error: PolydraftError | None = None


@dataclass
class Batch:
    """Rows under way (`live`, in their order), and requests by id until they are released."""

    state: State
    noise: Noise
    drafts: Any = None
    live: list[Request] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    watch: Stopwatch = field(default_factory=Stopwatch)
    replays: Replays = field(default_factory=Replays)

    def __len__(self) -> int:
        return len(self.live)

    def release(self, request: int) -> Request:
        """Hand out an ended request and forget it."""
        if any(row.id == request for row in self.live):
            raise InvalidArgument(f"request {request} is under way; let it leave before it is released.")
        return self.requests.pop(request)

    def in_order(self) -> list[Request]:
        return [self.requests[request] for request in sorted(self.requests)]

    def outputs(self) -> list[Tensor]:
        """Generated tokens of every request so far, `[T]` or `[T, C]`, in the order of their ids."""
        like = self.state.tokens
        return [torch.tensor(row.ids, dtype=like.dtype).view(-1, *like.shape[2:]) for row in self.in_order()]

    def finish_reasons(self) -> list[str]:
        """Why each request ended: "eos", "length", "impossible" (see its error), whatever it was stopped for or, where
        it has not, "cancelled"."""
        return [request.finish for request in self.in_order()]

    def raise_errors(self) -> None:
        """Raise what a request failed with, for callers who need all of them."""
        for request in self.in_order():
            if request.error is not None:
                raise request.error

    @property
    def stats(self) -> dict[int, DecodeStats]:
        return {request.id: request.stats for request in self.in_order()}


@dataclass(frozen=True)
class Step:
    """One target pass, as the host learnt of it: for every row that took part its request, how many tokens it had,
    which were committed, and how many of them had been drafted; `ended` are requests that it ended."""

    requests: list[int]
    generated: list[int]
    committed: list[list[Any]]
    accepted: list[int]
    ended: list[int]

    @property
    def counts(self) -> list[int]:
        return [len(tokens) for tokens in self.committed]


@torch.inference_mode()
def start(method: Method, prompts: list[Prompt], ids: list[int] | None = None) -> Batch:
    """A batch of `prompts`, whose request ids default to 0, 1, …"""
    replays = Replays(recorder_of(method.target), method.recordings)
    batch = Batch(method.target.empty(), method.noise([]), replays=replays)
    join(method, batch, prompts, list(range(len(prompts))) if ids is None else ids)
    return batch


@torch.inference_mode()
def join(method: Method, batch: Batch, prompts: list[Prompt], ids: list[int]) -> None:
    """Prefill target and drafter: requests `ids`, which no other may have, join behind the live rows."""
    if len(set(ids) - batch.requests.keys()) != len(prompts):
        raise InvalidArgument(f"requests {ids} are not {len(prompts)} new ones; every request needs an id of its own.")
    if not prompts:
        return
    batch.watch.lap("idle")
    batch.replays.forget()
    with method.threads.apply():
        seen = method.target.prefill(batch.state, prompts)
        batch.drafts = method.drafter.begin(batch.drafts, seen)
    batch.noise.extend(method.noise(prompts))
    for request in ids:
        batch.requests[request] = Request(request, DecodeStats(method.name, method.label))
        batch.live.append(batch.requests[request])
    batch.watch.lap("prefill")


@torch.inference_mode()
def leave(batch: Batch, reasons: Mapping[int, str]) -> None:
    """Requests leave the live rows, each for its reason; what they generated stays until it is released."""
    going = [row for row, request in enumerate(batch.live) if request.id in reasons]
    if not going:
        return
    for row in going:
        batch.live[row].finish = reasons[batch.live[row].id]
    leaving = Departure.of(going, len(batch.live))
    batch.live = leaving.list_of(batch.live)
    batch.state.leave(leaving)
    batch.noise.leave(leaving)
    if batch.drafts is not None:
        batch.drafts.leave(leaving)
    if leaving.left:
        batch.replays.forget()
    else:
        batch.replays.hand_on(batch.state, [batch.drafts])


@dataclass(frozen=True)
class Learnt:
    """What the host reads of a pass, still on the device: numbers `[B, 4 + …]`, how many tokens were committed,
    accepted, why the row ended, how many were drafted, then tokens of `shape`. passes: of the drafter's network."""

    numbers: Tensor
    shape: torch.Size
    passes: int
    positions: int  # scored by the target, of all rows


@torch.inference_mode()
def step(method: Method, batch: Batch) -> Step:
    """One target pass over every row of `batch`; rows that end leave it."""
    batch.watch.lap("idle")  # whoever reads the steps
    work = partial(advance, method, batch)
    scored = batch.watch.seconds["score"]
    with method.threads.measure() as measured:
        learnt = batch.replays.run(work, batch.watch.lap, batch.state, [batch.noise, batch.drafts])
        made = record(batch, learnt)
        measured.method, measured.size = method.name, learnt.positions
    if method.pass_times is not None:
        method.pass_times.observe(learnt.positions - 1, measured.own_seconds(batch.watch.seconds["score"] - scored))
    leave(batch, {request: batch.requests[request].finish for request in made.ended})
    batch.watch.lap("rest")
    return made


def advance(method: Method, batch: Batch, lap: Lap) -> Learnt:
    """All that a pass asks of the device: draft, score, verify, commit."""
    state = batch.state
    draft = method.drafter.draft(state, batch.drafts, method.sampler, batch.noise)
    if method.sampler.forced:
        draft = told(draft, method.sampler, partial(history, method, state))
    lap("draft")
    scores = method.target.score(state, draft)
    lap("score")
    law = method.sampler(scores.outputs, state.settings, history(method, state, draft))
    verdict = method.verifier.verify(draft, law, batch.noise, state.generated)
    if method.verifier.guarantee == "identical" and not draft.chain:
        verdict = in_place(verdict)
    left = state.budget - state.generated
    possible = law.possible(verdict.columns, verdict.tokens)
    if state.is_finite is not None:
        possible = possible & state.is_finite
    verdict = cut_at_end(verdict, left, method.sampler.ends, possible)
    lap("verify")
    drafted = (draft.valid & (draft.depth[:, 1:] <= left[:, None])).sum(1)  # what the budget has room for
    method.target.commit(state, draft, verdict)
    method.drafter.observe(state, batch.drafts, Outcome(draft, law, scores.features, verdict))
    batch.noise.turn()
    assert verdict.finish is not None
    numbers = torch.stack([verdict.counts, verdict.accepted, verdict.finish, drafted], 1)
    numbers = torch.cat([numbers.to(verdict.tokens.dtype), verdict.tokens.flatten(1)], 1)
    return Learnt(numbers, verdict.tokens.shape, draft.passes, len(numbers) * (draft.size + 1))


def decode(method: Method, batch: Batch) -> Iterator[Step]:
    """Steps until every row has ended."""
    while len(batch):
        yield step(method, batch)


def history(method: Method, state: State, draft: Draft) -> History | None:
    """What the law at every column of `draft` may depend on; None if it depends on nothing but the logits."""
    if not method.sampler.remembers(state.settings):
        return None
    t = state.generated[:, None] + draft.depth
    return History(state.tokens, state.lengths, *draft.paths(state.roots()), t, state.budget)


def record(batch: Batch, learnt: Learnt) -> Step:
    """Learn from the device, in one read, what the pass came to."""
    read = learnt.numbers.cpu()
    told, made = read[:, :4].long().tolist(), read[:, 4:].view(learnt.shape).tolist()
    requests, before = [request.id for request in batch.live], [len(request.ids) for request in batch.live]
    committed, ended = [], []
    for row, (request, (count, accepted, finish, nodes), tokens) in enumerate(zip(batch.live, told, made, strict=True)):
        request.ids += tokens[:count]
        request.stats.count(nodes, accepted, count, learnt.passes)
        batch.state.reached[row] += count
        committed.append(tokens[:count])
        if reason := REASONS[finish]:
            request.finish = reason
            ended.append(request.id)
        if finish == IMPOSSIBLE:
            request.error = InvalidArgument(
                f"nothing may follow token {len(request.ids)} of request {request.id}: grammar and sampling rule out "
                "every id, or the model's outputs are not finite; loosen them, or use float32."
            )
    return Step(requests, before, committed, [accepted for _, accepted, _, _ in told], ended)
