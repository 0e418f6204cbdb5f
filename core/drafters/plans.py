"""Which nodes a draft tree gets, and how their candidates rank: trees of fixed shape, and trees that grow where the
drafter is sure.

With the shared noise, children come in the order in which the target would choose them (methods that walk the tape) or
in which they were drawn (methods that test them), and a clear winner under `log q + g` is probably the target's winner.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.rows import places

WORST = 100.0  # nats; what cannot be drawn is no better than this, and sums stay finite


@dataclass(frozen=True)
class Rank:
    """Scores of candidates, log of an estimated acceptance: `softmax((log q + g) / spread)`.

    spread: the scale of the drafter's error in logits, fitted to the model. draws: with the noise g, so that children
    are draws from q, in order; without it they are the likeliest, as EAGLE-2 is published.
    """

    spread: float = 1.0
    draws: bool = True

    def children(self, scores: Tensor, noise: Tensor, width: int) -> Any:
        """What the best `width` ids behind each of scores `[B, W, V]` score, and the ids, `[B, W, width]` each."""
        perturbed = scores + noise if self.draws else scores
        if self.spread != 1:
            perturbed = perturbed / self.spread
        return perturbed.log_softmax(-1).topk(width, -1)


@dataclass
class Tree:
    """A tree under way: candidates level by level, and the nodes that a network has read.

    Indices are among all candidates so far, -1 is the root. ids, parents, scores (of whole paths) and valid: `[B, ·]` a
    level. live: `[B, W]` the newest nodes that get children; above: `[B, W]` places of their parents among the live
    nodes of the level before. read, depth and lineage: ids `[B, M]` of all live nodes so far, their depth (0 right
    below the root), and which of them each of the newest descends from, itself included, `[B, W, M]`; of the root
    alone, which has none above it, `[B, 1, 0]`.
    """

    live: Tensor
    read: Tensor
    depth: Tensor
    lineage: Tensor
    going: Tensor
    above: Tensor
    ids: list[Tensor] = field(default_factory=list)
    parents: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    valid: list[Tensor] = field(default_factory=list)
    ranked: list[Tensor] = field(default_factory=list)  # nodes whose children were ranked, level by level

    @staticmethod
    def rooted(rows: int, device: torch.device) -> Tree:
        none = torch.empty(rows, 0, dtype=torch.long, device=device)
        root = torch.full((rows, 1), -1, device=device)
        below = torch.empty(rows, 1, 0, dtype=torch.bool, device=device)
        going = torch.ones(rows, 1, dtype=torch.bool, device=device)
        return Tree(root, none, none, below, going, root, ranked=[root])

    @property
    def levels(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.live.shape[1]

    @property
    def newest(self) -> Tensor:
        """`[B, W]`: ids of the live nodes."""
        return self.read[:, self.read.shape[1] - self.width :]

    def add(self, ids: Tensor, parents: Tensor, scores: Tensor, valid: Tensor) -> int:
        """A level of candidates, `[B, K]` each; the index of the first."""
        first = sum(level.shape[1] for level in self.ids)
        self.ids.append(ids)
        self.parents.append(parents)
        self.scores.append(scores)
        self.valid.append(valid & self.going)
        return first

    def go_on(self, live: Tensor, above: Tensor, ids: Tensor) -> None:
        """Candidates `live` `[B, W]` get children: their ids, and places of their parents among the live ones."""
        width = live.shape[1]
        lines = self.lineage.gather(1, above[..., None].expand(-1, -1, self.lineage.shape[2]))
        itself = (places(width, live.device)[:, None] == places(width, live.device)).expand(len(live), -1, -1)
        self.lineage = torch.cat([lines, itself], 2)
        self.depth = F.pad(self.depth, (0, width), value=self.levels - 1)
        self.read = torch.cat([self.read, ids], 1)
        self.live, self.above = live, above
        self.ranked.append(live)

    @property
    def level(self) -> Tensor:
        """`[M]`: the level of every candidate."""
        sizes = torch.tensor([level.shape[1] for level in self.ids])
        return torch.arange(self.levels).repeat_interleave(sizes).to(self.live.device)

    def best(self, nodes: int) -> Tensor:
        """`[B, N]`: the best candidates by path, parents before children."""
        # a child never outranks its parent; at equal scores the shallower one comes first
        scores = torch.cat(self.scores, 1).double() - 1e-4 * self.level
        return scores.topk(min(nodes, scores.shape[1]), 1).indices.sort(1).values

    def likeliest(self, kept: Tensor) -> Tensor:
        """`[B]`: which of `kept` is the deepest, the best of those."""
        return (1e3 * self.level + torch.cat(self.scores, 1)).gather(1, kept).argmax(1)

    def draft(self, kept: Tensor, shape: Draft | None = None) -> Draft:
        """The candidates `kept` `[B, N]`, parents before children; shape: a draft with the same parents."""
        tokens, valid = torch.cat(self.ids, 1).gather(1, kept), torch.cat(self.valid, 1).gather(1, kept)
        if shape is not None:
            return Draft(tokens, shape.parents.expand(len(kept), -1), valid, self.levels, shape.chain, shape=shape)
        parents = torch.cat(self.parents, 1).gather(1, kept)
        parents = torch.where(parents < 0, -1, self.places(kept).gather(1, parents.clamp(min=0)))
        return Draft(tokens, parents, valid, self.levels, chain=all(level.shape[1] == 1 for level in self.ids))

    def places(self, kept: Tensor) -> Tensor:
        """`[B, M]`: where a candidate stands among `kept`; N, one past the end, if nowhere."""
        nodes = kept.shape[1]
        place = torch.full((len(kept), sum(level.shape[1] for level in self.ids)), nodes, device=kept.device)
        return place.scatter_(1, kept, torch.arange(nodes, device=kept.device).expand_as(kept))

    def columns(self, kept: Tensor) -> Tensor:
        """`[B, ·]`: the draft's columns of all ranked nodes; N + 1, one past the end, if they were not kept."""
        ranked = torch.cat(self.ranked, 1)
        return torch.where(ranked < 0, 0, self.places(kept).gather(1, ranked.clamp(min=0)) + 1)


