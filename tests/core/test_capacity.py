"""Capacity limits: the shortest prompts, the widest drafts, blocks that fill up, and prompts that are refused."""

from __future__ import annotations

import gc
import re
from dataclasses import fields, replace

import pytest
import torch

from polydraft.core.drafters.jacobi.window import JacobiDrafter, WindowInitializer
from polydraft.core.drafters.network.draft_model import LMDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.network.early_exit import EarlyExitDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.cache import KVCacheLayer
from polydraft.core.target.causal import CausalTarget

from ..covering import every_pair
from .conftest import DTYPES, KINDS, VOCAB, Lab, with_sampling

NAMED = Lab(**{field.name: [] if field.name == "prompts" else None for field in fields(Lab)})
DRAFTERS, VERIFIER_NAMES = list(NAMED.drafters([])), list(NAMED.verified_drafters())
BIG = {"deep": DynamicTree(12, 16), "wide": DynamicTree(10, 5, 60), "fixed": StaticTree(8, 63)}


def method_named(made, name):
    """Return the method of a drafter, or of a drafter with its verifier; oracles get an empty recording."""
    recorded = [torch.zeros(30, dtype=torch.long)] * len(made.prompts)
    drafter, verifier = made.verified_drafters().get(name, (made.drafters(recorded).get(name), None))
    return made.method(drafter, False, verifier)


@pytest.mark.parametrize(("dtype", "guidance"), every_pair(DTYPES, (1.0, 2.5)))
def test_single_token_prompts_equal_plain_decoding(lab, run, dtype, guidance):
    """Check them alone and with longer ones: there is nothing to prefill, and no hidden state before the root."""
    made, guided = lab(DTYPES[dtype]), guidance != 1
    prompts = [replace(made.prompts[0], branch_token_ids=((7,), (1,)), max_new_tokens=8),
               replace(made.prompts[2], max_new_tokens=9),
               replace(made.prompts[1], branch_token_ids=((9,), (1, 6)), max_new_tokens=5)]  # fmt: skip
    prompts = with_sampling(prompts, guidance=guidance)
    for rows in (prompts[:1], prompts):
        plain = run(made.method(None, guided), rows)
        for name, drafter in made.drafters(plain.outputs).items():
            assert run(made.method(drafter, guided), rows).same(plain), name
    for name, (drafter, verifier) in made.verified_drafters().items():
        outcome = run(made.method(drafter, guided, verifier), prompts)
        assert [len(output) for output in outcome.outputs] == [8, 9, 5], name


class Untouched:
    """Context that raises where a model is called."""

    def __init__(self, monkeypatch, *models) -> None:
        def called(*args, **kwargs):
            raise AssertionError("something was computed")

        for model in models:
            monkeypatch.setattr(model, "forward", called)


@pytest.mark.parametrize("name", ["plain", *DRAFTERS, *VERIFIER_NAMES])
def test_invalid_prompts_are_refused_before_computing(lab, run, monkeypatch, name):
    """Check for one error with any drafter, and that the other rows are neither lost nor computed."""
    made = lab()
    method = method_named(made, name)
    Untouched(monkeypatch, made.model, made.model.model, made.student.model, *made.networks)
    longest = method.target.context_len
    bad = {
        "has no tokens": replace(made.prompts[0], branch_token_ids=((),)),
        f"need {longest + 1} positions but this target holds {longest}": replace(
            made.prompts[0], max_new_tokens=longest + 1 - len(made.prompts[0].branch_token_ids[0])
        ),
    }
    for says, prompt in bad.items():
        with pytest.raises(InvalidArgument, match=says) as caught:
            run(method, [made.prompts[1], prompt])
        assert re.fullmatch(r"[^.]+\.", str(caught.value)), "one sentence"


def test_custom_context_len_is_usable_to_end(lab, run):
    """Check that the widest trees fill the context to its end; drafts need no extra capacity."""
    made = lab()
    plain = run(made.method(), made.prompts)
    wide = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=5, width=4)
    longest = max(len(prompt.branch_token_ids[0]) + prompt.max_new_tokens for prompt in made.prompts)
    exact, short = (
        replace(made.method(wide), target=CausalTarget(made.model, context=room)) for room in (longest, longest - 1)
    )
    assert run(exact, made.prompts).same(plain)
    with pytest.raises(InvalidArgument, match="shorten the prompt"):
        run(short, made.prompts)


