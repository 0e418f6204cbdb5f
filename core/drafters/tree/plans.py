"""Which nodes a draft tree gets, and how their candidates rank: trees of fixed shape, and trees that grow where the
drafter is sure.

With the shared noise, children come in the order in which the target would choose them (methods that walk the tape) or
in which they were drawn (methods that test them), and a clear winner under `log q + g` is probably the target's winner.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from polydraft.core.draft import Draft, agreed
from polydraft.core.drafters.tree.candidates import Level, Tree, first_places
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.filters import highest
from polydraft.core.rows import places

WORST = 100.0  # nats; what cannot be drawn is no better than this, and sums stay finite


@dataclass(frozen=True)
class Scored:
    """What the children of W live nodes are among: scores `[B, W, K]`, and noise `[B, 1, K]` where somebody draws, of
    ids `[K]`, or of all."""

    scores: Tensor
    noise: Tensor | None = None
    ids: Tensor | None = None

    def best(self, values: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The highest of values `[B, W, K]`, and which ids they are of, `[B, W, width]`."""
        values, at = highest(values, width)
        return values, at if self.ids is None else self.ids.take(at)


@dataclass(frozen=True)
class Rank:
    """Scores of candidates, log of an estimated acceptance: `softmax((log q + g) / spread)`.

    spread: the scale of the drafter's error in logits, fitted to the model. draws: with the noise g, so that children
    are draws from q, in order; without it they are the likeliest, as EAGLE-2 is published. temperature: of q, over that
    of the laws; identical decoding has most of 1, for the tape chooses with 1, while a lossy rule keeps guesses that no
    tape chose, and turns likely ones down less often.
    """

    spread: float = 1.0
    draws: bool = True
    temperature: float = 1.0

    def ordered(self, scored: Scored, width: int) -> tuple[Tensor, Tensor]:
        """The best `width` ids behind each node by what comes first here, both `[B, W, width]`: values that rise with
        the acceptance, and ids."""
        return scored.best(self.perturbed(scored), width)

    def children(self, scored: Scored, width: int) -> tuple[Tensor, Tensor]:
        """The same with log acceptances for values."""
        perturbed = self.perturbed(scored)
        if self.spread != 1:
            perturbed = perturbed / self.spread
        return scored.best(perturbed.log_softmax(-1), width)

    def perturbed(self, scored: Scored) -> Tensor:
        return scored.scores + scored.noise if self.draws and scored.noise is not None else scored.scores


def at_worst(chances: Tensor) -> Tensor:
    """Return log chances none of which is below -WORST; NaN, of a drafter whose logits are not numbers, is.

    Otherwise NaN would outrank everything, and children be kept whose parents are not.
    """
    return torch.fmax(chances, chances.new_full((), -WORST))


