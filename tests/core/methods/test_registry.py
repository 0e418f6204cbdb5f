"""Methods by name, their parameters, and errors for wrong ones."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.heads.ctc import CTCModel
from polydraft.core.drafters.network.draft_model import DraftModel
from polydraft.core.errors import InvalidArgument, UnknownMethod, UnsupportedMethod
from polydraft.core.methods.budget import PassLatency
from polydraft.core.methods.registry import build, methods, parse
from polydraft.core.methods.spec import MethodContext
from polydraft.core.methods.tuning import (
    SIZE_STEPS,
    BatchAwareDraftSize,
    best_draft_size,
    expected_tau_by_nodes,
    median_pass_seconds,
)
from polydraft.core.stats import DecodeStats, PhaseTimer

from ..conftest import NETWORKS


def test_method_names_keep_their_parameters():
    method = parse(" jacobi( window=12 , init=above ) ")
    assert method.drafter_params == {"window": 12, "init": "above"} and method.name == "jacobi(window=12,init=above)"
    assert parse("ar").name == "ar" and parse(method.name) == method


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("warp", UnknownMethod, "use one of ar"),
        ("jacobi(speed=3)", UnknownMethod, "window, init"),
        ("ar(window=3)", UnknownMethod, "none"),
        ("jacobi(window=0)", InvalidArgument, "from 1 to 256"),
        ("jacobi(window=many)", InvalidArgument, "whole number"),
        ("jacobi(init=up)", InvalidArgument, "left-law"),
        ("draft(spread=0)", InvalidArgument, "from 0.01"),
        ("jacobi(window=3", UnknownMethod, "polydraft methods"),
        ("", UnknownMethod, "polydraft methods"),
    ],
)
def test_unknown_method_name_error_suggests_alternatives(text, error, says):
    with pytest.raises(error, match=says):
        parse(text)


def test_parameter_precedence_is_given_tuned_default(lab):
    everything = torch.ones(61, dtype=torch.bool)
    context = MethodContext("m", lab().target(), everything, row_length=4, tuned_params=lambda method: {"window": 5})
    assert build(parse("jacobi"), context)[0].window == 5
    assert build(parse("jacobi(window=7)"), context)[0].window == 7
    assert build(parse("jacobi"), MethodContext("m", lab().target(), everything))[0].window == 16


def test_draft_size_shrinks_with_batch_where_identical(lab):
    """Check a cost model where positions are free up to 10 and cost a millisecond each from there on."""
    committed = {nodes: 1 + nodes**0.7 for nodes in range(1, 9)}
    seconds = {0: 0.01, 10: 0.01, 20: 0.02}
    sized = BatchAwareDraftSize(committed, lambda: {0: 0.01, 10: 0.01}, lambda: seconds)
    sizes = [sized(rows) for rows in (1, 2, 4, 8, 64)]
    assert sizes == [8, 5, 2, 1, 1]
    made = lab()
    context = MethodContext(
        "m", made.target(), torch.ones(61, dtype=torch.bool), tuned_params=lambda method: {
            "window": sized, "nodes": sized, "shares": [[0.5, 0.2]] * 3
        }, drafter_loaders={"heads": lambda: made.heads},
    )  # fmt: skip
    jacobi = build(parse("jacobi"), context)[0]
    assert jacobi.window == 8 and jacobi.window_for_batch is sized
    assert build(parse("jacobi(window=5)"), context)[0].window_for_batch is None
    lossy = build(parse("jacobi+typical"), context)[0]  # the default: its result would depend on other rows
    assert lossy.window == 16 and lossy.window_for_batch is None
    plan = build(parse("vadusa"), context)[0].tree_shape
    assert (plan.max_nodes, plan.for_batch(1).max_nodes, plan.for_batch(64).max_nodes) == (8, 8, sizes[-1])
    plan = build(parse("vadusa+typical"), context)[0].tree_shape
    assert plan.max_nodes == plan.for_batch(64).max_nodes == 16  # the default, whatever the machine
    assert build(parse("vadusa(nodes=5)"), context)[0].tree_shape.for_batch(64).max_nodes == 5


def test_draft_size_includes_cost_of_sequences():
    """Check that sequences which cost much by themselves leave time for more nodes of each."""
    taus = {0: 1.0, 1: 1.5, 2: 1.8, 4: 2.2}

    def seconds() -> dict[int, float]:
        return {0: 1.0, 10: 6.0}

    cheap, dear = (BatchAwareDraftSize(taus, lambda: {0: 1.0, 4: 1.0}, seconds, lambda s=s: s) for s in (0.0, 4.0))
    assert (cheap(4), dear(4)) == (0, 2)


def test_drafts_are_longer_where_steps_cost_much():
    """Check that sizes follow what steps show, after some of them."""
    taus, latency, overhead = {0: 1.0, 2: 2.0, 8: 3.0}, {0: 1.0, 8: 4.0}, PassLatency()
    assert BatchAwareDraftSize(taus, lambda: latency, lambda: latency)(1) == 2
    sized = BatchAwareDraftSize(taus, lambda: latency, lambda: latency, overhead_seconds=overhead.estimate)
    for _ in range(SIZE_STEPS):
        overhead.observe(3, 6.0)
        overhead.observe(9, 6.3)
        size = sized(1)
    assert size == 8
    for _ in range(200):  # drafting that costs more the longer it is pays less
        overhead.observe(3, 1.0)
        overhead.observe(9, 7.0)
        size = sized(1)
    assert size < 8


def test_larger_nearly_equal_size_is_preferred():
    taus, flat = {4: 2.0, 8: 2.04, 16: 1.99, 32: 1.8}, dict.fromkeys((4, 8, 16, 32), 1.0)
    assert (best_draft_size(taus, flat), best_draft_size(taus, flat, prefers_larger=True)) == (4, 16)


def test_tokens_per_pass_sum_node_probabilities():
    # 0: .5, 00: .45, 1: .4, 10: .36
    assert expected_tau_by_nodes([[0.5, 0.4], [0.9, 0.0]], 2, 4) == pytest.approx({1: 1.5, 2: 1.95, 3: 2.35, 4: 2.71})


def test_tuned_width_does_not_apply_to_chains(lab):
    """Check that a `width` tuned for shared noise does not apply to a ratio test of chains; other parameters do."""
    made = lab()
    everything, loaders = torch.ones(61, dtype=torch.bool), {"lm": lambda: DraftModel(made.student)}
    fit = {"depth": 2, "width": 4, "total": 8}
    context = MethodContext(
        "m", made.target(), everything, drafter_loaders=loaders, tuned_params=lambda method: dict(fit)
    )
    plans = {
        name: build(parse(name), context)[0].tree_shape for name in ("draft", "draft+sps", "draft(width=2)", "block")
    }
    assert [(plan.depth, plan.width) for plan in plans.values()] == [(2, 4), (2, 1), (2, 2), (2, 1)]


def test_method_without_drafter_error_lists_usable_methods(lab):
    with pytest.raises(UnsupportedMethod, match="use one of ar, pld, suffix, recycling"):
        build(parse("draft"), MethodContext("m", lab().target(), torch.ones(61, dtype=torch.bool)))


@pytest.mark.parametrize("name", ["medusa", "vadusa"])
def test_medusa_entry_names_published_rule(name):
    """Check that the entry names the method of the published rule, which is not the default verifier."""
    method = parse(name)
    published = re.search(rf"published: .* verified as ({name}\+\w+); ours: ", method.drafter.deviation)
    assert published is not None and method.guarantee == "identical" and parse(published[1]).guarantee == "lossy"


def test_every_method_has_guarantee_and_paper():
    assert {method.guarantee for method in methods()} == {"identical", "exact", "lossy"}
    assert all(method.verifier.paper and (method.drafter.paper or method.drafter.name == "ar") for method in methods())


@pytest.mark.parametrize(
    ("text", "name", "guarantee"),
    [
        ("lantern(delta=0.2)", "jacobi+lantern(delta=0.2)", "lossy"),
        ("lantern++", "jacobi+lantern++", "lossy"),
        ("jacobi(window=8)+lantern++(k=5,lam=2)", "jacobi(window=8)+lantern++(k=5,lam=2.0)", "lossy"),
        ("sjd", "sjd", "exact"),
        ("sjd+sps", "sjd", "exact"),
        ("block", "draft+block", "exact"),
        ("eagle + recursive", "eagle+recursive", "exact"),
        ("eagle2-published", "eagle2-published", "exact"),
        ("draft(width=3)+target-only", "draft(width=3)+target-only", "exact"),
        ("eagle2+gsd(size=9)", "eagle2+gsd(size=9)", "lossy"),
    ],
)
def test_parse_joins_drafter_and_rule(text, name, guarantee):
    method = parse(text)
    assert method.name == name and method.guarantee == guarantee and parse(method.name) == method


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sjd+tape", "use one of sps"),
        ("jacobi+sps", "use one of tape, lantern"),
        ("eagle2+recursive", "target-only"),  # picked among draws: their order and chances are gone
        ("draft(width=4)+block", "target-only"),
        ("pld+lenience", "lantern-ratio"),  # needs q
        ("eagle2-published+ensemble", "target-only"),
    ],
)
def test_invalid_drafter_verifier_pairs_are_refused(text, says):
    with pytest.raises(UnsupportedMethod, match=says):
        parse(text)


def test_every_method_builds_with_its_guarantee(lab):
    made = lab()
    codes = torch.full((61, 4), torch.nan)
    codes[10:] = torch.nn.functional.normalize(torch.randn(51, 4), dim=-1)
    kinds = [network.kind for network in NETWORKS]
    loaders = {kind: lambda kind=kind: getattr(made, kind) for kind in kinds} | {"lm": lambda: DraftModel(made.student)}
    loaders["ctc"] = lambda: CTCModel(made.model.config, words=[1, 2])
    context = MethodContext(
        "m", made.target(), torch.ones(61, dtype=torch.bool), 4, codes, None, loaders,
        preview_index=torch.tensor([-1, -1, 0, 1]), has_hypotheses=True,
    )  # fmt: skip
    for method in methods():
        if "k" in method.verifier.parameters and method.verifier.requirement:
            with pytest.raises(InvalidArgument, match="51 codes"):
                build(replace(method, verifier_params={"k": 51}), context)
            method = replace(method, verifier_params={"k": 5})
        drafter, verifier = build(method, context)
        assert verifier.guarantee == method.guarantee
        assert not hasattr(drafter, "tree_shape") or drafter.tree_shape.max_nodes <= 48


def test_window_size_balances_tokens_and_time():
    committed = {4: 2.0, 8: 3.0, 16: 3.5}
    assert best_draft_size(committed, {4: 1.0, 8: 1.1, 16: 1.2}) == 16
    assert best_draft_size(committed, {4: 1.0, 8: 1.2, 16: 2.0}) == 8
    assert best_draft_size(committed, {4: 1.0, 8: 2.0, 16: 4.0}) == 4
    alike = {size: tau / committed[16] for size, tau in committed.items()}
    assert best_draft_size(committed, alike) == 4  # equal rates: the shorter window


def test_median_pass_seconds_covers_every_size(lab):
    made = lab()
    seconds = median_pass_seconds(made.target(), made.prompts[:1], [1, 5], repeats=2)
    assert set(seconds) == {1, 5} and min(seconds.values()) > 0


def test_decode_stats_sums_are_consistent():
    stats = [DecodeStats("m", "identical"), DecodeStats("m", "identical")]
    stats[0].record_pass(drafted=4, accepted=2, tokens=3, drafter_passes=1)
    stats[0].record_pass(drafted=4, accepted=0, tokens=1, drafter_passes=1)
    stats[1].record_pass(drafted=4, accepted=4, tokens=5, drafter_passes=1)
    assert stats[0].mean_accepted_length == 2 and stats[0].acceptance_rate == 0.25
    assert stats[0].accepted_per_position == [0.5, 0.5]
    total = DecodeStats.sum_rows(stats)
    assert (total.tokens, total.target_passes, total.mean_accepted_length) == (9, 3, 3)
    assert total.accepted_per_position == [2 / 3, 2 / 3, 1 / 3, 1 / 3]
    watch = PhaseTimer()
    for phase in ("prefill", "draft", "score", "verify", "rest", "idle"):
        watch.end_phase(phase)
    total.set_times(watch)
    split = total.draft_seconds + total.score_seconds + total.verify_seconds
    assert total.decode_seconds == pytest.approx(split + watch.seconds["rest"])