class Plan(Protocol):
    """depth: levels; nodes: most nodes a draft has; live: most nodes that get children, over all levels."""

    @property
    def depth(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def live(self) -> int: ...

    def grow(self, tree: Tree, scores: Tensor, noise: Tensor, rank: Rank) -> bool:
        """Give the live nodes of `tree` children by scores `[B, W, V]`; whether a further level is worth a pass."""

    def drafted(self, tree: Tree) -> tuple[Draft, Tensor]:
        """The draft, siblings in the order they were drawn, and which candidates it holds, `[B, N]`."""

    def led(self, tree: Tree) -> Draft:
        """The draft with its best path in front, where order means nothing."""


@dataclass(frozen=True)
class Dynamic:
    """EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): `width` live nodes a level, then the best `total` of all.

    width 1 is a chain. stop: a level is a row's last if none of its live nodes has this chance of being right where it
    stands (Liu et al. 2024, Kangaroo, arXiv 2404.18911, section 3.2). What was guessed by then is drafted: the choice
    to stop depends on nothing that a test does not see, and exact methods stay exact.
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

    def grow(self, tree: Tree, scores: Tensor, noise: Tensor, rank: Rank) -> bool:
        chances, ids = rank.children(scores, noise, self.width)
        over = chances.clamp(min=-WORST)
        if tree.levels:
            over = over + self.kept_scores(tree)[..., None]
        if self.stop:  # stopped rows leave room to what they have
            over = over.masked_fill(~tree.going[..., None], -WORST * (1 + tree.levels))
        path, picked = over.flatten(1).topk(self.width, 1)
        valid = (chances > -torch.inf).flatten(1)
        parents = tree.live[..., None].expand(-1, -1, self.width).flatten(1)
        first = tree.add(ids.flatten(1), parents, over.flatten(1), valid)
        if self.stop:
            sure = chances.flatten(1).gather(1, picked).exp() >= self.stop
            tree.going = tree.going & sure.any(1, keepdim=True)
        if tree.levels == self.depth or (self.stop and tree.going.device.type == "cpu" and not tree.going.any()):
            return False
        tree.go_on(first + picked, picked // self.width, tree.ids[-1].gather(1, picked))
        return True

    def kept_scores(self, tree: Tree) -> Tensor:
        """`[B, W]`: path scores of the live nodes."""
        first = sum(level.shape[1] for level in tree.scores[:-1])
        return tree.scores[-1].gather(1, tree.live - first)

    def drafted(self, tree: Tree) -> tuple[Draft, Tensor]:
        kept = tree.best(self.nodes)
        return tree.draft(kept), kept

    def led(self, tree: Tree) -> Draft:
        draft, kept = self.drafted(tree)
        return draft if draft.chain else draft.led_by(tree.likeliest(kept))


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
    def live(self) -> int:
        return sum(step.live.shape[1] for step in template(self).steps)

    def ranks(self, level: int) -> tuple[float, ...]:
        return self.shares[min(level, len(self.shares) - 1)]

    def grow(self, tree: Tree, scores: Tensor, noise: Tensor, rank: Rank) -> bool:
        step = template(self, scores.device).steps[tree.levels]
        chances, ids = rank.children(scores, noise, len(self.ranks(tree.levels)))
        taken = ids.flatten(1)[:, step.taken]
        tree.add(taken, taken, taken, (chances > -torch.inf).flatten(1)[:, step.taken])
        if tree.levels == self.depth:
            return False
        tree.go_on(step.live.expand(len(ids), -1), step.above.expand(len(ids), -1), taken[:, step.inner])
        return True

    def drafted(self, tree: Tree) -> tuple[Draft, Tensor]:
        fixed = template(self, tree.live.device)
        kept = fixed.order.expand(len(tree.live), -1)
        return tree.draft(kept, fixed.shape), kept

    def led(self, tree: Tree) -> Draft:
        return self.drafted(tree)[0]


@dataclass(frozen=True)
class Level:
    """A level of a template. taken: its nodes, places among all children of the level before; inner: which of them have
    children; above `[1, W]`: of these, their parents' places among the level before's; live `[1, W]`: their indices
    among all nodes."""

    taken: Tensor
    inner: Tensor
    above: Tensor
    live: Tensor


@dataclass(frozen=True)
class Template:
    """Fixed places as index tensors. order: nodes level by level → the path of first ranks in front; shape: a draft of
    one row whose lineage and depth all drafts share."""

    steps: list[Level]
    order: Tensor
    shape: Draft


@lru_cache(maxsize=64)
def template(plan: Static, device: torch.device | str = "cpu") -> Template:
    """Made once a plan and device."""
    levels = tree_places(plan)
    steps: list[Level] = []
    parents: list[int] = []
    inner_above, start, above_start = [0], 0, 0

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    with torch.inference_mode(False):
        for level, nodes in enumerate(levels):
            inner = sorted({parent for parent, _ in levels[level + 1]}) if level + 1 < len(levels) else []
            taken = [inner_above.index(parent) * len(plan.ranks(level)) + rank for parent, rank in nodes]
            above = [inner_above.index(nodes[place][0]) for place in inner]
            steps.append(
                Level(tensor(taken), tensor(inner), tensor([above]), tensor([[start + place for place in inner]]))
            )
            parents += [above_start + parent if level else -1 for parent, _ in nodes]
            inner_above, above_start, start = inner, start, start + len(nodes)
        first, at = [], -1  # the path of first ranks
        while (following := next((node for node, parent in enumerate(parents) if parent == at), None)) is not None:
            first.append(following)
            at = following
        order = first + [node for node in range(len(parents)) if node not in first]
        where = {node: place for place, node in enumerate(order)} | {-1: -1}
        moved = tensor([[where[parents[node]] for node in order]])
        chain = moved[0].tolist() == list(range(-1, len(order) - 1))
        shape = Draft(torch.zeros_like(moved), moved, torch.ones_like(moved, dtype=torch.bool), len(levels), chain)
        return Template(steps, tensor(order), shape)


def tree_places(plan: Static) -> list[list[tuple[int, int]]]:
    """Per level: (parent's place in the level above, rank) of every node."""
    found: list[tuple[int, ...]] = []
    queue: list[tuple[float, tuple[int, ...]]] = [(-share, (rank,)) for rank, share in enumerate(plan.ranks(0))]
    heapq.heapify(queue)
    while queue and len(found) < plan.nodes:
        chance, path = heapq.heappop(queue)
        found.append(path)
        if len(path) < plan.longest:
            for rank, share in enumerate(plan.ranks(len(path))):
                heapq.heappush(queue, (chance * share, (*path, rank)))
    levels = [sorted(path for path in found if len(path) == deep) for deep in range(1, plan.longest + 1)]
    levels = list(itertools.takewhile(bool, levels))
    return [
        [(above.index(path[:-1]) if path[:-1] else 0, path[-1]) for path in level]
        for above, level in zip([[], *levels], levels, strict=False)
    ]