@pytest.mark.parametrize("plan", BIG)
@pytest.mark.parametrize("kind", ["lm", "eagle", "kangaroo"])
def test_large_trees_equal_plain_decoding(lab, run, plan, kind):
    made, rank = lab(torch.bfloat16), CandidateRanking()
    prompts = [replace(prompt, max_new_tokens=8) for prompt in made.prompts[:3]]
    plain = run(made.method(), prompts)
    drafter = {
        "lm": lambda target: LMDrafter(made.student, target, BIG[plan], rank),
        "eagle": lambda target: EagleDrafter(made.eagle, target, BIG[plan], rank),
        "kangaroo": lambda target: EarlyExitDrafter(made.kangaroo.backbone, target, BIG[plan], rank),
    }[kind]
    assert run(made.method(drafter), prompts).same(plain)


def test_window_of_64_equals_plain_decoding(lab, run):
    made = lab(torch.bfloat16)
    plain = run(made.method(), made.prompts)
    drafter = JacobiDrafter(64, WindowInitializer("left", torch.ones(VOCAB, dtype=torch.bool), 4))
    assert run(made.method(drafter), made.prompts).same(plain)


@pytest.mark.parametrize(("kind", "edge"), every_pair(KINDS, (512, 1024)), indirect=["kind"])
def test_rows_growing_into_next_block_keep_output(lab, run, kind, edge):
    """Check a row that crosses a block boundary: the others get a wider view from then on, and the same bits."""
    made = lab(kind)
    long = tuple(1 + (7 * place) % 60 for place in range(edge - 9))
    prompts = [replace(made.prompts[0], branch_token_ids=(long, (1,)), max_new_tokens=24), *made.prompts[1:3]]
    alone = [run(made.method(), [prompt]).outputs[0] for prompt in prompts]
    plain = run(made.method(), prompts)
    assert all(map(torch.equal, plain.outputs, alone))
    drafters = made.drafters(plain.outputs)
    for name in ("oracle tree", "lm tree", "jacobi left-law", "eagle tree", "block crowded", "kangaroo tree"):
        drafted = run(made.method(drafters[name]), prompts)
        assert drafted.same(plain), name


@pytest.mark.parametrize(("rows", "most"), [(1, 1), (24, 5)], ids=["few rows, whole blocks", "many rows, an eighth"])
def test_kv_cache_reallocations_are_bounded(lab, run, monkeypatch, rows, most):
    """Check that many rows keep no unused slots, and that a short row is not copied again and again."""
    grown, grow = [], KVCacheLayer.resize_storage

    def count_copies(layer):
        grown.append(layer.cache.num_slots)
        grow(layer)

    monkeypatch.setattr(KVCacheLayer, "resize_storage", count_copies)
    made = lab()
    prompts = [
        replace(made.prompts[0], branch_token_ids=((7,) * 40, (1,)), max_new_tokens=60, seed=seed)
        for seed in range(rows)
    ]
    run(made.method(), prompts)
    assert len(set(grown)) <= most
    assert max(grown, default=512) == 512 if rows == 1 else max(grown) <= 112


@pytest.fixture
def uncollected():
    """Count the tensors since the test began that only the garbage collector would free; it is off meanwhile."""
    gc.collect()
    gc.disable()

    def collect() -> list[torch.Tensor]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        kept = [each for each in gc.garbage if torch.is_tensor(each)]
        gc.garbage.clear()
        return kept

    yield collect
    gc.enable()


@pytest.mark.parametrize("name", ["plain", *DRAFTERS, *VERIFIER_NAMES])
def test_finished_run_frees_its_memory(lab, run, uncollected, name):
    """Check that KV caches, gigabytes in a large model, are in no reference cycle."""
    made = lab()
    method = method_named(made, name)
    uncollected()
    assert run(method, made.prompts[:2]).outputs
    assert not uncollected()
