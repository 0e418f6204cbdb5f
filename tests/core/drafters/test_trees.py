"""Drafts, verdicts and the cache on random trees, each against the slow obvious way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.draft import Draft
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Scored, Static, tree_places
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.network import keep_path
from polydraft.core.verdict import EOS, GOES_ON, IMPOSSIBLE, LENGTH, Verdict, cut_at_end, in_place
from polydraft.core.verify.tape import TapeVerifier

from ..tables import law_of

VOCAB = 5


@dataclass
class Fixed:
    """A tape that holds just this."""

    sampled = True

    noise: torch.Tensor

    def behind(self, count: torch.Tensor, ahead: int) -> torch.Tensor:
        return self.noise[:, :ahead]


def judged(draft: Draft, law: torch.Tensor, noise: torch.Tensor) -> Verdict:
    return TapeVerifier().verify(draft, law_of(law), Fixed(noise), torch.zeros(len(law), dtype=torch.long))


@some.composite
def trees(draw, rows: int = 3) -> Draft:
    """Random tokens, parents and gaps; siblings may repeat a token."""
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
    """The node and its ancestors, deepest first."""
    line = []
    while node >= 0:
        line.append(node)
        node = int(draft.parents[row, node])
    return line


@settings(max_examples=60)
@given(trees())
def test_lineage_and_depth(draft):
    for row in range(len(draft.tokens)):
        assert draft.lineage[row, 0].tolist() == [True] + [False] * draft.size
        for node in range(draft.size):
            line = ancestors(draft, row, node)
            assert draft.lineage[row, node + 1].nonzero().flatten().tolist() == sorted([0] + [n + 1 for n in line])
            assert draft.depth[row, node + 1] == len(line)


@settings(max_examples=200)
@given(trees(), some.integers(0, 10**6))
def test_the_walk_goes_where_a_walk_by_hand_goes(draft, seed):
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    law = torch.randn(rows, nodes + 1, VOCAB).log_softmax(-1)
    noise = torch.randn(rows, nodes + 1, VOCAB)
    verdict = judged(draft, law, noise)
    for row in range(rows):
        walks = longest_walks(draft, law, noise, row, -1, 0)
        kept = [node for node in verdict.path[row].tolist() if node >= 0]
        tokens = verdict.tokens[row, : verdict.counts[row]].tolist()
        assert verdict.accepted[row] == len(kept) == len(tokens) - 1
        assert [int(draft.tokens[row, node]) for node in kept] == tokens[:-1]
        # a draft may hold twins, with laws of their own here: any of the longest walks will do
        assert tokens in walks


def longest_walks(draft: Draft, law, noise, row: int, at: int, depth: int) -> list[list[int]]:
    """Tokens of the walks from `at` that accept most nodes."""
    choice = int((law[row, at + 1] + noise[row, depth]).argmax())
    same = [
        node for node in range(draft.size)
        if draft.parents[row, node] == at and draft.valid[row, node] and draft.tokens[row, node] == choice
    ]  # fmt: skip
    further = [walk for node in same for walk in longest_walks(draft, law, noise, row, node, depth + 1)] or [[]]
    most = max(map(len, further))
    return [[choice, *walk] for walk in further if len(walk) == most]


@settings(max_examples=100)
@given(trees(), some.integers(0, 10**6))
def test_only_nodes_in_place_are_kept_and_what_follows_them(draft, seed):
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    whole = judged(draft, torch.randn(rows, nodes + 1, VOCAB), torch.randn(rows, nodes + 1, VOCAB))
    kept = in_place(whole)
    for row in range(rows):
        path = [node for node in whole.path[row].tolist() if node >= 0]
        straight = next((depth for depth, node in enumerate(path) if node != depth), len(path))
        assert kept.accepted[row] == straight and kept.counts[row] == straight + 1
        assert kept.end[row] == straight, "the column that the last of them was chosen at"
        assert torch.equal(kept.path, whole.path) and torch.equal(kept.tokens, whole.tokens), "what was found is kept"


@settings(max_examples=60)
@given(
    some.integers(1, 5),
    some.integers(1, 3),
    some.integers(1, 12),
    some.sampled_from([0, 0.3, 0.6]),
    some.integers(0, 9),
)
def test_a_tree_with_its_best_path_in_front_is_the_same_tree(depth, width, total, stop, seed):
    torch.manual_seed(seed)
    plan, laws = Dynamic(depth, width, total, stop), 2 * torch.randn(depth, 3, 1, VOCAB)
    tree = Tree(3, laws.device)
    while plan.grow(tree, Scored(laws[len(tree.levels)].expand(-1, tree.width, -1)), Rank()):
        pass
    drafted, led = plan.drafted(tree)[0], plan.led(tree)

    def best(row: int) -> list[int]:
        """The path to the deepest node that can be drawn, the likeliest of those."""
        lines = [ancestors(drafted, row, node)[::-1] for node in range(drafted.size) if drafted.valid[row, node]]
        tokens = [[int(drafted.tokens[row, node]) for node in line] for line in lines]
        return max(tokens, key=lambda path: (len(path), sum(chances[d, row, 0, id] for d, id in enumerate(path))))

    def paths(tree: Draft, row: int) -> list:
        """Token and validity along every root-to-node path."""
        lines = (ancestors(tree, row, node) for node in range(tree.size))
        return sorted([(int(tree.tokens[row, n]), bool(tree.valid[row, n])) for n in line] for line in lines)

    chances = laws.log_softmax(-1)
    for row in range(3):
        front = best(row)
        assert led.tokens[row, : len(front)].tolist() == front and led.valid[row, : len(front)].all()
        assert led.parents[row, : len(front)].tolist() == list(range(-1, len(front) - 1))
        assert paths(led, row) == paths(drafted, row)
        for one in (drafted, led):
            assert all(int(one.parents[row, node]) < node for node in range(one.size))


@settings(max_examples=60)
@given(trees(rows=2), some.integers(0, 10**6), some.integers(1, 2))
def test_only_the_accepted_path_stays_behind_the_root(draft, seed, branches):
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    capacity, cache = 4 + nodes + 2, SlotCache(2, branches)
    cache.join(rows)
    cache.reach(capacity)
    for layer in cache.layers:
        cache.aim(torch.arange(capacity).expand(rows * branches, -1))
        layer.update(*torch.randn(2, rows * branches, 3, capacity, 4))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    law, noise = torch.randn(rows, nodes + 1, VOCAB), torch.randn(rows, nodes + 1, VOCAB)
    verdict = judged(draft, law, noise)
    cached = torch.randint(1, 4, (rows, branches))
    keep_path(cache, branches, cached, verdict.path)
    for layer, stores in zip(cache.layers, before, strict=True):
        for now, old in zip((layer.keys, layer.values), stores, strict=True):
            for row in range(rows):
                for branch in range(branches):
                    line, first = row * branches + branch, int(cached[row, branch])
                    assert torch.equal(now[line, :, : first + 1], old[line, :, : first + 1])
                    for depth, node in enumerate(verdict.path[row].tolist()):
                        if node >= 0:
                            assert torch.equal(now[line, :, first + 1 + depth], old[line, :, first + 1 + node])


@settings(max_examples=200)
@given(
    trees(), some.integers(0, 10**6), some.lists(some.integers(1, 6), min_size=3, max_size=3), some.integers(0, VOCAB),
    some.booleans(),
)  # fmt: skip
def test_rows_end_once_and_at_the_first_reason(draft, seed, left, eos, whole):
    """Some columns have nothing that may be drawn; whatever id stands there then is none, and so is what follows."""
    torch.manual_seed(seed)
    rows, nodes = draft.tokens.shape
    law = torch.randn(rows, nodes + 1, VOCAB)
    if not whole:
        law[torch.rand(rows, nodes + 1) < 0.3] = -torch.inf
    verdict = judged(draft, law, torch.randn(rows, nodes + 1, VOCAB))
    possible = law_of(law).possible(verdict.columns, verdict.tokens)
    cut = cut_at_end(verdict, torch.tensor(left), torch.arange(VOCAB) == eos, possible)
    for row in range(rows):
        said = verdict.tokens[row, : verdict.counts[row]].tolist()
        at = [0, *(node + 1 for node in verdict.path[row].tolist() if node >= 0)]
        expected, count = GOES_ON, len(said)
        for place, (token, column) in enumerate(zip(said, at, strict=True)):
            if law[row, column].isinf().all():
                expected = IMPOSSIBLE
                break
            if token == eos or place + 1 == left[row]:
                expected, count = EOS if token == eos else LENGTH, place + 1
                break
        assert cut.finish[row] == expected
        if expected != IMPOSSIBLE:
            assert cut.counts[row] == count and cut.accepted[row] <= count


def test_a_static_tree_is_as_deep_as_its_nodes_reach() -> None:
    shallow, deep = Static(5, 10), Static(2, 10)
    assert shallow.depth == len(tree_places(shallow)) < 5 and deep.depth == 2
    assert all(sum(map(len, tree_places(plan))) == 10 for plan in (shallow, deep))
