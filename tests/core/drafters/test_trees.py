"""Drafts, verification and the KV cache on random trees, each against a slow reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.draft import Draft
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.shapes import CandidateRanking, ChildScores, DynamicTree, StaticTree, nodes_by_level
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import compact_accepted_path
from polydraft.core.verification import (
    EOS,
    LENGTH,
    NO_VALID_TOKEN,
    RUNNING,
    VerificationResult,
    keep_contiguous_prefix,
    truncate_at_stop,
)
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..tables import distribution_of

VOCAB = 5


@dataclass
class GivenNoise:
    """Shared noise that is given."""

    any_sampled = True

    noise: torch.Tensor

    def gumbel_after(self, counts: torch.Tensor, num: int) -> torch.Tensor:
        return self.noise[:, :num]


def verify(draft: Draft, logits: torch.Tensor, noise: torch.Tensor) -> VerificationResult:
    return SharedNoiseVerifier().verify(
        draft, distribution_of(logits), GivenNoise(noise), torch.zeros(len(logits), dtype=torch.long)
    )


@some.composite
def trees(draw, rows: int = 3) -> Draft:
    """Return random tokens, parents and gaps; siblings may repeat a token."""
    nodes = draw(some.integers(1, 10))
    parents = torch.tensor([[draw(some.integers(-1, i - 1)) for i in range(nodes)] for _ in range(rows)])
    tokens = torch.tensor([[draw(some.integers(0, VOCAB - 1)) for _ in range(nodes)] for _ in range(rows)])
    valid = torch.tensor([[draw(some.integers(0, 4)) > 0 for _ in range(nodes)] for _ in range(rows)])
    depth: list[list[int]] = [[] for _ in range(rows)]
    for row, above in enumerate(parents.tolist()):
        for parent in above:
            depth[row].append(1 + (depth[row][parent] if parent >= 0 else 0))
    return Draft(tokens, parents, valid, max(map(max, depth)))


def ancestors(draft: Draft, row: int, node: int) -> list[int]:
    """Return the node and its ancestors, deepest first."""
    line = []
    while node >= 0:
        line.append(node)
        node = int(draft.parents[row, node])
    return line


@settings(max_examples=60)
@given(trees())
def test_ancestor_mask_and_depth_match_parents(draft):
    for row in range(len(draft.tokens)):
        assert draft.ancestor_mask[row, 0].tolist() == [True] + [False] * draft.size
        for node in range(draft.size):
            line = ancestors(draft, row, node)
            assert draft.ancestor_mask[row, node + 1].nonzero().flatten().tolist() == sorted(
                [0] + [n + 1 for n in line]
            )
            assert draft.depth[row, node + 1] == len(line)


@settings(max_examples=200)
@given(trees(), some.integers(0, 10**6))
def test_verification_accepts_a_longest_matching_path(draft, seed):
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    logits = torch.randn(rows, nodes + 1, VOCAB).log_softmax(-1)
    noise = torch.randn(rows, nodes + 1, VOCAB)
    result = verify(draft, logits, noise)
    for row in range(rows):
        walks = longest_walks(draft, logits, noise, row, -1, 0)
        kept = [node for node in result.path[row].tolist() if node >= 0]
        tokens = result.tokens[row, : result.num_committed[row]].tolist()
        assert result.num_accepted[row] == len(kept) == len(tokens) - 1
        assert [int(draft.tokens[row, node]) for node in kept] == tokens[:-1]
        # siblings may hold the same token with other distributions: any of the longest walks will do
        assert tokens in walks


def longest_walks(draft: Draft, logits, noise, row: int, at: int, depth: int) -> list[list[int]]:
    """Return the tokens of the walks from `at` that accept most nodes."""
    choice = int((logits[row, at + 1] + noise[row, depth]).argmax())
    same = [
        node for node in range(draft.size)
        if draft.parents[row, node] == at and draft.valid[row, node] and draft.tokens[row, node] == choice
    ]  # fmt: skip
    further = [walk for node in same for walk in longest_walks(draft, logits, noise, row, node, depth + 1)] or [[]]
    most = max(map(len, further))
    return [[choice, *walk] for walk in further if len(walk) == most]


@settings(max_examples=100)
@given(trees(), some.integers(0, 10**6))
def test_keep_contiguous_prefix_commits_contiguous_nodes_only(draft, seed):
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    whole = verify(draft, torch.randn(rows, nodes + 1, VOCAB), torch.randn(rows, nodes + 1, VOCAB))
    kept = keep_contiguous_prefix(whole)
    for row in range(rows):
        path = [node for node in whole.path[row].tolist() if node >= 0]
        straight = next((depth for depth, node in enumerate(path) if node != depth), len(path))
        assert kept.num_accepted[row] == straight and kept.num_committed[row] == straight + 1
        assert kept.last_accepted_index[row] == straight, "the column of the last of them"
        assert torch.equal(kept.path, whole.path) and torch.equal(kept.tokens, whole.tokens), "accepted tokens are kept"


@settings(max_examples=60)
@given(
    some.integers(1, 5),
    some.integers(1, 3),
    some.integers(1, 12),
    some.sampled_from([0, 0.3, 0.6]),
    some.integers(0, 9),
)
def test_best_path_first_reorders_the_same_tree(depth, width, total, stop, seed):
    torch.manual_seed(seed)
    shape, logits = DynamicTree(depth, width, total, stop), 2 * torch.randn(depth, 3, 1, VOCAB)
    tree = DraftTree(3, logits.device)
    while shape.grow(tree, ChildScores(logits[len(tree.levels)].expand(-1, tree.width, -1)), CandidateRanking()):
        pass
    as_sampled, best_first = shape.draft_in_sampled_order(tree)[0], shape.draft_main_path_first(tree)

    def best(row: int) -> list[int]:
        """Return the path to the deepest node that can be drawn, the likeliest of those."""
        lines = [
            ancestors(as_sampled, row, node)[::-1] for node in range(as_sampled.size) if as_sampled.valid[row, node]
        ]
        tokens = [[int(as_sampled.tokens[row, node]) for node in line] for line in lines]
        return max(tokens, key=lambda path: (len(path), sum(log_probs[d, row, 0, id] for d, id in enumerate(path))))

    def paths(tree: Draft, row: int) -> list:
        """Return token and validity along every root-to-node path."""
        lines = (ancestors(tree, row, node) for node in range(tree.size))
        return sorted([(int(tree.tokens[row, n]), bool(tree.valid[row, n])) for n in line] for line in lines)

    log_probs = logits.log_softmax(-1)
    for row in range(3):
        front = best(row)
        assert best_first.tokens[row, : len(front)].tolist() == front and best_first.valid[row, : len(front)].all()
        assert best_first.parents[row, : len(front)].tolist() == list(range(-1, len(front) - 1))
        assert paths(best_first, row) == paths(as_sampled, row)
        for one in (as_sampled, best_first):
            assert all(int(one.parents[row, node]) < node for node in range(one.size))


@settings(max_examples=60)
@given(trees(rows=2), some.integers(0, 10**6), some.integers(1, 2))
def test_compaction_keeps_the_accepted_path_only(draft, seed, branches):
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    capacity, cache = 4 + nodes + 2, KVCache(2, branches)
    cache.add_rows(rows)
    cache.ensure_capacity(capacity)
    for layer in cache.layers:
        cache.set_write_slots(torch.arange(capacity).expand(rows * branches, -1))
        layer.update(*torch.randn(2, rows * branches, 3, capacity, 4))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    logits, noise = torch.randn(rows, nodes + 1, VOCAB), torch.randn(rows, nodes + 1, VOCAB)
    result = verify(draft, logits, noise)
    cached = torch.randint(1, 4, (rows, branches))
    compact_accepted_path(cache, branches, cached, result.path)
    for layer, stores in zip(cache.layers, before, strict=True):
        for now, old in zip((layer.keys, layer.values), stores, strict=True):
            for row in range(rows):
                for branch in range(branches):
                    line, first = row * branches + branch, int(cached[row, branch])
                    assert torch.equal(now[line, :, : first + 1], old[line, :, : first + 1])
                    for depth, node in enumerate(result.path[row].tolist()):
                        if node >= 0:
                            assert torch.equal(now[line, :, first + 1 + depth], old[line, :, first + 1 + node])


@settings(max_examples=200)
@given(
    trees(), some.integers(0, 10**6), some.lists(some.integers(1, 6), min_size=3, max_size=3), some.integers(0, VOCAB),
    some.booleans(),
)  # fmt: skip
def test_truncate_at_stop_uses_the_first_reason(draft, seed, left, eos, whole):
    """At some columns nothing may be drawn; the id there counts for nothing, and so does what follows."""
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    logits = torch.randn(rows, nodes + 1, VOCAB)
    if not whole:
        logits[torch.rand(rows, nodes + 1) < 0.3] = -torch.inf
    result = verify(draft, logits, torch.randn(rows, nodes + 1, VOCAB))
    allowed = distribution_of(logits).is_allowed(result.token_indices, result.tokens)
    cut = truncate_at_stop(result, torch.tensor(left), torch.arange(VOCAB) == eos, allowed)
    for row in range(rows):
        tokens = result.tokens[row, : result.num_committed[row]].tolist()
        columns = [0, *(node + 1 for node in result.path[row].tolist() if node >= 0)]
        expected, count = RUNNING, len(tokens)
        for index, (token, column) in enumerate(zip(tokens, columns, strict=True)):
            if logits[row, column].isinf().all():
                expected = NO_VALID_TOKEN
                break
            if token == eos or index + 1 == left[row]:
                expected, count = EOS if token == eos else LENGTH, index + 1
                break
        assert cut.finish_reason[row] == expected
        if expected != NO_VALID_TOKEN:
            assert cut.num_committed[row] == count and cut.num_accepted[row] <= count


def test_static_tree_depth_is_that_of_nodes() -> None:
    shallow, deep = StaticTree(5, 10), StaticTree(2, 10)
    assert shallow.depth == len(nodes_by_level(shallow)) < 5 and deep.depth == 2
    assert all(sum(map(len, nodes_by_level(plan))) == 10 for plan in (shallow, deep))
