"""Laws of a node's own history: repetition-aware redraws and the shortest length, against the slow obvious way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.decode import start
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.law import filters
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Law, RepetitionAware, Sampler, Sampling, Settings

from ..drafters.test_trees import ancestors, trees

VOCAB = 5


def judged(sampling: Sampling, logits: torch.Tensor, history: History | None = None, **grammar) -> Law:
    """The law of `[B, C, V]` logits, every row sampled alike."""
    return Sampler(**grammar)(logits, Settings.of([sampling] * len(logits), "cpu"), history)


@some.composite
def histories(draw) -> tuple[History, list[list[list[int]]]]:
    """A random tree behind random committed rows, and the generated ids of every column's path, written out."""
    draft: Draft = draw(trees())
    rows, length = len(draft.tokens), 8
    committed = torch.tensor([[draw(some.integers(0, VOCAB - 1)) for _ in range(length)] for _ in range(rows)])
    lengths = [draw(some.integers(2, length)) for _ in range(rows)]
    generated = [draw(some.integers(0, whole)) for whole in lengths]
    roots = committed.gather(1, torch.tensor(lengths)[:, None] - 1)
    t = torch.tensor(generated)[:, None] + draft.depth
    paths = []
    for row in range(rows):
        said = committed[row, lengths[row] - generated[row] : lengths[row]].tolist()
        lines = [ancestors(draft, row, node)[::-1] for node in range(-1, draft.size)]
        paths.append([said + draft.tokens[row, line].tolist() for line in lines])
    budget = torch.tensor(generated) + 3
    return History(committed, torch.tensor(lengths), *draft.paths(roots), t, budget), paths


def redrawn(n: list[float], whole: list[float], said: list[int], rule: RepetitionAware) -> list[float]:
    """The law by asking what every first draw leads to."""
    recent, law = said[-rule.window :], [0.0] * len(n)
    for first, chance in enumerate(n):
        if recent.count(first) < rule.tau * rule.window or recent.count(first) == 0:
            law[first] += chance
        elif rule.banned and whole[first] < 1:
            for second, again in enumerate(whole):
                law[second] += chance * again / (1 - whole[first]) * (second != first)
        elif rule.banned:
            law[first] += chance
        else:
            for second, again in enumerate(whole):
                law[second] += chance * again
    return law


@settings(max_examples=80)
@given(histories(), some.integers(1, 6), some.sampled_from([0.1, 0.5, 1.0]), some.booleans(), some.integers(0, 99))
def test_a_redraw_is_what_drawing_twice_comes_to(made, window, tau, banned, seed):
    history, paths = made
    rule = RepetitionAware(window, tau, banned)
    torch.manual_seed(seed)
    logits = 2 * torch.randn(*history.t.shape, VOCAB)
    chosen = Sampling(temperature=0.8, top_k=3)
    n = judged(chosen, logits, history).p
    whole = judged(replace(chosen, top_k=0), logits, history).p
    law = judged(replace(chosen, repetition_aware=rule), logits, history).scores.exp()
    recent = history.recent(window)
    for row, columns in enumerate(paths):
        for column, said in enumerate(columns):
            last = said[-window:][::-1]
            assert recent[row, column].tolist() == last + [-1] * (window - len(last))
            wanted = torch.tensor(redrawn(n[row, column].tolist(), whole[row, column].tolist(), said, rule))
            assert torch.allclose(law[row, column], wanted, atol=1e-5)
            assert torch.equal(law[row, column] == 0, wanted == 0), "what cannot be drawn has no chance at all"


@settings(max_examples=60)
@given(histories(), some.integers(0, 99))
def test_at_temperature_0_a_ban_takes_the_second_best_and_a_redraw_nothing(made, seed):
    history, paths = made
    torch.manual_seed(seed)
    logits = torch.randn(*history.t.shape, VOCAB)
    greedy = Sampling(temperature=0)
    plain, banned = (
        judged(replace(greedy, repetition_aware=RepetitionAware(4, 0.25, ban)), logits, history).scores.argmax(-1)
        for ban in (False, True)
    )
    order = logits.argsort(-1, descending=True)
    assert torch.equal(plain, order[..., 0])
    for row, columns in enumerate(paths):
        for column, said in enumerate(columns):
            best, second = order[row, column, :2].tolist()
            assert banned[row, column] == (second if best in said[-4:] else best)


