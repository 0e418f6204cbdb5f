"""Rows that end early, are added late, removed or cancelled change nothing for other rows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from polydraft.core.batched_state import RowRemoval
from polydraft.core.decode import add_requests, decode, decode_step, remove_requests, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.cache import KVCache
from polydraft.core.sampling.params import RepetitionAware, SamplingParams
from polydraft.core.target.causal import PromptInputs

from ..covering import every_pair
from .conftest import KINDS, VOCAB, with_sampling

NAMES = [
    "oracle chain", "oracle tree", "lookup", "jacobi left-law", "jacobi random", "lm chain", "lm tree", "eagle tree",
    "hydra chain", "heads tree", "block crowded", "kangaroo tree",
]  # fmt: skip
SAMPLINGS = [
    SamplingParams(temperature=0), SamplingParams(), SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(top_p=0.8), SamplingParams(temperature=1.4, min_p=0.05), SamplingParams(repetition_penalty=1.5),
    SamplingParams(temperature=0, repetition_penalty=1.3),
    SamplingParams(top_k=7, repetition_aware=RepetitionAware(6, 0.2)),
    SamplingParams(temperature=0, repetition_aware=RepetitionAware(4, 0.25, banned=True)),
    SamplingParams(min_tokens=6, top_k=20, top_p=0.9, min_p=0.01),
]  # fmt: skip
EOS = frozenset({3, 5, 8, 13, 21, 34})


@pytest.mark.parametrize("name", NAMES)
def test_rows_ending_early_commit_nothing_after_end(lab, run, name):
    made = lab()
    free = run(made.method(), made.prompts)
    eos = frozenset({int(free.outputs[0][9]), int(free.outputs[2][4])})
    plain = run(made.method(eos=eos), made.prompts)
    assert plain.reasons.count("eos") >= 2
    for row, output in enumerate(plain.outputs):
        assert torch.equal(output, free.outputs[row][: len(output)])
        assert not set(output[:-1].tolist()) & eos
        assert (int(output[-1]) in eos) == (plain.reasons[row] == "eos")
    drafted = run(made.method(made.drafters(free.outputs)[name], eos=eos), made.prompts)
    assert drafted.same(plain)
    counted = [drafted.batch.stats[row].tokens for row in range(len(made.prompts))]
    assert counted == [len(output) for output in plain.outputs]


def test_last_token_of_budget_may_be_eos(lab, run):
    made = lab()
    row = made.prompts[:1]
    last = run(made.method(), row).outputs[0][-1]
    ended = run(made.method(eos=frozenset({int(last)})), row)
    assert ended.reasons == ["eos"] or last in ended.outputs[0][:-1]


@pytest.mark.parametrize(("name", "guidance"), every_pair(NAMES, (1.0, 2.5)))
def test_rows_added_late_change_no_output(lab, run, go_on, name, guidance):
    """Check two rows that start, two added after three passes, one removed, and the last added after five more."""
    made, guided = lab(torch.bfloat16), guidance != 1
    prompts = with_sampling(made.prompts, guidance=guidance)
    plain = run(made.method(None, guided), prompts)
    method = made.method(made.drafters(plain.outputs)[name], guided)
    batch = start_batch(method, prompts[:2], ids=[0, 1])
    for _ in range(3):
        decode_step(method, batch)
    add_requests(method, batch, prompts[2:4], ids=[2, 3])
    decode_step(method, batch)
    remove_requests(batch, {1: "loop"})
    for _ in range(4):
        if len(batch):
            decode_step(method, batch)
    add_requests(method, batch, prompts[4:], ids=[4])
    outcome = go_on(method, batch)
    assert outcome.reasons[1] == "loop" and outcome.reasons.count("length") == 4
    whole = plain.outputs[1]
    assert 0 < len(outcome.outputs[1]) < len(whole)
    plain.outputs[1] = whole[: len(outcome.outputs[1])]
    assert all(torch.equal(a, b) for a, b in zip(outcome.outputs, plain.outputs, strict=True))


@pytest.mark.parametrize(("kind", "guided"), every_pair(KINDS, (False, True)), indirect=["kind"])
def test_mixed_rows_equal_single_row_runs(lab, run, kind, guided):
    """Check up to 64 rows with different parameters, added and removed at random, drafted by an LM and by Jacobi."""
    made, choice = lab(kind), random.Random(int(guided))
    prompts = []
    for request in range(70):
        ids = tuple(choice.randrange(VOCAB) for _ in range(choice.randrange(1, 20)))
        sampling = replace(choice.choice(SAMPLINGS), guidance_scale=choice.choice([1.0, 1.5, 3.0]) if guided else 1.0)
        branches = (ids, (1, 6)[: choice.randrange(1, 3)])
        prompts.append(PromptInputs(branches, choice.randrange(1, 14), request, request % 3, sampling_params=sampling))
    plain = made.method(None, guided, eos=EOS)
    alone = [run(plain, [prompt]) for prompt in prompts]
    for name in ("plain", "lm tree", "jacobi left-law"):
        method = plain if name == "plain" else made.method(made.drafters([])[name], guided, eos=EOS)
        waiting = list(range(len(prompts)))
        choice.shuffle(waiting)
        first, waiting = waiting[:60], waiting[60:]
        batch = start_batch(method, [prompts[request] for request in first], ids=first)
        most, left = 0, set()
        while len(batch) or waiting:
            joining, waiting = (waiting[:4], waiting[4:]) if choice.random() < 0.6 or not len(batch) else ([], waiting)
            if joining:
                add_requests(method, batch, [prompts[request] for request in joining], joining)
            most = max(most, len(batch))
            if len(batch) > 8 and choice.random() < 0.3:
                gone = choice.choice(batch.running).id
                left.add(gone)
                remove_requests(batch, {gone: "cancelled"})
            decode_step(method, batch)
        assert 60 <= most <= 64 and left
        for request, (output, reason) in enumerate(zip(batch.outputs(), batch.finish_reasons(), strict=True)):
            wanted = alone[request].outputs[0]
            if request in left:
                wanted = wanted[: len(output)]
            else:
                assert reason == alone[request].reasons[0]
            assert torch.equal(output, wanted), (name, request, prompts[request])


@pytest.mark.parametrize("name", ["sjd independent random", "sjd maximal left", "block", "recursive", "groups"])
def test_fresh_noise_rows_equal_single_row_runs(lab, run, name):
    """Check that fresh noise depends on the row's own passes, so that a row added late is as it is alone."""
    made = lab()
    drafter, verifier = made.verified_drafters()[name]
    method = made.method(drafter, False, verifier)
    alone = [run(method, [prompt]).outputs[0] for prompt in made.prompts]
    batch = start_batch(method, made.prompts[:2], ids=[0, 1])
    for _ in range(3):
        decode_step(method, batch)
    add_requests(method, batch, made.prompts[2:], ids=[2, 3, 4])
    for _ in decode(method, batch):
        pass
    assert all(map(torch.equal, batch.outputs(), alone))


