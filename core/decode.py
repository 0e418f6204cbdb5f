"""Draft, score, verify, commit: the one loop behind every method and modality.

    method = Method("jacobi", target, drafter, verifier, sampler)
    batch = start(method, prompts)
    for step in decode(method, batch): ...
    batch.outputs()      # generated ids of every request, in order

`decode` yields after every target pass; closing it cancels. `step` is one turn of the loop, for callers whose rows join
and leave (a server): `Batch.select` and `Batch.concat` between steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, Judged
from polydraft.core.sampling import History, Sampler
from polydraft.core.state import State
from polydraft.core.stats import DecodeStats, Stopwatch
from polydraft.core.stream import Noise, SecondStream
from polydraft.core.tape import NoiseTape
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verdict import Verdict, cut_at_end, in_place
from polydraft.core.verify.base import Verifier


@dataclass(frozen=True)
class Method:
    """A named way to decode: who drafts, who is drafted for, who judges, under which distribution."""

    name: str
    target: CausalTarget
    drafter: Drafter
    verifier: Verifier
    sampler: Sampler
    eos: frozenset[int] = frozenset()

    @property
    def bits_count(self) -> bool:
        """Whether identity hangs on the last bits: the promise is made, and the target computes in 16 bits."""
        return self.verifier.guarantee == "identical" and self.target.model.dtype.itemsize == 2

    def noise(self, prompts: list[Prompt]) -> Noise:
        """The tapes of new rows, or their second streams."""
        seeds, segments = [prompt.seed for prompt in prompts], [prompt.segment for prompt in prompts]
        vocab, greedy, device = self.target.vocab, self.sampler.sampling.greedy, self.target.device
        if self.verifier.on_tape:
            reach = self.drafter.reach + 1
            return NoiseTape(seeds, vocab, reach, greedy=greedy, segments=segments, device=device)
        return SecondStream(seeds, vocab, greedy=greedy, segments=segments, device=device)


@dataclass
class Batch:
    """Rows under way: what is committed, what the drafter keeps, their noise and counts; `done` holds ended rows."""

    state: State
    drafts: object
    noise: Noise
    stats: dict[int, DecodeStats]
    watch: Stopwatch = field(default_factory=Stopwatch)
    done: dict[int, tuple[Tensor, str]] = field(default_factory=dict)

    def outputs(self) -> list[Tensor]:
        """Generated ids of every request so far, in the order of their ids."""
        found = {request: tokens for request, (tokens, _) in self.done.items()}
        found.update(zip(self.state.ids, self.state.outputs(), strict=True))
        return [found[request] for request in sorted(found)]

    def finish_reasons(self) -> list[str]:
        """Why each request ended: "eos", "length" or, where it has not, "cancelled"."""
        return [self.done[request][1] if request in self.done else "cancelled" for request in sorted(self.stats)]


@dataclass(frozen=True)
class Step:
    """One target pass: which requests took part, what was drafted for them and what became of it."""

    requests: list[int]
    generated: list[int]
    draft: Draft
    verdict: Verdict


def start(method: Method, prompts: list[Prompt], ids: list[int] | None = None) -> Batch:
    """Prefill target and drafter. Request `ids` default to 0, 1, …"""
    watch = Stopwatch()
    state, seen = method.target.prefill(prompts, ids, method.drafter.nodes)
    drafts = method.drafter.begin(prompts, seen)
    noise = method.noise(prompts)
    watch.lap("prefill")
    stats = {request: DecodeStats(method.name, method.verifier.guarantee) for request in state.ids}
    return Batch(state, drafts, noise, stats, watch)


@torch.inference_mode()
def step(method: Method, batch: Batch) -> Step:
    """One target pass over every row of `batch`; rows that end leave it."""
    state, watch = batch.state, batch.watch
    before, requests = list(state.generated), list(state.ids)
    watch.lap("idle")  # whoever reads the steps
    draft = method.drafter.draft(state, batch.drafts, method.sampler, batch.noise)
    watch.lap("draft")
    scores = method.target.score(state, draft)
    watch.lap("score")
    law = method.sampler(scores.logits, history(state, draft) if method.sampler.remembers else None)
    verdict = method.verifier.verify(draft, law, batch.noise, state.generated)
    if method.bits_count and not draft.chain:
        verdict = in_place(verdict)
    verdict = cut_at_end(verdict, state, method.eos)
    watch.lap("verify")
    method.target.commit(state, draft, verdict)
    method.drafter.observe(state, batch.drafts, Judged(draft, law, scores.features, verdict))
    batch.noise.turn()
    count(batch, draft, verdict)
    retire(method, batch)
    watch.lap("rest")
    return Step(requests, before, draft, verdict)


def decode(method: Method, batch: Batch) -> Iterator[Step]:
    """Steps until every row has ended."""
    while len(batch.state):
        yield step(method, batch)


def history(state: State, draft: Draft) -> History:
    """What the law at every column of `draft` may depend on."""
    t = torch.tensor(state.generated, device=draft.tokens.device)[:, None] + draft.depth
    return History(state.tokens, state.valid(), torch.cat([state.roots(), draft.tokens], 1), draft.lineage, t)


def count(batch: Batch, draft: Draft, verdict: Verdict) -> None:
    drafted = draft.valid.sum(1).tolist()
    for row, request in enumerate(batch.state.ids):
        batch.stats[request].count(drafted[row], verdict.accepted[row], verdict.counts[row], draft.passes)


def retire(method: Method, batch: Batch) -> None:
    """Move ended rows to `done`."""
    state = batch.state
    if all(state.active):
        return
    for row, reason in enumerate(state.finish):
        if reason is not None:
            batch.done[state.ids[row]] = (state.output(row).clone(), reason)
    keep(method, batch, [row for row, active in enumerate(state.active) if active])


def keep(method: Method, batch: Batch, rows: list[int]) -> None:
    """Only `rows` stay in the batch."""
    batch.state, batch.noise = batch.state.select(rows), batch.noise.select(rows)
    batch.drafts = method.drafter.select(batch.drafts, rows)


def join(method: Method, batch: Batch, late: Batch) -> None:
    """Rows of `late` (started with other ids) join `batch`."""
    batch.state = State.concat([batch.state, late.state])
    batch.noise = type(batch.noise).concat([batch.noise, late.noise])  # type: ignore[list-item]
    batch.drafts = method.drafter.concat([batch.drafts, late.drafts])
    batch.stats.update(late.stats)
    batch.done.update(late.done)
