"""Steps that are recorded and replayed say what steps say, on a device that is not there and records as a GPU does.

`test_cuda.py` records real ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polydraft.core import decode as loop
from polydraft.core import replay
from polydraft.core.decode import Batch, Method, decode, join, leave, start, step
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.law.sampling import Sampling
from polydraft.core.replay import Graphs, Replays, recorded, recorder_of
from polydraft.core.rows import Rows

from .conftest import Lab, chosen, finish
from .far_device import DEVICE, Recorder, far_device, move
from .test_device import MIXED

DRAFTERS = [
    "oracle tree", "lookup", "jacobi preview", "local", "lm static", "eagle tree", "hydra chain", "kangaroo tree",
    "block crowded",
]  # fmt: skip
JUDGED = ["sps", "recursive", "lantern", "groups", "rows", "sjd maximal left"]  # one of a kind each


def sampled(made: Lab, guidance: float) -> list:
    short = [replace(prompt, budget=budget) for prompt, budget in zip(made.prompts, (16, 14, 12), strict=False)]
    return [chosen([prompt], MIXED[row], guidance)[0] for row, prompt in enumerate(short)]


def ragged(method: Method, prompts: list) -> Batch:
    """Two rows run a while, one leaves and another joins, and all go on to their ends."""
    batch = start(method, prompts[:2])
    for _ in range(3):
        step(method, batch)
    leave(batch, {batch.live[0].id: "stop"})
    join(method, batch, prompts[2:], ids=[2])
    return run_out(method, batch)


def run_out(method: Method, batch: Batch) -> Batch:
    for passes, _ in enumerate(decode(method, batch)):
        assert passes < 60, "the same step once more"
    return batch


def same_replayed(
    lab: Callable[..., Lab], patch: pytest.MonkeyPatch, pick: Callable[[Lab, str, list], tuple], guidance: float = 1.0
) -> Replays:
    """Recorded steps there say what steps say here."""
    here, there, guided = lab(), lab(), guidance != 1
    prompts = sampled(here, guidance)
    recorded = finish(here.method(None, guided), start(here.method(None, guided), prompts)).outputs
    drafter, verifier = pick(here, "cpu", recorded)
    expected = ragged(here.method(drafter, guided, verifier), prompts)
    patch.setattr(loop, "recorder_of", lambda target: Recorder())
    with far_device():
        move(there.model, *there.networks)
        drafter, verifier = pick(there, DEVICE, recorded)
        found = ragged(there.method(drafter, guided, verifier), prompts)
    assert [row.ids for row in found.in_order()] == [row.ids for row in expected.in_order()]
    assert found.finish_reasons() == expected.finish_reasons()
    return found.replays


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_plain_decoding_is_replayed_but_for_where_rows_change(lab, monkeypatch, guidance):
    assert same_replayed(lab, monkeypatch, lambda made, device, recorded: (None, None), guidance).replayed > 9


@pytest.mark.parametrize(("name", "guidance"), list(zip(DRAFTERS, itertools.cycle((1.0, 2.5)), strict=False)))
def test_every_drafter(lab, monkeypatch, name, guidance):
    replays = same_replayed(
        lab, monkeypatch, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), guidance
    )
    assert replays.replayed and replays.turns


@pytest.mark.parametrize("name", JUDGED)
def test_every_verifier(lab, monkeypatch, name):
    replays = same_replayed(lab, monkeypatch, lambda made, device, recorded: made.judged(device)[name])
    assert replays.replayed and replays.turns


def test_rows_that_outgrow_what_was_recorded_are_recorded_again(lab, monkeypatch):
    """Attention sees another block of keys, and caches move to where there is more room."""
    here, there = lab(), lab()
    prompts = [
        replace(prompt, branches=((3,) * (500 + row),), budget=30) for row, prompt in enumerate(here.prompts[:2])
    ]
    expected = finish(here.method(), start(here.method(), prompts))
    monkeypatch.setattr(loop, "recorder_of", lambda target: Recorder())
    with far_device():
        move(there.model)
        batch = start(there.method(), prompts)
        views = {(batch.state.cache.width, batch.replays.replayed > 0) for _ in decode(there.method(), batch)}
    assert [row.ids for row in batch.in_order()] == [row.tolist() for row in expected.outputs]
    assert {width for width, replayed in views if replayed} == {512, 1024} and batch.replays.replayed > 20


@pytest.mark.parametrize("name", ["jacobi left-law", "eagle chain"])
def test_a_batch_goes_on_with_what_the_one_before_recorded(lab, monkeypatch, name):
    """Other prompts and seeds of one shape; where rows are sampled differently they record anew."""
    here, there = lab(), lab()
    first = chosen([replace(here.prompts[0], budget=10)])
    other = [replace(first[0], branches=((5, 8, 2, 9),), seed=9)]
    greedy = chosen(first, Sampling(temperature=0))
    wanted = [
        finish(here.method(), start(here.method(), asked)).outputs[0].tolist() for asked in (first, other, greedy)
    ]
    monkeypatch.setattr(loop, "recorder_of", lambda target: Recorder())
    records = []
    monkeypatch.setattr(replay, "recorded", lambda *asked: records.append(1) or recorded(*asked))
    with far_device():
        move(there.model, *there.networks)
        method = there.method(there.drafters([], DEVICE)[name])
        for asked, ids, recordings in ((first, 0, 1), (other, 1, 1), (greedy, 2, 2), (first, 0, 2)):
            batch = start(method, asked)
            run_out(method, batch)
            assert batch.requests[0].ids == wanted[ids]
            assert len(records) == len(method.recordings) == recordings and batch.replays.replayed
            join(method, batch, first, ids=[7])  # a batch that ended begins again, in memory of its own
            run_out(method, batch)
            assert batch.requests[7].ids == wanted[0] and len(records) == recordings
    assert not replace(method, name="other").recordings


def test_a_step_that_waits_is_never_recorded(lab, monkeypatch):
    monkeypatch.setattr("polydraft.core.drafters.tree.drafter.most", lambda counts, ceiling: int(counts.max()))
    replays = same_replayed(
        lab, monkeypatch, lambda made, device, recorded: (made.drafters(recorded, device)["lm tree"], None)
    )
    assert not replays.replayed


def test_what_the_host_counts_in_a_step_is_not_recorded(lab, monkeypatch):
    """A number that changes would stay what it was when it was recorded."""

    @dataclass
    class Counting(Rows):
        passes: int

    class Counted(NoDrafter):
        def begin(self, own: Any, seen: Any) -> Any:
            return own or Counting(0)

        def draft(self, state: Any, own: Any, sampler: Any, noise: Any) -> Draft:
            own.passes += 1
            return super().draft(state, own, sampler, noise)

    replays = same_replayed(lab, monkeypatch, lambda made, device, recorded: (Counted(), None))
    assert not replays.replayed


def test_what_is_recorded_is_not_done_until_it_is_launched():
    with far_device():
        total, one = torch.zeros(2, device=DEVICE), torch.ones(2, device=DEVICE)
        made, launch = Recorder().record(lambda: total.add_(one) * 3)
        assert total.tolist() == [0, 0]
        launch()
        launch()
        assert total.tolist() == [2, 2] and made.tolist() == [6, 6]
        with pytest.raises(RuntimeError, match="waits"):
            Recorder().record(lambda: total * total.sum().item())


def test_nothing_is_recorded_on_cpus_over_devices_or_where_a_model_computes_in_its_own_way(lab):
    here, gpu = lab().target(), torch.device("cuda")
    assert recorder_of(here) is None and recorder_of(SimpleNamespace(device=gpu)) is None
    alone, spread = (SimpleNamespace(device=gpu, network=SimpleNamespace(spread=spread)) for spread in (False, True))
    assert isinstance(recorder_of(alone), Graphs) and recorder_of(spread) is None


def test_a_mistake_is_seen(lab, monkeypatch):
    """Rows join and leave, and what was recorded of others is replayed."""
    monkeypatch.setattr(Replays, "forget", lambda replays: None)
    with pytest.raises(AssertionError):
        same_replayed(lab, monkeypatch, lambda made, device, recorded: (None, None))