def test_row_removal_moves_one_row_per_gap(lab, monkeypatch):
    made = lab()
    method = made.method()
    prompts = [replace(made.prompts[0], branch_token_ids=((1, 2 + row, 9),)) for row in range(15)]
    batch = start_batch(method, prompts)
    decode_step(method, batch)
    layer = batch.state.cache.layers[0]
    before, copied = layer.keys.data_ptr(), layer.keys.clone()
    assert RowRemoval.from_rows([2, 14, 7], 15) == RowRemoval([2, 7], [12, 13], 12)
    remove_requests(batch, {2: "loop", 14: "loop", 7: "loop"})
    assert [request.id for request in batch.running] == [0, 1, 12, 3, 4, 5, 6, 13, 8, 9, 10, 11]
    changed = [row for row in range(15) if not torch.equal(layer.keys[row], copied[row])]
    assert changed == [2, 7] and torch.equal(layer.keys[2], copied[12]) and torch.equal(layer.keys[7], copied[13])
    assert layer.keys.data_ptr() == before, "the pool was not made anew"
    grown = []
    monkeypatch.setattr(KVCache, "resize_storage", lambda self: grown.append(self))
    add_requests(method, batch, made.prompts[:3], [20, 21, 22])
    assert layer.keys.data_ptr() == before and not grown, "rows that join take the places of rows that left"


