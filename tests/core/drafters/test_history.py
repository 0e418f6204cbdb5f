"""Drafts from the history: longest matches, merged continuations, recycled distributions, and their bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polydraft.core.draft import Draft
from polydraft.core.drafters.history.drafter import HistoryDrafter, TokenHistory
from polydraft.core.drafters.history.recycling import RecyclingMemory, RecyclingSource, SuccessorTable
from polydraft.core.drafters.history.suffix import MatchAcceptance, SuffixSource, TextPool, longest_matches
from polydraft.core.methods.budget import NodeBudget, PassLatency
from polydraft.core.sampling.noise import gumbel_from_keys, gumbel_of_ids, row_keys
from polydraft.core.sampling.params import SamplingParams

from ..conftest import VOCAB, with_sampling

EVERYTHING = torch.ones(VOCAB, dtype=torch.bool)


def history(*rows: list[int]) -> TokenHistory:
    """Return sequences of these tokens, padded with a token that occurs in them."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [row[0]] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return TokenHistory(tokens, lengths, torch.zeros_like(lengths), None)


def match_length(text: list[int], end: int, longest: int) -> int:
    """Return how many tokens up to index `end` equal the last tokens of `text`."""
    length = 0
    while length < min(longest, end + 1) and text[end - length] == text[len(text) - 1 - length] >= 0:
        length += 1
    return length


@given(st.lists(st.integers(-1, 3), min_size=2, max_size=24), st.integers(0, 3), st.integers(1, 5))
def test_longest_matches_equal_search_token_by_token(text, last, longest):
    text = [*text, last]
    ends, lengths = longest_matches(torch.tensor([text]), torch.tensor([[len(text) - 1]]), 3, longest)
    expected = sorted(((match_length(text, end, longest), end) for end in range(len(text) - 1)), reverse=True)[:3]
    found = [(length, end) for length, end in zip(lengths[0].tolist(), ends[0].tolist(), strict=True) if length]
    assert found == [pair for pair in expected if pair[0]]


def test_suffix_copies_after_longest_match():
    source = SuffixSource(EVERYTHING, reach=4, branches=1)
    draft = source.propose(history([1, 2, 3, 4, 5, 9, 2, 7, 1, 2], [5, 6, 5]), None, None)
    assert draft.tokens[0][draft.valid[0]].tolist() == [3, 4, 5, 9]  # after 1 2, not after the later 2
    assert draft.tokens[1][draft.valid[1]].tolist() == [6, 5]
    assert (draft.path_probs[:, 1:] <= draft.path_probs[:, :-1]).all() and draft.is_chain


def test_suffix_merges_equal_beginnings_of_continuations():
    source = SuffixSource(EVERYTHING, reach=3, branches=3)
    text = [1, 2, 3, 4, 8, 1, 2, 3, 5, 8, 1, 2, 6, 8, 1, 2]
    draft = source.propose(history(text), None, None)
    paths = set()
    for node in draft.valid[0].nonzero().flatten().tolist():
        path = []
        while node >= 0:
            path.append(int(draft.tokens[0, node]))
            node = int(draft.parents[0, node])
        paths.add(tuple(reversed(path)))
    assert paths == {(3,), (3, 4), (3, 5), (6,), (6, 8), (3, 4, 8), (3, 5, 8), (6, 8, 1)}
    assert len(paths) == int(draft.valid.sum()), "a node is drafted twice"


def test_suffix_drafts_no_forbidden_tokens_nor_text_ends():
    allowed = EVERYTHING.clone()
    allowed[3] = False
    source = SuffixSource(allowed, reach=4, branches=2)
    source.pool.add([1, 2, 5])
    draft = source.propose(history([1, 2, 3, 4, 1, 2]), None, None)
    assert draft.tokens[draft.valid].tolist() == [5]


def test_acceptance_of_matches_is_learned():
    acceptance, lengths = MatchAcceptance(8, torch.device("cpu")), torch.tensor([[3, 5]])
    assert acceptance.probs(torch.tensor(0)) == 0 and (acceptance.probs(torch.arange(9)).diff() > 0).all()
    for _ in range(400):
        acceptance.observe(lengths, torch.tensor([[True, False]]), torch.tensor([[True, True]]))
    assert acceptance.probs(torch.tensor(3)) > 0.9 and acceptance.probs(torch.tensor(5)) < 0.1
    assert acceptance.tests.max() < 100, "the past fades"


def test_pool_is_bounded_and_keeps_reference():
    pool = TextPool(6, torch.device("cpu"), torch.tensor([7, 8]))
    assert pool.tokens().tolist() == [7, 8, -1]
    for answer in ([1, 2], [3, 4, 5], list(range(20))):
        pool.add(answer)
        assert len(pool.tokens()) <= 9 and pool.tokens().tolist()[-3:] == [7, 8, -1]
    assert pool.tokens().tolist() == [15, 16, 17, 18, 19, -1, 7, 8, -1]


