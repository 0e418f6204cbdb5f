"""Drafts from guesses of the whole output: they go on at the right place after every kind of error."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.core.draft import Draft
from polydraft.core.drafters.hypothesis import NONE, TEXT_COSTS, Hypothesis, HypothesisDrafter, HypothesisState
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verification import VerificationResult
from polydraft.core.verifiers.shared_noise import accept_matching_path

from ..conftest import VOCAB, with_sampling

EVERYTHING = torch.ones(VOCAB, dtype=torch.bool)
TEXT = [5, 9, 11, 7, 5, 9, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39]


def begin(hypothesis: list[int]) -> HypothesisState:
    given = Hypothesis(torch.tensor(hypothesis, dtype=torch.long), torch.ones(len(hypothesis)))
    return HypothesisState.from_hypotheses([given], torch.device("cpu"))


def next_after(hypothesis: list[int], tokens: list[int], free_from: int | None = None) -> list[int]:
    """Return what follows in a hypothesis once `tokens` have been aligned, in parts of three."""
    state = begin(hypothesis)
    for start in range(0, len(tokens), 3):
        part = tokens[start : start + 3]
        state.align(torch.tensor([part]), torch.tensor([len(part)]), free_from=free_from)
    return hypothesis[int(state.position()[0]) :]


@pytest.mark.parametrize(
    ("tokens", "rest"),
    [
        ([], TEXT),
        (TEXT[:6], TEXT[6:]),
        ([5, 9, 12], TEXT[3:]),  # a token is another
        ([5, 9, 11, 12, 7], TEXT[4:]),  # one too many
        ([5, 9, 11, 7, 5, 9, 31], TEXT[8:]),  # one is missing
        (TEXT[8:10], TEXT[10:]),  # it begins later
        ([50, 51, 52, 53, 54, 33, 34, 35], TEXT[12:]),  # nothing fits for long, then it does
        (TEXT, []),
    ],
)
def test_alignment_goes_on_after_errors(tokens, rest):
    assert next_after(TEXT, tokens) == rest


def test_free_tokens_pass_unless_hypothesis_has_them():
    assert next_after(TEXT, [50, *TEXT[:3], 52, 52, *TEXT[3:6]], free_from=50) == TEXT[6:]
    timed = [50, 5, 9, 52, 52, 11, 7, 55]
    assert next_after(timed, [50, 5, 9, 53, 53], free_from=50)[0] in (52, 11)
    assert next_after(timed, [50, 5, 9, 52], free_from=50) == [52, 11, 7, 55]


def slow_costs(hypothesis: list[int], tokens: list[int]) -> list[int]:
    """Return the costs of alignment by loops, cell by cell."""
    costs = [0] + [2] * len(hypothesis)
    for token in tokens:
        new = [costs[0] + 3]
        for j, guess in enumerate(hypothesis, 1):
            new.append(min(costs[j] + 3, costs[j - 1] + 2 * (guess != token), new[j - 1] + 1))
        least = min(new)
        costs = [min(cost - least, TEXT_COSTS.jump) for cost in new]
    return costs


@settings(max_examples=60)
@given(
    hypothesis=st.lists(st.integers(0, 4), max_size=12), tokens=st.lists(st.integers(0, 4), max_size=15),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_costs_equal_those_of_loops(hypothesis, tokens, seed):
    """In parts of any size, in a batch whose rows have hypotheses of other lengths."""
    choice, state = random.Random(seed), begin(hypothesis)
    state.append_rows(begin([1, 2, 3, 1, 2, 3, 1, 2, 3]))
    index = 0
    while index < len(tokens):
        count = choice.randint(1, 4)
        part = (tokens[index : index + count] + [4] * 4)[:4]
        taken = min(count, len(tokens) - index)
        state.align(torch.tensor([part, [9] * 4]), torch.tensor([taken, choice.randint(0, 4)]))
        index += taken
    assert state.costs[0, : len(hypothesis) + 1].tolist() == slow_costs(hypothesis, tokens)


def verified(tokens: list[int], target_tokens: list[int]) -> tuple[Draft, VerificationResult]:
    """Return a chain of tokens and its verification by the target's tokens after the root and after each of them."""
    draft = Draft.from_chain(torch.tensor([tokens]), torch.ones(1, len(tokens), dtype=torch.bool))
    matches = torch.tensor([tokens]) == torch.tensor([target_tokens[:-1]])
    return draft, accept_matching_path(draft, torch.tensor([target_tokens]), matches)


def drafted(drafter: HypothesisDrafter, state: HypothesisState) -> list[int]:
    """Return the next draft of one sequence."""
    tokens = torch.zeros(1, 2).long()
    batch = SimpleNamespace(tokens=tokens, num_generated=torch.tensor([1]), root_tokens=lambda: tokens[:, -1:])
    draft = drafter.draft(batch, state, None, None)  # type: ignore[arg-type]
    return draft.tokens[0, draft.valid[0]].tolist()


