"""Room and its ends: the shortest prompts, the widest drafts, blocks that fill up, and what is refused unread."""

from __future__ import annotations

import gc
import re
from dataclasses import fields, replace

import pytest
import torch

from polydraft.core.drafters.jacobi.window import Initial, JacobiDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.network.kangaroo import EarlyExitDrafter
from polydraft.core.drafters.network.lm import LMDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Static
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.cache import SlotLayer
from polydraft.core.target import CausalTarget

from ..covering import every_pair
from .conftest import DTYPES, KINDS, VOCAB, Lab, chosen

NAMED = Lab(**{field.name: [] if field.name == "prompts" else None for field in fields(Lab)})
DRAFTERS, JUDGED = list(NAMED.drafters([])), list(NAMED.judged())
BIG = {"deep": Dynamic(12, 16), "wide": Dynamic(10, 5, 60), "fixed": Static(8, 63)}


def named(made, name):
    """The method of a drafter, or of a drafter with its judge; an oracle has little to say."""
    recorded = [torch.zeros(30, dtype=torch.long)] * len(made.prompts)
    drafter, verifier = made.judged().get(name, (made.drafters(recorded).get(name), None))
    return made.method(drafter, False, verifier)


@pytest.mark.parametrize(("dtype", "guidance"), every_pair(DTYPES, (1.0, 2.5)))
def test_prompts_of_one_token(lab, run, dtype, guidance):
    """Alone and beside longer ones: there is nothing to prefill, and no feature before the root."""
    made, guided = lab(DTYPES[dtype]), guidance != 1
    prompts = [replace(made.prompts[0], branches=((7,), (1,)), budget=8), replace(made.prompts[2], budget=9),
               replace(made.prompts[1], branches=((9,), (1, 6)), budget=5)]  # fmt: skip
    prompts = chosen(prompts, guidance=guidance)
    for rows in (prompts[:1], prompts):
        plain = run(made.method(None, guided), rows)
        for name, drafter in made.drafters(plain.outputs).items():
            assert run(made.method(drafter, guided), rows).same(plain), name
    for name, (drafter, verifier) in made.judged().items():
        outcome = run(made.method(drafter, guided, verifier), prompts)
        assert [len(output) for output in outcome.outputs] == [8, 9, 5], name


class Untouched:
    """Raises where a model is called."""

    def __init__(self, monkeypatch, *models) -> None:
        def called(*args, **kwargs):
            raise AssertionError("something was computed")

        for model in models:
            monkeypatch.setattr(model, "forward", called)


@pytest.mark.parametrize("name", ["plain", *DRAFTERS, *JUDGED])
def test_what_cannot_be_decoded_is_refused_before_anything_is_computed(lab, run, monkeypatch, name):
    """One sentence, whoever drafts; nothing of the other rows is lost or computed."""
    made = lab()
    method = named(made, name)
    Untouched(monkeypatch, made.model, made.model.model, made.student.model, *made.networks)
    longest = method.target.context
    bad = {
        "has no tokens": replace(made.prompts[0], branches=((),)),
        f"need {longest + 1} positions but this target holds {longest}": replace(
            made.prompts[0], budget=longest + 1 - len(made.prompts[0].branches[0])
        ),
    }
    for says, prompt in bad.items():
        with pytest.raises(InvalidArgument, match=says) as caught:
            run(method, [made.prompts[1], prompt])
        assert re.fullmatch(r"[^.]+\.", str(caught.value)), "one sentence"


def test_a_context_of_ones_own_is_kept_to_the_last_position(lab, run):
    """The widest trees fill it to its end; drafts need no room of their own."""
    made = lab()
    plain = run(made.method(), made.prompts)
    wide = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=5, width=4)
    longest = max(len(prompt.branches[0]) + prompt.budget for prompt in made.prompts)
    exact, short = (
        replace(made.method(wide), target=CausalTarget(made.model, context=room)) for room in (longest, longest - 1)
    )
    assert run(exact, made.prompts).same(plain)
    with pytest.raises(InvalidArgument, match="shorten the prompt"):
        run(short, made.prompts)