def test_requests_are_kept_until_released(lab, run):
    made = lab()
    method = made.method()
    batch = start_batch(method, made.prompts[:2], ids=[7, 3])
    for ids, prompts in (([3], made.prompts[2:3]), ([8, 8], made.prompts[2:4]), ([8], made.prompts[2:4])):
        with pytest.raises(InvalidArgument, match="id of its own"):
            add_requests(method, batch, prompts, ids)
    assert len(batch) == 2 and len(batch.state) == 2, "what is refused leaves nothing behind"
    decode_step(method, batch)
    with pytest.raises(InvalidArgument, match="is running"):
        batch.release(7)
    remove_requests(batch, {7: "cancelled"})
    gone = batch.release(7)
    assert gone.id == 7 and len(gone.ids) == 1 and gone.finish == "cancelled" and list(batch.requests) == [3]
    add_requests(method, batch, made.prompts[4:], [7])
    for _ in decode(method, batch):
        pass
    alone = [run(method, [prompt]).outputs[0] for prompt in (made.prompts[1], made.prompts[4])]
    assert all(map(torch.equal, batch.outputs(), alone)) and set(batch.stats) == {3, 7}


def test_requests_can_be_added_to_empty_batch(lab, run):
    made = lab()
    method = made.method(made.drafters([])["lm tree"])
    batch = start_batch(method, [])
    assert batch.outputs() == [] and not len(batch)
    add_requests(method, batch, made.prompts, list(range(5)))
    for _ in decode(method, batch):
        pass
    assert all(map(torch.equal, batch.outputs(), run(made.method(), made.prompts).outputs))


def test_closing_decode_keeps_committed_tokens(lab, run):
    made = lab()
    plain = run(made.method(), made.prompts[:2])
    method = made.method(made.drafters(plain.outputs)["oracle chain"])
    batch = start_batch(method, made.prompts[:2])
    steps = decode(method, batch)
    for _ in range(3):
        next(steps)
    steps.close()
    assert batch.finish_reasons() == ["cancelled", "cancelled"]
    for output, whole in zip(batch.outputs(), plain.outputs, strict=True):
        assert 3 <= len(output) < len(whole) and torch.equal(output, whole[: len(output)])


def test_step_result_lists_requests_and_tokens(lab, run):
    made = lab()
    plain = run(made.method(), made.prompts)
    method = made.method(made.drafters(plain.outputs)["oracle chain"])
    batch, seen, ended = start_batch(method, made.prompts), {row: [] for row in range(5)}, []
    for turn in decode(method, batch):
        ended += turn.ended_requests
        for request, first, tokens, accepted in zip(
            turn.requests, turn.num_generated_before, turn.committed, turn.num_accepted, strict=True
        ):
            assert first == len(seen[request]) and tokens and accepted in (len(tokens), len(tokens) - 1)
            seen[request] += tokens
    assert [seen[row] for row in range(5)] == [output.tolist() for output in plain.outputs]
    assert sorted(ended) == list(range(5))


def test_drafts_beyond_budget_are_not_counted(lab, run):
    """Check a chain of five with a budget of one: one node counts as drafted, whatever the window."""
    made = lab()
    (prompt,) = (replace(made.prompts[0], max_new_tokens=1),)
    plain = run(made.method(), [prompt])
    for reach, width in ((5, 1), (4, 3)):
        oracle = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=reach, width=width, acceptance=1, leads=1)
        stats = run(made.method(oracle), [prompt]).batch.stats[0]
        assert (stats.drafted, stats.accepted, stats.tokens, stats.target_passes) == (width, 1, 1, 1)
    assert isinstance(made.method().drafter, NoDrafter) and plain.batch.stats[0].drafted == 0


@pytest.mark.parametrize("name", ["lm stopping", "kangaroo tree"])
def test_early_stopping_rows_draft_as_alone(lab, run, name):
    """Check that a stopped row's draft and acceptance do not depend on rows that go on for more levels."""
    made = lab()
    method = made.method(made.drafters([])[name])
    alone = [run(method, [prompt]).batch.stats[0] for prompt in made.prompts]
    together = run(method, made.prompts).batch.stats
    assert len({stats.drafted / stats.target_passes for stats in alone}) > 1 or name != "lm stopping"
    for row, stats in enumerate(alone):
        for field in ("drafted", "accepted", "target_passes", "tokens"):
            assert getattr(together[row], field) == getattr(stats, field), (row, field)