@settings(max_examples=60)
@given(histories(), some.integers(0, 12), some.sampled_from([0.0, 1.0]), some.booleans())
def test_the_end_waits_for_the_shortest_length(made, least, temperature, again):
    history, _ = made
    torch.manual_seed(0)
    ends = torch.tensor([False, True, False, False, True])
    rule = RepetitionAware(banned=True) if again else None
    sampling = Sampling(temperature=temperature, min_tokens=least, repetition_aware=rule)
    logits = torch.randn(*history.t.shape, VOCAB)
    law = judged(sampling, logits, history, ends=ends).scores
    early = history.t < least
    assert (law[early][:, ends] == -torch.inf).all()
    free = judged(replace(sampling, min_tokens=0), logits, history, ends=ends).scores
    assert torch.equal(law[~early], free[~early])
    assert not torch.equal(law, free) or not early.any()


@pytest.mark.parametrize("fields", [{"window": 0}, {"tau": 0.0}, {"tau": 1.5}])
def test_a_rule_out_of_range_is_refused(fields):
    with pytest.raises(InvalidArgument, match="it must be"):
        RepetitionAware(**fields)


def nucleus(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """Which of `[B, C, V]` a full sort keeps."""
    ranked, order = scores.double().sort(dim=-1, descending=True, stable=True)
    before = ranked.softmax(-1).cumsum(-1).roll(1, -1)
    before[..., 0] = 0
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, before < mass)


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 3.0, 12.0], ids=["uniform", "flat", "sharp", "sharpest"])
@pytest.mark.parametrize("mass", [0.1, 0.9, 0.999])
def test_a_nucleus_without_a_sort_is_that_of_a_sort(sharpness, mass):
    """Of a large vocabulary; flat laws need more ids than are looked at first."""
    torch.manual_seed(0)
    logits = sharpness * torch.randn(2, 1, 152_000)
    kept = judged(Sampling(top_p=mass), logits).scores > -torch.inf
    if sharpness == 0:
        assert kept.all(), "ids that are equally likely stay together"
        return
    wanted = nucleus(logits, mass)
    # chances in fp32 and fp64 may part at the edge, where ids are all but equally likely: next to nothing in mass
    assert (logits.double().softmax(-1) * (kept ^ wanted)).sum(-1).max() < 1e-5
    assert ((logits >= logits.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)) == kept).all(), "the likeliest"
    assert (wanted.sum(-1) > 1000).all() == (sharpness == 0.3 or (sharpness == 3.0 and mass > 0.5)), "flat and sharp"


@pytest.mark.parametrize("temperature", [1e-38, 1e-3, 1e3])
def test_no_temperature_makes_nan(temperature):
    torch.manual_seed(0)
    logits = 9 * torch.randn(2, 3, 50)
    law = judged(Sampling(temperature=temperature, top_k=20, top_p=0.9, min_p=1e-3), logits)
    assert not law.p.isnan().any() and torch.allclose(law.p.sum(-1), torch.ones(2, 3))
    if temperature < 1:
        assert torch.equal(law.scores.argmax(-1), logits.argmax(-1))


def test_rows_of_all_settings_do_not_change_each_others_bits():
    torch.manual_seed(0)
    rows = [
        Sampling(), Sampling(temperature=0), Sampling(temperature=0.7, top_k=5), Sampling(top_p=0.6),
        Sampling(min_p=0.1),
        Sampling(temperature=1, top_k=40, top_p=0.9, min_p=0.01),
    ]  # fmt: skip
    logits = 3 * torch.randn(len(rows), 2, 2000)
    together = Sampler()(logits, Settings.of(rows, "cpu")).scores
    for row, sampling in enumerate(rows):
        assert torch.equal(together[row], judged(sampling, logits[row : row + 1]).scores[0]), sampling


def test_min_p_counts_as_often_as_the_class_of_a_slot_says():
    torch.manual_seed(0)
    logits = 2 * torch.randn(3, 4, 200)
    rows = [Sampling(min_p=0.1), Sampling(temperature=0), Sampling()]
    slots, unread = torch.tensor([0, 1, 2, 1]).expand(3, -1), History(*[torch.empty(0)] * 6)
    sampler = Sampler(
        torch.ones(3, 200, dtype=torch.bool), slot=lambda history: slots, narrowing=torch.tensor([1.0, 4.0, 30.0])
    )
    found = sampler(logits, Settings.of(rows, "cpu"), unread).scores
    for column, share in enumerate((0.1, 0.4, 1.0, 0.4)):
        likely = logits[0, column] >= logits[0, column].amax() + math.log(share)
        assert torch.equal(found[0, column].isfinite(), likely), "at 1 the likeliest alone is left"
    assert found[1:].isfinite().all(), "rows without min-p keep what they have"
    plain = Sampler(torch.ones(3, 200, dtype=torch.bool), slot=lambda history: slots)
    assert torch.equal(plain(logits, Settings.of(rows, "cpu"), unread).scores[0, 0], found[0, 0])