@pytest.mark.parametrize("plan", BIG)
@pytest.mark.parametrize("kind", ["lm", "eagle", "kangaroo"])
def test_large_trees(lab, run, plan, kind):
    made, rank = lab(torch.bfloat16), Rank()
    prompts = [replace(prompt, budget=8) for prompt in made.prompts[:3]]
    plain = run(made.method(), prompts)
    drafter = {
        "lm": lambda target: LMDrafter(made.student, target, BIG[plan], rank),
        "eagle": lambda target: EagleDrafter(made.eagle, target, BIG[plan], rank),
        "kangaroo": lambda target: EarlyExitDrafter(made.kangaroo.backbone, target, BIG[plan], rank),
    }[kind]
    assert run(made.method(drafter), prompts).same(plain)


def test_a_window_of_64(lab, run):
    made = lab(torch.bfloat16)
    plain = run(made.method(), made.prompts)
    drafter = JacobiDrafter(64, Initial("left", torch.ones(VOCAB, dtype=torch.bool), 4))
    assert run(made.method(drafter), made.prompts).same(plain)


@pytest.mark.parametrize(("kind", "edge"), every_pair(KINDS, (512, 1024)), indirect=["kind"])
def test_rows_that_grow_into_another_block_stay_what_they_are_alone(lab, run, kind, edge):
    """One row crosses the edge during the run; the others see a wider view from then on, and the same bits."""
    made = lab(kind)
    long = tuple(1 + (7 * place) % 60 for place in range(edge - 9))
    prompts = [replace(made.prompts[0], branches=(long, (1,)), budget=24), *made.prompts[1:3]]
    alone = [run(made.method(), [prompt]).outputs[0] for prompt in prompts]
    plain = run(made.method(), prompts)
    assert all(map(torch.equal, plain.outputs, alone))
    drafters = made.drafters(plain.outputs)
    for name in ("oracle tree", "lm tree", "jacobi left-law", "eagle tree", "block crowded", "kangaroo tree"):
        drafted = run(made.method(drafters[name]), prompts)
        assert drafted.same(plain), name


@pytest.mark.parametrize(("rows", "most"), [(1, 1), (24, 5)], ids=["few rows, whole blocks", "many rows, an eighth"])
def test_how_often_a_cache_is_copied_to_grow(lab, run, monkeypatch, rows, most):
    """Many rows keep no slots that they may never use; a short row does not pay for the same again and again."""
    grown, grow = [], SlotLayer.grow

    def counted(layer):
        grown.append(layer.cache.slots)
        grow(layer)

    monkeypatch.setattr(SlotLayer, "grow", counted)
    made = lab()
    prompts = [replace(made.prompts[0], branches=((7,) * 40, (1,)), budget=60, seed=seed) for seed in range(rows)]
    run(made.method(), prompts)
    assert len(set(grown)) <= most
    assert max(grown, default=512) == 512 if rows == 1 else max(grown) <= 112


@pytest.fixture
def uncollected():
    """Tensors that only the garbage collector would free, since the test began; it does not run meanwhile."""
    gc.collect()
    gc.disable()

    def found() -> list[torch.Tensor]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        kept = [each for each in gc.garbage if torch.is_tensor(each)]
        gc.garbage.clear()
        return kept

    yield found
    gc.enable()


@pytest.mark.parametrize("name", ["plain", *DRAFTERS, *JUDGED])
def test_a_run_gives_its_memory_back_when_it_is_let_go(lab, run, uncollected, name):
    """Keys and values of a large model are gigabytes: none may wait in a circle for the garbage collector."""
    made = lab()
    method = named(made, name)
    uncollected()
    assert run(method, made.prompts[:2]).outputs
    assert not uncollected()
