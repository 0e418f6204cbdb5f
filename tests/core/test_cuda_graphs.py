"""Captured and replayed steps give the results of launched ones, on an emulated device that captures as a GPU does.

`test_cuda.py` captures real graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polydraft.core import cuda_graphs
from polydraft.core import decode as loop
from polydraft.core.batched_state import BatchedState
from polydraft.core.cuda_graphs import CapturedGraph, CudaGraphRecorder, CudaGraphRunner, capture_step, graph_recorder
from polydraft.core.decode import Batch, Method, add_requests, decode, decode_step, remove_requests, start_batch
from polydraft.core.draft import Draft
from polydraft.core.drafters.auto.drafter import AutoDrafter
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.sampling.params import SamplingParams

from .conftest import VOCAB, Lab, Turns, finish, with_sampling
from .far_device import DEVICE, Recorder, far_device, move
from .test_device import MIXED

DRAFTERS = [
    "oracle tree", "lookup", "jacobi preview", "local", "lm static", "eagle tree", "hydra chain", "kangaroo tree",
    "block crowded", "history", "lookahead",
]  # fmt: skip
VERIFIER_NAMES = ["sps", "recursive", "lantern", "groups", "rows", "sjd maximal left"]  # one of a kind each


def sampled(made: Lab, guidance: float) -> list:
    short = [replace(prompt, max_new_tokens=budget) for prompt, budget in zip(made.prompts, (16, 14, 12), strict=False)]
    return [with_sampling([prompt], MIXED[row], guidance)[0] for row, prompt in enumerate(short)]


def ragged(method: Method, prompts: list) -> Batch:
    """Run two rows, remove one and add another, and decode to the end."""
    batch = start_batch(method, prompts[:2])
    for _ in range(3):
        decode_step(method, batch)
    remove_requests(batch, {batch.running[0].id: "stop"})
    add_requests(method, batch, prompts[2:], ids=[2])
    return run_out(method, batch)


def run_out(method: Method, batch: Batch) -> Batch:
    for passes, _ in enumerate(decode(method, batch)):
        assert passes < 60, "the same step once more"
    return batch


def same_replayed(
    lab: Callable[..., Lab], patch: pytest.MonkeyPatch, pick: Callable[[Lab, str, list], tuple], guidance: float = 1.0
) -> CudaGraphRunner:
    """Check that replayed steps on the emulated device equal launched steps on the CPU."""
    here, there, guided = lab(), lab(), guidance != 1
    prompts = sampled(here, guidance)
    recorded = finish(here.method(None, guided), start_batch(here.method(None, guided), prompts)).outputs
    drafter, verifier = pick(here, "cpu", recorded)
    expected = ragged(here.method(drafter, guided, verifier), prompts)
    patch.setattr(loop, "graph_recorder", lambda target: Recorder())
    with far_device():
        move(there.model, *there.networks)
        drafter, verifier = pick(there, DEVICE, recorded)
        found = ragged(there.method(drafter, guided, verifier), prompts)
    assert [row.ids for row in found.requests_in_order()] == [row.ids for row in expected.requests_in_order()]
    assert found.finish_reasons() == expected.finish_reasons()
    return max(found.graph_runners.values(), key=lambda runner: runner.num_replayed)


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_plain_decoding_is_replayed_between_row_changes(lab, monkeypatch, guidance):
    assert same_replayed(lab, monkeypatch, lambda made, device, recorded: (None, None), guidance).num_replayed > 9


@pytest.mark.parametrize(("name", "guidance"), list(zip(DRAFTERS, itertools.cycle((1.0, 2.5)), strict=False)))
def test_every_drafter_is_replayed_or_refused(lab, monkeypatch, name, guidance):
    replays = same_replayed(
        lab, monkeypatch, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), guidance
    )
    assert replays.num_replayed and replays.attempts_left


@pytest.mark.parametrize("name", VERIFIER_NAMES)
def test_every_verifier_is_replayed_or_refused(lab, monkeypatch, name):
    replays = same_replayed(lab, monkeypatch, lambda made, device, recorded: made.verified_drafters(device)[name])
    assert replays.num_replayed and replays.attempts_left


def test_growing_view_is_captured_again(lab, monkeypatch):
    """Check rows whose attention view grows by a block and whose caches are reallocated."""
    here, there = lab(), lab()
    prompts = [
        replace(prompt, branch_token_ids=((3,) * (500 + row),), max_new_tokens=30)
        for row, prompt in enumerate(here.prompts[:2])
    ]
    expected = finish(here.method(), start_batch(here.method(), prompts))
    monkeypatch.setattr(loop, "graph_recorder", lambda target: Recorder())
    with far_device():
        move(there.model)
        batch = start_batch(there.method(), prompts)
        views = {
            (batch.state.cache.view_len, batch.graph_runners[""].num_replayed > 0)
            for _ in decode(there.method(), batch)
        }
    assert [row.ids for row in batch.requests_in_order()] == [row.tolist() for row in expected.outputs]
    assert {width for width, replayed in views if replayed} == {512, 1024} and batch.graph_runners[""].num_replayed > 20


@pytest.mark.parametrize("name", ["jacobi left-law", "eagle chain"])
def test_next_batch_adopts_pooled_graph(lab, monkeypatch, name):
    """Check that batches of equal shapes share a graph, and that other sampling parameters capture a new one."""
    here, there = lab(), lab()
    first = with_sampling([replace(here.prompts[0], max_new_tokens=10)])
    other = [replace(first[0], branch_token_ids=((5, 8, 2, 9),), seed=9)]
    greedy = with_sampling(first, SamplingParams(temperature=0))
    wanted = [
        finish(here.method(), start_batch(here.method(), asked)).outputs[0].tolist() for asked in (first, other, greedy)
    ]
    monkeypatch.setattr(loop, "graph_recorder", lambda target: Recorder())
    records = []
    monkeypatch.setattr(cuda_graphs, "capture_step", lambda *asked: records.append(1) or capture_step(*asked))
    with far_device():
        move(there.model, *there.networks)
        method = there.method(there.drafters([], DEVICE)[name])
        for asked, ids, recordings in ((first, 0, 1), (other, 1, 1), (greedy, 2, 2), (first, 0, 2)):
            batch = start_batch(method, asked)
            run_out(method, batch)
            assert batch.requests[0].ids == wanted[ids]
            assert len(records) == len(method.captured_graphs) == recordings and batch.graph_runners[""].num_replayed
            add_requests(method, batch, first, ids=[7])  # a batch that ended begins again, in memory of its own
            run_out(method, batch)
            assert batch.requests[7].ids == wanted[0] and len(records) == recordings
    assert not replace(method, name="other").captured_graphs


def test_synchronizing_step_is_never_captured(lab, monkeypatch):
    monkeypatch.setattr(
        "polydraft.core.drafters.tree.drafter.max_without_sync", lambda counts, ceiling: int(counts.max())
    )
    replays = same_replayed(
        lab, monkeypatch, lambda made, device, recorded: (made.drafters(recorded, device)["lm tree"], None)
    )
    assert not replays.num_replayed


def test_step_changing_host_values_is_not_captured(lab, monkeypatch):
    """Check that a step with a changing host number is refused: a replay would repeat the captured value."""

    @dataclass
    class CounterState(BatchedState):
        passes: int

    class CountingDrafter(NoDrafter):
        def begin(self, drafter_state: Any, seen: Any) -> Any:
            return drafter_state or CounterState(0)

        def draft(self, state: Any, drafter_state: Any, sampler: Any, noise: Any) -> Draft:
            drafter_state.passes += 1
            return super().draft(state, drafter_state, sampler, noise)

    replays = same_replayed(lab, monkeypatch, lambda made, device, recorded: (CountingDrafter(), None))
    assert not replays.num_replayed


def test_captured_work_runs_only_when_launched():
    with far_device():
        total, one = torch.zeros(2, device=DEVICE), torch.ones(2, device=DEVICE)
        made, launch = Recorder().capture(lambda: total.add_(one) * 3)
        assert total.tolist() == [0, 0]
        launch()
        launch()
        assert total.tolist() == [2, 2] and made.tolist() == [6, 6]
        with pytest.raises(RuntimeError, match="waits"):
            Recorder().capture(lambda: total * total.sum().item())


def test_unsupported_targets_have_no_graph_recorder(lab):
    here, gpu = lab().target(), torch.device("cuda")
    assert graph_recorder(here) is None and graph_recorder(SimpleNamespace(device=gpu)) is None
    alone, spread = (
        SimpleNamespace(device=gpu, network=SimpleNamespace(is_capturable=not spread)) for spread in (False, True)
    )
    assert isinstance(graph_recorder(alone), CudaGraphRecorder) and graph_recorder(spread) is None


@pytest.mark.parametrize("is_moved", [True, False])
def test_drafters_in_turn_replay_graphs_each(lab, monkeypatch, is_moved):
    """Check drafters that take turns, each with its graph; without moving tensors between graphs it goes wrong."""
    turns = ["ar"] * 4 + ["jacobi"] * 4 + ["lm"] * 4 + ["ar", "jacobi", "lm", "jacobi", "ar"] * 9

    def auto(made: Lab, device: Any) -> Any:
        def build(target: Any) -> AutoDrafter:
            candidates = made.candidates(target, {}, torch.ones(VOCAB, dtype=torch.bool).to(device))
            return AutoDrafter({name: candidates[name] for name in ("ar", "jacobi", "lm")}, Turns(turns))

        return build

    here, there = lab(), lab()
    prompts = with_sampling([replace(prompt, max_new_tokens=60) for prompt in here.prompts[:2]], SamplingParams())
    expected = run_out(here.method(), start_batch(here.method(), prompts))
    monkeypatch.setattr(loop, "graph_recorder", lambda target: Recorder())
    if not is_moved:
        monkeypatch.setattr(CapturedGraph, "move_owners_into_graph", lambda graph, owners: None)
    with far_device():
        move(there.model, *there.networks)
        method = there.method(auto(there, DEVICE))
        found = start_batch(method, prompts)
        for _ in range(60 if is_moved else 30):
            if len(found):
                decode_step(method, found)
        ids = [row.ids for row in found.requests_in_order()]
    plain = [row.ids for row in expected.requests_in_order()]
    same = all(longer[: len(begun)] == begun for longer, begun in zip(plain, ids, strict=True))
    assert same == is_moved
    if is_moved:
        # a network that catches up reads another number of tokens, so its first step after that is launched
        replayed = {name: runner.num_replayed for name, runner in found.graph_runners.items()}
        assert not len(found) and min(replayed["ar"], replayed["jacobi"]) > 4 and replayed["lm"] > 0


def test_replay_with_stale_graph_is_detected(lab, monkeypatch):
    """Check that replaying a graph after rows changed gives wrong results, which the comparison detects."""
    monkeypatch.setattr(CudaGraphRunner, "invalidate", lambda replays: None)
    monkeypatch.setattr(CapturedGraph, "move_owners_into_graph", lambda graph, owners: None)
    with pytest.raises(AssertionError):
        same_replayed(lab, monkeypatch, lambda made, device, recorded: (None, None))
