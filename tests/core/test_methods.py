"""Methods by name, their parameters, and what a wrong one is told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.network.lm import IndependentLM
from polydraft.core.errors import InvalidArgument, UnknownMethod, UnsupportedMethod
from polydraft.core.methods.fit import ByRows, best_nodes, expected, pass_seconds
from polydraft.core.methods.method import MethodContext
from polydraft.core.methods.registry import build, choices, parse
from polydraft.core.stats import DecodeStats, Stopwatch

from .conftest import NETWORKS


def test_parameters_are_read_and_kept_in_the_name():
    choice = parse(" jacobi( window=12 , init=above ) ")
    assert choice.given == {"window": 12, "init": "above"} and choice.name == "jacobi(window=12,init=above)"
    assert parse("ar").name == "ar" and parse(choice.name) == choice


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
def test_a_wrong_name_gets_a_sentence_with_the_way_out(text, error, says):
    with pytest.raises(error, match=says):
        parse(text)


def test_given_parameters_beat_fitted_ones_which_beat_defaults(lab):
    everything = torch.ones(61, dtype=torch.bool)
    context = MethodContext("m", lab().target(), everything, row=4, fitted=lambda method: {"window": 5})
    assert build(parse("jacobi"), context)[0].window == 5
    assert build(parse("jacobi(window=7)"), context)[0].window == 7
    assert build(parse("jacobi"), MethodContext("m", lab().target(), everything))[0].window == 16


def test_rows_that_share_a_pass_draft_less_where_results_do_not_show_it(lab):
    """Columns are free up to 10 and cost a millisecond each from there on."""
    committed = {nodes: 1 + nodes**0.7 for nodes in range(1, 9)}
    seconds = {0: 0.01, 10: 0.01, 20: 0.02}
    sized = ByRows(committed, lambda: {0: 0.01, 10: 0.01}, lambda: seconds)
    sizes = [sized(rows) for rows in (1, 2, 4, 8, 64)]
    assert sizes == [8, 5, 2, 1, 1]
    made = lab()
    context = MethodContext(
        "m", made.target(), torch.ones(61, dtype=torch.bool), fitted=lambda method: {
            "window": sized, "nodes": sized, "shares": [[0.5, 0.2]] * 3
        }, drafters={"heads": lambda: made.heads},
    )  # fmt: skip
    assert build(parse("jacobi"), context)[0].window == 8
    assert build(parse("jacobi+typical"), context)[0].window == 16  # the default: its result would depend on other rows
    plan = build(parse("vadusa"), context)[0].plan
    assert (plan.nodes, plan.among(1).nodes, plan.among(64).nodes) == (8, 8, sizes[-1])
    plan = build(parse("vadusa+typical"), context)[0].plan
    assert plan.nodes == plan.among(64).nodes == 16  # the default, whatever the machine
    assert build(parse("vadusa(nodes=5)"), context)[0].plan.among(64).nodes == 5


def test_tokens_a_pass_are_one_and_the_chances_of_all_nodes():
    # 0: .5, 00: .45, 1: .4, 10: .36
    assert expected([[0.5, 0.4], [0.9, 0.0]], 2, 4) == pytest.approx({1: 1.5, 2: 1.95, 3: 2.35, 4: 2.71})


def test_a_fit_does_not_make_a_tree_of_what_is_judged_as_a_chain(lab):
    """`width` is fitted to the walk on the tape; a ratio test of chains keeps its chain, and the rest of the fit."""
    made = lab()
    everything, loaders = torch.ones(61, dtype=torch.bool), {"lm": lambda: IndependentLM(made.student)}
    fit = {"depth": 2, "width": 4, "total": 8}
    context = MethodContext("m", made.target(), everything, drafters=loaders, fitted=lambda method: dict(fit))
    plans = {name: build(parse(name), context)[0].plan for name in ("draft", "draft+sps", "draft(width=2)", "block")}
    assert [(plan.depth, plan.width) for plan in plans.values()] == [(2, 4), (2, 1), (2, 2), (2, 1)]


def test_a_method_without_its_drafter_says_which_can_be_used(lab):
    with pytest.raises(UnsupportedMethod, match="use one of ar, pld, jacobi, sjd"):
        build(parse("draft"), MethodContext("m", lab().target(), torch.ones(61, dtype=torch.bool)))


@pytest.mark.parametrize("name", ["medusa", "vadusa"])
def test_heads_say_what_is_published_and_what_is_ours(name):
    """The published rule is named by a method that can be asked for, and it is not the one that judges here."""
    choice = parse(name)
    published = re.search(rf"published: .* judged as ({name}\+\w+); ours: ", choice.drafter.ours)
    assert published is not None and choice.guarantee == "identical" and parse(published[1]).guarantee == "lossy"


def test_every_method_states_its_guarantee_and_a_paper():
    assert {choice.guarantee for choice in choices()} == {"identical", "exact", "lossy"}
    assert all(choice.judge.paper and (choice.drafter.paper or choice.drafter.name == "ar") for choice in choices())


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
def test_a_drafter_and_a_rule_make_a_method(text, name, guarantee):
    choice = parse(text)
    assert choice.name == name and choice.guarantee == guarantee and parse(choice.name) == choice


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
def test_pairs_that_would_be_wrong_are_refused_with_what_to_use(text, says):
    with pytest.raises(UnsupportedMethod, match=says):
        parse(text)


def test_every_method_builds_and_keeps_its_guarantee(lab):
    made = lab()
    codes = torch.full((61, 4), torch.nan)
    codes[10:] = torch.nn.functional.normalize(torch.randn(51, 4), dim=-1)
    kinds = [network.kind for network in NETWORKS]
    loaders = {kind: lambda kind=kind: getattr(made, kind) for kind in kinds} | {
        "lm": lambda: IndependentLM(made.student)
    }
    origins = torch.tensor([-1, -1, 0, 1])
    context = MethodContext(
        "m", made.target(), torch.ones(61, dtype=torch.bool), 4, codes, None, loaders, origins=origins
    )
    for choice in choices():
        if "k" in choice.judge.parameters and choice.judge.needs:
            with pytest.raises(InvalidArgument, match="51 codes"):
                build(replace(choice, judge_given={"k": 51}), context)
            choice = replace(choice, judge_given={"k": 5})
        drafter, verifier = build(choice, context)
        assert verifier.guarantee == choice.guarantee
        assert not hasattr(drafter, "plan") or drafter.plan.nodes <= 48


def test_the_window_balances_tokens_against_time():
    committed = {4: 2.0, 8: 3.0, 16: 3.5}
    assert best_nodes(committed, {4: 1.0, 8: 1.1, 16: 1.2}) == 16
    assert best_nodes(committed, {4: 1.0, 8: 1.2, 16: 2.0}) == 8
    assert best_nodes(committed, {4: 1.0, 8: 2.0, 16: 4.0}) == 4
    alike = {size: tau / committed[16] for size, tau in committed.items()}
    assert best_nodes(committed, alike) == 4  # equal rates: the shorter window


def test_a_pass_is_timed_for_every_size(lab):
    made = lab()
    seconds = pass_seconds(made.target(), made.prompts[:1], [1, 5], repeats=2)
    assert set(seconds) == {1, 5} and min(seconds.values()) > 0


def test_statistics_add_up():
    stats = [DecodeStats("m", "identical"), DecodeStats("m", "identical")]
    stats[0].count(drafted=4, accepted=2, tokens=3, drafter_passes=1)
    stats[0].count(drafted=4, accepted=0, tokens=1, drafter_passes=1)
    stats[1].count(drafted=4, accepted=4, tokens=5, drafter_passes=1)
    assert stats[0].mean_accepted_length == 2 and stats[0].acceptance_rate == 0.25
    assert stats[0].accepted_per_position == [0.5, 0.5]
    total = DecodeStats.total(stats)
    assert (total.tokens, total.target_passes, total.mean_accepted_length) == (9, 3, 3)
    assert total.accepted_per_position == [2 / 3, 2 / 3, 1 / 3, 1 / 3]
    watch = Stopwatch()
    for phase in ("prefill", "draft", "score", "verify", "rest", "idle"):
        watch.lap(phase)
    total.time(watch)
    split = total.draft_seconds + total.score_seconds + total.verify_seconds
    assert total.decode_seconds == pytest.approx(split + watch.seconds["rest"])
