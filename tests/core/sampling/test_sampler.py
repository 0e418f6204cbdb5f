"""Sampler against slow reference implementations: repetition-aware sampling, min_tokens, filters, grammar states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.decode import start_batch
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling import filters
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import RepetitionAware, SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler, TokenDistribution

from ..drafters.test_trees import ancestors, trees

VOCAB = 5


def process(
    sampling: SamplingParams, logits: torch.Tensor, history: GenerationContext | None = None, **grammar
) -> TokenDistribution:
    """Return the distribution of `[B, C, V]` logits with the same parameters for every row."""
    return Sampler(**grammar)(logits, SamplingTensors.from_params([sampling] * len(logits), "cpu"), history)


@some.composite
def histories(draw) -> tuple[GenerationContext, list[list[list[int]]]]:
    """Build a random tree after random committed rows, and the generated ids of every path, written out."""
    draft: Draft = draw(trees())
    rows, length = len(draft.tokens), 8
    committed = torch.tensor([[draw(some.integers(0, VOCAB - 1)) for _ in range(length)] for _ in range(rows)])
    lengths = [draw(some.integers(2, length)) for _ in range(rows)]
    generated = [draw(some.integers(0, whole)) for whole in lengths]
    roots = committed.gather(1, torch.tensor(lengths)[:, None] - 1)
    t = torch.tensor(generated)[:, None] + draft.depth
    paths = []
    for row in range(rows):
        generated_ids = committed[row, lengths[row] - generated[row] : lengths[row]].tolist()
        lines = [ancestors(draft, row, node)[::-1] for node in range(-1, draft.size)]
        paths.append([generated_ids + draft.tokens[row, line].tolist() for line in lines])
    budget = torch.tensor(generated) + 3
    return GenerationContext(committed, torch.tensor(lengths), *draft.path_tokens(roots), t, budget), paths


def reference_redraw(
    n: list[float], whole: list[float], generated_ids: list[int], rule: RepetitionAware
) -> list[float]:
    """Return the probabilities by following what every first draw leads to."""
    recent, distribution = generated_ids[-rule.window :], [0.0] * len(n)
    for first, chance in enumerate(n):
        if recent.count(first) < rule.tau * rule.window or recent.count(first) == 0:
            distribution[first] += chance
        elif rule.banned and whole[first] < 1:
            for second, again in enumerate(whole):
                distribution[second] += chance * again / (1 - whole[first]) * (second != first)
        elif rule.banned:
            distribution[first] += chance
        else:
            for second, again in enumerate(whole):
                distribution[second] += chance * again
    return distribution


@settings(max_examples=80)
@given(histories(), some.integers(1, 6), some.sampled_from([0.1, 0.5, 1.0]), some.booleans(), some.integers(0, 99))
def test_redraw_log_probs_equal_drawing_twice(made, window, tau, banned, seed):
    history, paths = made
    rule = RepetitionAware(window, tau, banned)
    torch.manual_seed(seed)
    logits = 2 * torch.randn(*history.positions.shape, VOCAB)
    params = SamplingParams(temperature=0.8, top_k=3)
    n = process(params, logits, history).probs
    whole = process(replace(params, top_k=0), logits, history).probs
    distribution = process(replace(params, repetition_aware=rule), logits, history).logits.exp()
    recent = history.last_generated(window)
    for row, columns in enumerate(paths):
        for column, generated_ids in enumerate(columns):
            last = generated_ids[-window:][::-1]
            assert recent[row, column].tolist() == last + [-1] * (window - len(last))
            expected = torch.tensor(
                reference_redraw(n[row, column].tolist(), whole[row, column].tolist(), generated_ids, rule)
            )
            assert torch.allclose(distribution[row, column], expected, atol=1e-5)
            assert torch.equal(distribution[row, column] == 0, expected == 0), (
                "what cannot be drawn has no chance at all"
            )


@settings(max_examples=60)
@given(histories(), some.integers(0, 99))
def test_greedy_repetition_ban_takes_second_best(made, seed):
    history, paths = made
    torch.manual_seed(seed)
    logits = torch.randn(*history.positions.shape, VOCAB)
    greedy = SamplingParams(temperature=0)
    plain, banned = (
        process(replace(greedy, repetition_aware=RepetitionAware(4, 0.25, ban)), logits, history).logits.argmax(-1)
        for ban in (False, True)
    )
    order = logits.argsort(-1, descending=True)
    assert torch.equal(plain, order[..., 0])
    for row, columns in enumerate(paths):
        for column, generated_ids in enumerate(columns):
            best, second = order[row, column, :2].tolist()
            assert banned[row, column] == (second if best in generated_ids[-4:] else best)


@settings(max_examples=60)
@given(histories(), some.integers(0, 12), some.sampled_from([0.0, 1.0]), some.booleans())
def test_min_tokens_masks_stop_tokens(made, least, temperature, again):
    history, _ = made
    torch.manual_seed(0)
    ends = torch.tensor([False, True, False, False, True])
    rule = RepetitionAware(banned=True) if again else None
    sampling = SamplingParams(temperature=temperature, min_tokens=least, repetition_aware=rule)
    logits = torch.randn(*history.positions.shape, VOCAB)
    distribution = process(sampling, logits, history, stop_token_mask=ends).logits
    early = history.positions < least
    assert (distribution[early][:, ends] == -torch.inf).all()
    free = process(replace(sampling, min_tokens=0), logits, history, stop_token_mask=ends).logits
    assert torch.equal(distribution[~early], free[~early])
    assert not torch.equal(distribution, free) or not early.any()


@pytest.mark.parametrize("fields", [{"window": 0}, {"tau": 0.0}, {"tau": 1.5}])
def test_repetition_aware_out_of_range_is_refused(fields):
    with pytest.raises(InvalidArgument, match="it must be"):
        RepetitionAware(**fields)


def reference_top_p_mask(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """Return the mask `[B, C, V]` that a full sort keeps."""
    ranked, order = scores.double().sort(dim=-1, descending=True, stable=True)
    before = ranked.softmax(-1).cumsum(-1).roll(1, -1)
    before[..., 0] = 0
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, before < mass)


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 3.0, 12.0], ids=["uniform", "flat", "sharp", "sharpest"])
@pytest.mark.parametrize("mass", [0.1, 0.9, 0.999])
def test_top_p_mask_equals_full_sort(sharpness, mass):
    """Check a large vocabulary; flat distributions need more ids than are examined first."""
    torch.manual_seed(0)
    logits = sharpness * torch.randn(2, 1, 152_000)
    kept = process(SamplingParams(top_p=mass), logits).logits > -torch.inf
    if sharpness == 0:
        assert kept.all(), "ids that are equally likely stay together"
        return
    expected = reference_top_p_mask(logits, mass)
    # chances in fp32 and fp64 may part at the edge, where ids are all but equally likely: next to nothing in mass
    assert (logits.double().softmax(-1) * (kept ^ expected)).sum(-1).max() < 1e-5
    assert ((logits >= logits.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)) == kept).all(), "the likeliest"
    assert (expected.sum(-1) > 1000).all() == (sharpness == 0.3 or (sharpness == 3.0 and mass > 0.5)), "flat and sharp"


@pytest.mark.parametrize("temperature", [1e-38, 1e-3, 1e3])
def test_extreme_temperatures_produce_no_nan(temperature):
    torch.manual_seed(0)
    logits = 9 * torch.randn(2, 3, 50)
    distribution = process(SamplingParams(temperature=temperature, top_k=20, top_p=0.9, min_p=1e-3), logits)
    assert not distribution.probs.isnan().any() and torch.allclose(distribution.probs.sum(-1), torch.ones(2, 3))
    if temperature < 1:
        assert torch.equal(distribution.logits.argmax(-1), logits.argmax(-1))


def test_mixed_sampling_params_keep_bits_of_each_row():
    torch.manual_seed(0)
    rows = [
        SamplingParams(), SamplingParams(temperature=0), SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(top_p=0.6), SamplingParams(min_p=0.1),
        SamplingParams(temperature=1, top_k=40, top_p=0.9, min_p=0.01),
    ]  # fmt: skip
    logits = 3 * torch.randn(len(rows), 2, 2000)
    together = Sampler()(logits, SamplingTensors.from_params(rows, "cpu")).logits
    for row, sampling in enumerate(rows):
        assert torch.equal(together[row], process(sampling, logits[row : row + 1]).logits[0]), sampling


def test_min_p_scale_applies_per_grammar_state():
    torch.manual_seed(0)
    logits = 2 * torch.randn(3, 4, 200)
    rows = [SamplingParams(min_p=0.1), SamplingParams(temperature=0), SamplingParams()]
    slots, unread = torch.tensor([0, 1, 2, 1]).expand(3, -1), GenerationContext(*[torch.empty(0)] * 6)
    sampler = Sampler(
        torch.ones(3, 200, dtype=torch.bool), state_fn=lambda history: slots, min_p_scale=torch.tensor([1.0, 4.0, 30.0])
    )
    found = sampler(logits, SamplingTensors.from_params(rows, "cpu"), unread).logits
    for column, share in enumerate((0.1, 0.4, 1.0, 0.4)):
        likely = logits[0, column] >= logits[0, column].amax() + math.log(share)
        assert torch.equal(found[0, column].isfinite(), likely), "at 1 the likeliest alone is left"
    assert found[1:].isfinite().all(), "rows without min-p keep what they have"
    plain = Sampler(torch.ones(3, 200, dtype=torch.bool), state_fn=lambda history: slots)
    assert torch.equal(plain(logits, SamplingTensors.from_params(rows, "cpu"), unread).logits[0, 0], found[0, 0])


@settings(deadline=None)
@given(histories(), some.integers(1, 3))
def test_precomputed_states_equal_states_of_every_path(drawn, planned):
    """Check states that depend on the first ids and the position, for positions whose tokens are not known yet."""
    history, _ = drawn
    sampler = Sampler(
        torch.ones(4, VOCAB, dtype=torch.bool), num_prefix_tokens_read=planned,
        state_fn=lambda known: (known.first_generated(planned).clamp(min=0).sum(-1) + known.positions) % 4,
    )  # fmt: skip
    unwritten = replace(history, path_ids=torch.full_like(history.path_ids[:, :1], VOCAB - 1))
    found = sampler.precomputed_states(unwritten)
    known = replace(sampler, num_prefix_tokens_read=None)
    assert known.precomputed_states(unwritten) is None, "a class may be of any id"
    if (history.positions[:, 0] < planned).any():
        assert found is None, "an id of the plan is still to come"
    else:
        assert torch.equal(found, sampler.states_if_needed(history))
        logits, rows = (
            torch.randn(*history.positions.shape, VOCAB),
            SamplingTensors.from_params([SamplingParams()] * len(history.positions), "cpu"),
        )
        assert not sampler.depends_on_history(rows, found) and sampler.depends_on_history(rows)
        masked = replace(sampler, allowed_tokens=torch.rand(4, VOCAB) < 0.5)
        for distribution in (masked, masked.draft_distribution):
            assert torch.equal(
                distribution(logits, rows, None, found).logits, distribution(logits, rows, history).logits
            )


def test_positional_states_are_always_precomputed():
    t = torch.tensor([[0, 1, 2, 3]])
    unread = GenerationContext(*[torch.empty(0)] * 3, t, t, torch.empty(0))
    mask = torch.ones(3, VOCAB, dtype=torch.bool)
    assert Sampler(mask).precomputed_states(unread).tolist() == [[0, 1, 2, 0]]
    assert Sampler(mask[:1]).precomputed_states(unread) is None and Sampler().precomputed_states(unread) is None


@pytest.mark.parametrize("broken_part", ["grammar", "logits"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_distribution_without_allowed_token_raises_error(lab, go_on, broken_part, temperature):
    made, mask = lab(), torch.ones(3, 61, dtype=torch.bool)
    if broken_part == "grammar":
        mask[2] = False
    else:
        with torch.no_grad():
            made.model.lm_head.weight.fill_(torch.nan)
    prompts = [replace(made.prompts[0], sampling_params=SamplingParams(temperature=temperature))]
    for drafter in (None, made.drafters([torch.zeros(9, dtype=torch.long)])["jacobi left"]):
        batch = start_batch(made.method(drafter, mask=mask), prompts)
        go_on(made.method(drafter, mask=mask), batch)
        with pytest.raises(InvalidArgument, match="of request 0: grammar and sampling rule out every id"):
            batch.raise_errors()
    ending = made.method(eos=frozenset({0}), mask=mask)
    go_on(ending, batch := start_batch(ending, prompts))
    with pytest.raises(InvalidArgument, match="of request 0"):
        batch.raise_errors()


@settings(max_examples=60)
@given(
    some.lists(some.integers(1, 3), max_size=2), some.integers(0, 300), some.integers(1, 60),
    some.sampled_from(["apart", "alike", "few"]), some.integers(0, 99),
)  # fmt: skip
def test_fast_topk_equals_topk(shape, more, count, kind, seed):
    """Check large vocabularies, which are searched in blocks; ties and -inf change nothing but the order."""
    torch.manual_seed(seed)
    values = torch.randn(*shape, filters.LARGE_VOCAB + more)
    if kind == "alike":
        values = (3 * values).round()
    elif kind == "few":
        values = values.where(torch.rand_like(values) < 5e-4, -torch.inf)
    found, at = filters.fast_topk(values, count)
    assert torch.equal(found, values.topk(count).values) and torch.equal(values.gather(-1, at), found)
    assert (at.sort(-1).values.diff() > 0).all(), "each of them once"
