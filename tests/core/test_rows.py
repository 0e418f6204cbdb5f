"""Rows end early, join late, leave and are cancelled, and change nothing for anyone else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.decode import decode, join, keep, start, step
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.target import NARROWEST, CausalTarget

NAMES = [
    "oracle chain", "oracle tree", "lookup", "jacobi left-law", "jacobi random", "lm chain",
    "lm tree", "heads tree", "block tree",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_end_early_commit_nothing_past_the_end(lab, run, name):
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


def test_the_token_the_budget_ends_on_may_be_eos(lab, run):
    made = lab()
    row = made.prompts[:1]
    last = run(made.method(), row).outputs[0][-1]
    ended = run(made.method(eos=frozenset({int(last)})), row)
    assert ended.reasons == ["eos"] or last in ended.outputs[0][:-1]


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_join_late_change_nothing(lab, run, go_on, name, guidance):
    """Two rows start, two join after three passes, one leaves, the last joins after five more."""
    made = lab(torch.bfloat16)
    plain = run(made.method(None, None, guidance), made.prompts)
    method = made.method(made.drafters(plain.outputs)[name], None, guidance)
    batch = start(method, made.prompts[:2], ids=[0, 1])
    for _ in range(3):
        step(method, batch)
    join(method, batch, start(method, made.prompts[2:4], ids=[2, 3]))
    step(method, batch)
    gone = batch.state.ids.index(1)
    keep(method, batch, [row for row in range(len(batch.state)) if row != gone])
    for _ in range(4):
        if len(batch.state):
            step(method, batch)
    join(method, batch, start(method, made.prompts[4:], ids=[4]))
    outcome = go_on(method, batch)
    del plain.outputs[1]
    assert all(torch.equal(a, b) for a, b in zip(outcome.outputs, plain.outputs, strict=True))


def test_order_of_rows_is_free(lab, run, go_on):
    made = lab()
    plain = run(made.method(), made.prompts)
    method = made.method(made.drafters(plain.outputs)["oracle tree"])
    batch = start(method, made.prompts)
    step(method, batch)
    keep(method, batch, [3, 0, 4, 1, 2])
    assert go_on(method, batch).same(plain)


def test_closing_the_loop_keeps_what_was_committed(lab, run):
    made = lab()
    plain = run(made.method(), made.prompts[:2])
    method = made.method(made.drafters(plain.outputs)["oracle chain"])
    batch = start(method, made.prompts[:2])
    steps = decode(method, batch)
    for _ in range(3):
        next(steps)
    steps.close()
    assert batch.finish_reasons() == ["cancelled", "cancelled"]
    for output, whole in zip(batch.outputs(), plain.outputs, strict=True):
        assert 3 <= len(output) < len(whole) and torch.equal(output, whole[: len(output)])


def test_steps_tell_who_took_part_and_where(lab, run):
    made = lab()
    plain = run(made.method(), made.prompts)
    method = made.method(made.drafters(plain.outputs)["oracle chain"])
    batch, seen = start(method, made.prompts), dict.fromkeys(range(5), 0)
    for turn in decode(method, batch):
        for request, first, count in zip(turn.requests, turn.generated, turn.verdict.counts, strict=True):
            assert first == seen[request] and count >= 1
            seen[request] += count
    assert seen == {row: prompt.budget for row, prompt in enumerate(made.prompts)}


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(lab):
    made = lab()
    with pytest.raises(InvalidArgument, match="positions but this target holds 96"):
        start(made.method(), [replace(made.prompts[0], budget=95)])


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_trees_at_the_end_of_the_room_overwrite_nobody(lab, run, guidance):
    """The widest tree in a target that holds not one position more; one fewer is refused."""
    made = lab()
    plain = run(made.method(None, None, guidance), made.prompts)
    oracle = OracleDrafter(dict(enumerate(plain.outputs)), 61, reach=5, width=4)
    for drafter, nodes in ((oracle, 20), (None, NARROWEST - 1)):
        exact, short = (
            replace(made.method(drafter), target=CausalTarget(made.model, capacity=room, guidance_scale=guidance))
            for room in (10 + 30 + nodes, 10 + 30 + nodes - 1)
        )
        assert run(exact, made.prompts).same(plain)
        with pytest.raises(InvalidArgument, match="draft less"):
            run(short, made.prompts)