@settings(deadline=None)
@given(histories(), some.integers(1, 3))
def test_classes_that_are_foreseen_are_those_of_every_path(drawn, planned):
    """A class is what the first ids come to and where it stands; columns on one path that nobody has written yet."""
    history, _ = drawn
    sampler = Sampler(
        torch.ones(4, VOCAB, dtype=torch.bool), planned=planned,
        slot=lambda known: (known.generated(planned).clamp(min=0).sum(-1) + known.t) % 4,
    )  # fmt: skip
    unwritten = replace(history, paths=torch.full_like(history.paths[:, :1], VOCAB - 1))
    found = sampler.foreseen(unwritten)
    known = replace(sampler, planned=None)
    assert known.foreseen(unwritten) is None, "a class may be of any id"
    if (history.t[:, 0] < planned).any():
        assert found is None, "an id of the plan is still to come"
    else:
        assert torch.equal(found, sampler.slots(history))
        logits, rows = torch.randn(*history.t.shape, VOCAB), Settings.of([Sampling()] * len(history.t), "cpu")
        assert not sampler.remembers(rows, found) and sampler.remembers(rows)
        masked = replace(sampler, mask=torch.rand(4, VOCAB) < 0.5)
        for law in (masked, masked.proposal):
            assert torch.equal(law(logits, rows, None, found).scores, law(logits, rows, history).scores)


def test_classes_by_position_are_foreseen_from_the_first_token_on():
    t = torch.tensor([[0, 1, 2, 3]])
    unread = History(*[torch.empty(0)] * 3, t, t, torch.empty(0))
    mask = torch.ones(3, VOCAB, dtype=torch.bool)
    assert Sampler(mask).foreseen(unread).tolist() == [[0, 1, 2, 0]]
    assert Sampler(mask[:1]).foreseen(unread) is None and Sampler().foreseen(unread) is None


@pytest.mark.parametrize("spoilt", ["grammar", "logits"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_law_with_nothing_possible_is_named(lab, go_on, spoilt, temperature):
    made, mask = lab(), torch.ones(3, 61, dtype=torch.bool)
    if spoilt == "grammar":
        mask[2] = False
    else:
        with torch.no_grad():
            made.model.lm_head.weight.fill_(torch.nan)
    prompts = [replace(made.prompts[0], sampling=Sampling(temperature=temperature))]
    for drafter in (None, made.drafters([torch.zeros(9, dtype=torch.long)])["jacobi left"]):
        batch = start(made.method(drafter, mask=mask), prompts)
        go_on(made.method(drafter, mask=mask), batch)
        with pytest.raises(InvalidArgument, match="of request 0: grammar and sampling rule out every id"):
            batch.raise_errors()
    ending = made.method(eos=frozenset({0}), mask=mask)
    go_on(ending, batch := start(ending, prompts))
    with pytest.raises(InvalidArgument, match="of request 0"):
        batch.raise_errors()


@settings(max_examples=60)
@given(
    some.lists(some.integers(1, 3), max_size=2), some.integers(0, 300), some.integers(1, 60),
    some.sampled_from(["apart", "alike", "few"]), some.integers(0, 99),
)  # fmt: skip
def test_the_highest_of_many_are_those_of_all(shape, more, count, kind, seed):
    """Long vocabularies are searched in parts; ties and what cannot be drawn change nothing but their order."""
    torch.manual_seed(seed)
    values = torch.randn(*shape, filters.MANY + more)
    if kind == "alike":
        values = (3 * values).round()
    elif kind == "few":
        values = values.where(torch.rand_like(values) < 5e-4, -torch.inf)
    found, at = filters.highest(values, count)
    assert torch.equal(found, values.topk(count).values) and torch.equal(values.gather(-1, at), found)
    assert (at.sort(-1).values.diff() > 0).all(), "each of them once"