def test_successors_of_pairs_precede_those_of_tokens():
    table = SuccessorTable(50, 2, torch.device("cpu"))
    previous, tokens = torch.tensor([4, -1, 6]), torch.tensor([5, 5, 5])
    ids = torch.tensor([[1, 2], [3, 4], [9, 9]])
    logits, valid = torch.tensor([[0.0, -1.0]] * 3), torch.tensor([True, True, False])
    for row in range(3):  # one after the other, so that the last one for a token is known
        part = slice(row, row + 1)
        table.store(previous[part], tokens[part], ids[part], logits[part], valid[part])
    found = table.lookup(torch.tensor([[4, 6, 4]]), torch.tensor([[5, 5, 8]]))
    assert found.ids[0].tolist()[:2] == [[1, 2], [3, 4]] and found.order[0].tolist() == [2, 1, 0]


def test_recycled_draft_is_right_when_text_repeats(lab, run):
    made = lab()
    source = RecyclingSource(RecyclingMemory(VOCAB, 8, EVERYTHING.device), EVERYTHING, depth=4, width=2)
    method = made.method(HistoryDrafter([source], 8))
    prompts = with_sampling(made.prompts[:1], SamplingParams(temperature=1))
    first, second = run(method, prompts), run(method, prompts)
    assert second.same(first) and second.tau > max(2.0, first.tau), "what the target said before is not drafted again"


def test_answer_is_drafted_again_from_its_beginning(lab, run):
    made = lab()
    drafter = HistoryDrafter([SuffixSource(EVERYTHING, 8, 1)], 8)
    method, prompts = made.method(drafter), with_sampling(made.prompts[:1], SamplingParams(temperature=1))
    first = run(method, prompts)
    drafter.finish(prompts[0].branch_token_ids[0], first.outputs[0].tolist())
    second = run(method, prompts)
    assert second.same(first) and second.tau > 6


def chain(probs: list[float]) -> Draft:
    return Draft.from_chain(torch.arange(len(probs))[None], path_probs=torch.tensor([probs]))


def test_joined_trees_keep_likeliest_nodes_and_parents():
    joined = chain([0.5, 0.1]).with_branches(chain([0.9, 0.8, 0.7]))
    kept = joined.keep_likeliest(4)
    assert kept.tokens[0].tolist() == [0, 0, 1, 2] and kept.parents[0].tolist() == [-1, -1, 1, 2]
    after = kept.prepend_chain(torch.tensor([[40, 41]]), torch.tensor([2]), 5)
    assert after.tokens[0].tolist() == [40, 41, 0, 0, 1] and after.parents[0].tolist() == [-1, 0, 1, 1, 3]
    assert after.path_probs[0].tolist() == pytest.approx([1, 1, 0.5, 0.9, 0.8])


def test_budget_keeps_nodes_that_pay():
    budget = NodeBudget()
    assert budget.prune(chain([0.9, 0.0])).size == 1, "impossible nodes are dropped at once"
    for _ in range(50):
        for positions in (1, 5, 9):
            budget.latency[1].observe(positions, 1.0 + 0.2 * positions)
            budget.latency[4].observe(4 * positions, 1.0 + 0.2 * 4 * positions)
    assert budget.prune(chain([0.99] * 8)).size == 8
    assert budget.prune(chain([0.5, 0.1, 0.01])).size == 1
    assert budget.prune(chain([0.05, 0.02])).size == 1, "nothing would be learned without a node"
    assert budget.prune(chain([0.0, 0.0])).size == 0
    rows = Draft.from_chain(torch.zeros(4, 3).long(), path_probs=torch.tensor([[0.9, 0.8, 0.7], *[[0.01] * 3] * 3]))
    assert budget.prune(rows).size < budget.prune(chain([0.9, 0.8, 0.7])).size, "rows share the time of a pass"


def test_budget_corrects_acceptance_of_each_drafter():
    budget = NodeBudget()
    budget.observe(1, 0.0)
    modest, boastful = chain([0.3, 0.1, 0.03, 0.01]), chain([0.9, 0.8, 0.7, 0.6])
    before = budget.prune(modest).size, budget.prune(boastful).size
    for _ in range(60):
        for draft, name, is_right in ((modest, "modest", True), (boastful, "boastful", False)):
            kept = budget.prune(draft, name)
            budget.observe(1 + kept.size, 0.0, kept.size if is_right else 0)  # tests fix the time of a pass
    assert budget.prune(modest, "modest").size > before[0] and budget.prune(boastful, "boastful").size < before[1]


def test_latency_line_follows_passes_and_ignores_outliers():
    latency = PassLatency()
    latency.observe(1, 1.0)
    assert latency.estimate(17) == pytest.approx(1.4)  # the prior
    for step in range(300):
        latency.observe(1 + step % 8, 50.0 if step == 100 else 2 + 0.1 * (1 + step % 8))
    assert latency.estimate(9) == pytest.approx(2.9, rel=0.03) and latency.estimate(1) == pytest.approx(2.1, rel=0.03)


def test_noise_of_candidates_equals_noise_of_vocabulary():
    keys, positions = row_keys(torch.tensor([3, 8]), torch.tensor([0, 1])), torch.tensor([[5, 6], [0, 9]])
    ids = torch.randint(0, 40, (2, 2, 7), generator=torch.Generator().manual_seed(1))
    full = gumbel_from_keys(keys, positions, 40)
    assert torch.equal(gumbel_of_ids(keys, positions, ids, 40), full.gather(2, ids))