def test_rejected_draft_revises_what_follows_it():
    drafter, state = HypothesisDrafter(EVERYTHING, 6), begin([1, 2, 3, 4, 5, 6, 7])
    state.probs = torch.full((1, 7), 0.5)
    draft, result = verified(drafted(drafter, state)[:4], [1, 22, 33, 4, 55])
    drafter.revise(state, draft, result)
    assert state.revisions[0].tolist() == [NONE, NONE, 33, 4, 55, NONE, NONE]
    state.align(result.tokens, result.num_committed)
    assert drafted(drafter, state) == [33, 4, 55, 6, 7]
    state.align(torch.tensor([[33, 4]]), torch.tensor([2]))
    assert drafted(drafter, state) == [55, 6, 7]


def test_revisions_spare_timestamps_and_sure_tokens():
    drafter, state = HypothesisDrafter(EVERYTHING, 6, pairs_from=50), begin([1, 2, 3, 4, 5])
    state.probs = torch.tensor([[0.1, 0.1, 0.1, 0.9, 0.1]])
    drafter.revise(state, *verified([1, 2, 3, 4], [9, 9, 51, 44, 55]))
    assert state.revisions[0].tolist() == [NONE, 9, NONE, NONE, NONE], "51 and 55 are timestamps, and 4 is sure"


@pytest.mark.parametrize("is_better", [True, False])
def test_revisions_are_drafted_while_they_prove_better(is_better):
    drafter, state = HypothesisDrafter(EVERYTHING, 4), begin([1, 2, 3, 4, 5, 6])
    state.revisions = torch.tensor([[NONE, 12, NONE, 14, NONE, NONE]])
    committed = [1, 12 if is_better else 2, 3, 4]
    draft, result = verified([1, 12, 3], committed)
    drafter.learn_acceptance(state, draft, result, torch.tensor([[True, True, False]]))
    assert (drafter.advantage > 0) == is_better
    assert drafted(drafter, state) == ([1, 12, 3, 14] if is_better else [1, 2, 3, 4])


def spoil(ids: list[int], every: int) -> tuple[int, ...]:
    """Return ids of which some are wrong, some are missing and some are too many."""
    spoiled: list[int] = []
    for index, token in enumerate(ids):
        kind = index % (3 * every)
        if kind == every:
            spoiled.append((token + 1) % VOCAB)
        elif kind == 2 * every:
            spoiled += [token, 7]
        elif kind:
            spoiled.append(token)
    return tuple(spoiled)


def with_hypotheses(prompts: list[PromptInputs], outputs: list[torch.Tensor]) -> list[PromptInputs]:
    """Return prompts with spoiled hypotheses; the last has none."""
    spoiled = [*(spoil(ids.tolist(), 6) for ids in outputs[:-1]), ()]
    return [replace(prompt, hypothesis=ids) for prompt, ids in zip(prompts, spoiled, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_spoiled_hypotheses_draft_same_tokens_in_fewer_passes(lab, run, temperature):
    made = lab()
    prompts = with_sampling(made.prompts, SamplingParams(temperature=temperature))
    plain = run(made.method(), prompts)
    drafted = run(made.method(HypothesisDrafter(EVERYTHING, 8)), with_hypotheses(prompts, plain.outputs))
    assert drafted.same(plain) and drafted.tau > 2
    without = run(made.method(HypothesisDrafter(EVERYTHING, 8)), prompts)
    assert without.same(plain) and without.tau == 1


def test_turns_with_other_drafters_keep_alignment(lab, run, monkeypatch):
    """Tokens that others draft are aligned too."""
    from polydraft.core.drafters.auto.drafter import AutoDrafter
    from polydraft.core.drafters.base import NoDrafter

    from ..conftest import Turns

    made = lab()
    prompts = with_sampling(made.prompts, SamplingParams(temperature=1))
    plain = run(made.method(), prompts)
    turns = ["hypothesis", "ar", "ar", "hypothesis", "ar", "hypothesis"]
    drafter = AutoDrafter({"hypothesis": HypothesisDrafter(EVERYTHING, 8), "ar": NoDrafter()}, Turns(turns))
    drafted = run(made.method(drafter), with_hypotheses(prompts, plain.outputs))
    assert drafted.same(plain) and drafted.tau > 1.5


def test_single_token_of_pairs_is_drafted_again(lab, run):
    """All ids are timestamps of pairs here, so that a draft after the first of a pair begins with the same id."""
    made = lab()
    plain = run(made.method(), made.prompts[:1])
    drafter = HypothesisDrafter(EVERYTHING, 8, pairs_from=VOCAB // 2)
    words = tuple(token for token in plain.outputs[0].tolist() if token < VOCAB // 2)
    prompt = replace(made.prompts[0], hypothesis=words)
    seen = []
    method = made.method(drafter)
    original = drafter.draft

    def watch(state, drafter_state, sampler, noise):
        draft = original(state, drafter_state, sampler, noise)
        if draft.valid[0, :1].any():
            seen.append((int(state.root_tokens()[0, 0]), int(draft.tokens[0, 0])))
        return draft

    drafter.draft = watch  # type: ignore[method-assign]
    assert run(method, [prompt]).same(plain)
    assert any(root >= VOCAB // 2 and first == root for root, first in seen)
    assert all(first == root for root, first in seen if first >= VOCAB // 2)