class Plan(Protocol):
    """depth: levels; width: most children a node has; nodes: most nodes a draft has; live: most nodes that get
    children, over all levels."""

    @property
    def depth(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def live(self) -> int: ...

    def among(self, rows: int) -> Plan:
        """The plan where so many rows share a pass; none that has more nodes or levels."""

    def grow(self, tree: Tree, scored: Scored, rank: Rank) -> bool:
        """Give the live nodes of `tree` children; whether a further level is worth a pass."""

    def drafted(self, tree: Tree) -> tuple[Draft, Tensor]:
        """The draft, siblings in the order they were drawn, and which candidates it holds, `[B, N]`."""

    def led(self, tree: Tree) -> Draft:
        """The draft with its best path in front, where order means nothing."""


@dataclass(frozen=True)
class Dynamic:
    """EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): `width` live nodes a level, then the best `total` of all.

    width 1 is a chain. stop: a level is a row's last if its live nodes have less than this chance, together, that one
    of them is right with all above it: what a further level can add at most, in tokens. (Liu et al. 2024, Kangaroo,
    arXiv 2404.18911, section 3.2, ask the last guess alone.) What was guessed by then is drafted: the choice to stop
    depends on nothing that a test does not see, and exact methods stay exact.
    """

    depth: int
    width: int = 1
    total: int = 0
    stop: float = 0.0

    @property
    def nodes(self) -> int:
        if self.width == 1:
            return self.depth
        candidates = self.width + (self.depth - 1) * self.width**2
        return min(candidates, self.total or self.depth * self.width)

    @property
    def live(self) -> int:
        return (self.depth - 1) * self.width

    def among(self, rows: int) -> Plan:
        return self

    def grow(self, tree: Tree, scored: Scored, rank: Rank) -> bool:
        chances, ids = rank.children(scored, self.width)
        over = at_worst(chances)
        if tree.levels:
            over = over + tree.levels[-1].reached[..., None]
        if tree.going is not None:  # what rows have that stopped before comes first
            gone = ~tree.going[..., None]
            chances = chances.masked_fill(gone, -torch.inf)
            over = over.masked_fill(gone, -WORST * (1 + len(tree.levels)))
        flat = over.flatten(1)
        last = len(tree.levels) + 1 == self.depth
        if self.width == 1:
            reached, live = flat, first_places(tree.rows, tree.device)
            above = live
        else:
            reached, live = flat.topk(0 if last else self.width, 1)
            above = live // self.width
        tree.levels.append(Level(ids.flatten(1), chances.flatten(1), flat, live, above, reached))
        if self.stop and not last:
            going = reached.exp().sum(1, keepdim=True) >= self.stop  # of rows that had stopped it is 0
            told = agreed(going)
            last, tree.going = told is False, going if told is None else None
        return not last

    def drafted(self, tree: Tree) -> tuple[Draft, Tensor]:
        kept = self.kept(tree).sort(1).values
        return tree.draft(kept, self.parents(tree)), kept

    def led(self, tree: Tree) -> Draft:
        kept, parents = self.kept(tree), self.parents(tree)
        return tree.draft(kept if self.width == 1 else tree.led(kept, parents), parents)

    def kept(self, tree: Tree) -> Tensor:
        """`[B, N]`: the candidates that are drafted."""
        if self.width == 1:
            return places(len(tree.levels), tree.device).expand(tree.rows, -1)
        return tree.best(self.nodes)

    def parents(self, tree: Tree) -> Tensor:
        """`[B, M]`: columns of all candidates' parents."""
        return tree.ranked[..., None].expand(-1, -1, self.width).flatten(1)


@dataclass(frozen=True)
class Static:
    """Fixed places, filled by rank (EAGLE-1, arXiv 2401.15077; Medusa, arXiv 2401.10774, section 2.3.3).

    It holds the `nodes` likeliest paths if a child of rank r at depth d + 1 is right with probability `shares[d][r]`
    wherever it stands, none longer than `longest`; deeper down the last row of `shares` goes on. A row never rises:
    siblings are drawn in order, so none may be left out before one that is drafted.
    """

    longest: int
    nodes: int
    shares: tuple[tuple[float, ...], ...] = ((0.55, 0.17, 0.08, 0.05),)

    def __post_init__(self) -> None:
        if any(later > share for row in self.shares for share, later in itertools.pairwise(row)):
            raise InvalidArgument("shares of ranks must not rise within a depth; fit them with `best_shares`.")

    @property
    def depth(self) -> int:
        return len(template(self).steps)

    @property
    def width(self) -> int:
        return max(step.ranks for step in template(self).steps)

    @property
    def live(self) -> int:
        return sum(step.live.shape[1] for step in template(self).steps)

    def among(self, rows: int) -> Plan:
        return self

    def ranks(self, level: int) -> tuple[float, ...]:
        return self.shares[min(level, len(self.shares) - 1)]

    def grow(self, tree: Tree, scored: Scored, rank: Rank) -> bool:
        fixed = template(self, tree.device)
        step, rows = fixed.steps[len(tree.levels)], tree.rows
        values, ids = (found.flatten(1) for found in rank.ordered(scored, step.ranks))
        if step.taken is not None:
            values, ids = values.index_select(1, step.taken), ids.index_select(1, step.taken)
        live, above = step.live.expand(rows, -1), step.above.expand(rows, -1)
        tree.levels.append(Level(ids, values, values, live, above, values[:, :0]))
        return len(tree.levels) < self.depth

    def drafted(self, tree: Tree) -> tuple[Draft, Tensor]:
        fixed = template(self, tree.device)
        kept, shape = fixed.order.expand(tree.rows, -1), fixed.shape
        tokens, valid = tree.ids[:, fixed.order], tree.valid[:, fixed.order]
        parents = shape.parents.expand(tree.rows, -1)
        return Draft(tokens, parents, valid, shape.deepest, shape.chain, shape=shape), kept

    def led(self, tree: Tree) -> Draft:
        return self.drafted(tree)[0]


@dataclass(frozen=True)
class Crowded(Static):
    """Fewer nodes where rows share a pass, `sized(rows)` of them. For results that do not depend on drafts."""

    sized: Callable[[int], int] = field(kw_only=True)

    def among(self, rows: int) -> Plan:
        return Static(self.longest, self.sized(rows), self.shares)


@dataclass(frozen=True)
class FixedLevel:
    """A level of a template. ranks: children ranked of every parent; taken: its nodes, places among all of these, None
    where it has them all; live `[1, W]`: which of its nodes have children; above `[1, W]`: of these, their parents'
    places among the live ones of the level before."""

    ranks: int
    taken: Tensor | None
    live: Tensor
    above: Tensor


@dataclass(frozen=True)
class Template:
    """Fixed places as index tensors. order: nodes level by level → the path of first ranks in front; shape: a draft of
    one row whose lineage and depth all drafts share."""

    steps: list[FixedLevel]
    order: Tensor
    shape: Draft


@lru_cache(maxsize=64)
def template(plan: Static, device: torch.device | str = "cpu") -> Template:
    """Made once a plan and device."""
    levels = tree_places(plan)
    steps: list[FixedLevel] = []
    parents: list[int] = []
    inner_above, start, above_start = [0], 0, 0

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    with torch.inference_mode(False):
        for level, nodes in enumerate(levels):
            inner = sorted({parent for parent, _ in levels[level + 1]}) if level + 1 < len(levels) else []
            ranks = 1 + max(rank for _, rank in nodes)
            taken = [inner_above.index(parent) * ranks + rank for parent, rank in nodes]
            whole = taken == list(range(ranks * len(inner_above)))
            above = [inner_above.index(nodes[place][0]) for place in inner]
            steps.append(FixedLevel(ranks, None if whole else tensor(taken), tensor([inner]), tensor([above])))
            parents += [above_start + parent if level else -1 for parent, _ in nodes]
            inner_above, above_start, start = inner, start, start + len(nodes)
        first, at = [], -1  # the path of first ranks
        while (following := next((node for node, parent in enumerate(parents) if parent == at), None)) is not None:
            first.append(following)
            at = following
        order = first + [node for node in range(len(parents)) if node not in first]
        where = {node: place for place, node in enumerate(order)} | {-1: -1}
        above = [where[parents[node]] for node in order]
        moved, chain = tensor([above]), above == list(range(-1, len(order) - 1))
        shape = Draft(torch.zeros_like(moved), moved, torch.ones_like(moved, dtype=torch.bool), len(levels), chain)
        return Template(steps, tensor(order), shape)


def paths(plan: Static) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Chance and ranks of every path of `plan`, the likeliest first."""
    queue: list[tuple[float, tuple[int, ...]]] = [(-share, (rank,)) for rank, share in enumerate(plan.ranks(0))]
    heapq.heapify(queue)
    for _ in range(plan.nodes):
        if not queue:
            return
        chance, path = heapq.heappop(queue)
        yield -chance, path
        if len(path) < plan.longest:
            for rank, share in enumerate(plan.ranks(len(path))):
                heapq.heappush(queue, (chance * share, (*path, rank)))


def chances(plan: Static) -> list[float]:
    """How probably each of its nodes is committed, the likeliest first."""
    return [chance for chance, _ in paths(plan)]


def tree_places(plan: Static) -> list[list[tuple[int, int]]]:
    """Per level: (parent's place in the level above, rank) of every node."""
    found = [path for _, path in paths(plan)]
    levels = [sorted(path for path in found if len(path) == deep) for deep in range(1, plan.longest + 1)]
    levels = list(itertools.takewhile(bool, levels))
    return [
        [(above.index(path[:-1]) if path[:-1] else 0, path[-1]) for path in level]
        for above, level in zip([[], *levels], levels, strict=False)
    ]
