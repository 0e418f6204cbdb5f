"""Which nodes a draft tree gets: a chain, a fixed tree, or the best paths as they turn out.

A plan asks level by level for the laws behind its live nodes, and says which of their children live on; in the end it
says which nodes are drafted. `rank` turns a proposal into such a score, log of an estimated acceptance: with the shared
noise, children come in the order in which the target would choose them (methods that walk the tape) or in which they
were drawn (methods that test them), and a clear winner under `log q + g` is probably the target's winner too.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument

WORST = 100.0  # nats; what cannot be drawn is no better than this, and sums stay finite


class Rank(Protocol):
    """draws: children are draws from q, in order; otherwise they are what q makes of them."""

    draws: bool

    def __call__(self, law: Tensor, noise: Tensor) -> Tensor:
        """log q `[B, C, V]` and noise `[B, 1, V]` → scores `[B, C, V]`, at most 0."""


@dataclass(frozen=True)
class SharedNoise:
    """`softmax((log q + g) / spread)`: spread is the scale of the drafter's error in logits, fitted to the model."""

    spread: float = 1.0

    draws = True

    def __call__(self, law: Tensor, noise: Tensor) -> Tensor:
        return ((law + noise) / self.spread).log_softmax(-1)


@dataclass(frozen=True)
class Likeliest:
    """log q alone, as EAGLE-2 is published."""

    draws = False

    def __call__(self, law: Tensor, noise: Tensor) -> Tensor:
        return law.log_softmax(-1)


Levels: TypeAlias = "Generator[Tensor, tuple[Tensor, Tensor], None]"
"""Laws `[B, W, V]` behind the live nodes of a level, from the stem's end on; it is sent the next level's live nodes:
ids `[B, W]` and parents, places in the level before."""


class Plan(Protocol):
    """depth: levels; nodes: most nodes a draft has."""

    @property
    def depth(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def grow(self, levels: Levels, noise: Tensor, rank: Rank) -> Tree:
        """Noise `[B, depth, V]` of the levels."""


class Tree(Protocol):
    """What was grown. led: the draft with its best path in front; likewise `draft`, siblings in order."""

    @property
    def draft(self) -> Draft: ...

    @property
    def led(self) -> Draft: ...

    def q(self) -> Tensor:
        """Log q behind every column of `draft`, `[B, N + 1, V]`; meaningless behind leaves."""


@dataclass(frozen=True)
class Dynamic:
    """EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): `width` live nodes a level, then the best `total` of all.

    width 1 is a chain.
    """

    depth: int
    width: int = 1
    total: int = 0

    @property
    def nodes(self) -> int:
        return self.depth if self.width == 1 else self.total or self.depth * self.width

    def grow(self, levels: Levels, noise: Tensor, rank: Rank) -> Grown:
        grown, law = Grown(self), next(levels)
        path = law.new_zeros(len(law), 1)
        for level in range(self.depth):
            best, ids = rank(law, noise[:, level : level + 1]).topk(self.width, -1)
            scores = path[..., None] + best.clamp(min=-WORST)
            path, chosen = scores.flatten(1).topk(min(self.width, scores[0].numel()), 1)
            grown.add(law, ids, scores, chosen)
            if level + 1 < self.depth:
                law = levels.send((grown.live_tokens(), chosen // self.width))
        return grown

    def drafted(self, grown: Grown) -> Tensor:
        # a child never outranks its parent; at equal scores the shallower one comes first
        scores = grown.scores.double() - 1e-4 * grown.level
        return scores.topk(min(self.nodes, scores.shape[1]), 1).indices.sort(1).values


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
        return len(self.places)

    @cached_property
    def places(self) -> list[list[tuple[int, int]]]:
        """Per level: (parent's place in the level above, rank) of every node."""
        found: list[tuple[int, ...]] = []
        queue: list[tuple[float, tuple[int, ...]]] = [(-share, (rank,)) for rank, share in enumerate(self.ranks(0))]
        heapq.heapify(queue)
        while queue and len(found) < self.nodes:
            chance, path = heapq.heappop(queue)
            found.append(path)
            if len(path) < self.longest:
                for rank, share in enumerate(self.ranks(len(path))):
                    heapq.heappush(queue, (chance * share, (*path, rank)))
        levels = [sorted(path for path in found if len(path) == deep) for deep in range(1, self.longest + 1)]
        levels = list(itertools.takewhile(bool, levels))
        return [
            [(above.index(path[:-1]) if path[:-1] else 0, path[-1]) for path in level]
            for above, level in zip([[], *levels], levels, strict=False)
        ]

    def ranks(self, level: int) -> tuple[float, ...]:
        return self.shares[min(level, len(self.shares) - 1)]

    @cached_property
    def template(self) -> Template:
        return Template.of(self.places, [len(self.ranks(level)) for level in range(self.depth)])

    def grow(self, levels: Levels, noise: Tensor, rank: Rank) -> Filled:
        template, law = template_on(self, noise.device), next(levels)
        laws, tokens, possible = [], [], []
        for level, step in enumerate(template.steps):
            laws.append(law)
            ids = rank(law, noise[:, level : level + 1]).topk(len(self.ranks(level)), -1).indices
            possible.append((law.gather(-1, ids) > -torch.inf).flatten(1)[:, step.taken])
            tokens.append(ids.flatten(1)[:, step.taken])
            if level + 1 < self.depth:
                law = levels.send((tokens[-1][:, step.inner], step.above.expand(len(ids), -1)))
        return Filled(template, tokens, possible, laws)


@dataclass(frozen=True)
class Step:
    """A level of a template. taken: its nodes, places among all children of the level before; inner: which of them have
    children; above: of these `[1, W]`, their parents' places among the level before's."""

    taken: Tensor
    inner: Tensor
    above: Tensor


@dataclass(frozen=True)
class Template:
    """Fixed places as index tensors, made once. order: nodes level by level → the path of first ranks in front.

    shape: a draft of one row whose lineage and depth all drafts share. spoken: columns whose law is known.
    """

    steps: list[Step]
    order: Tensor
    shape: Draft
    spoken: Tensor

    @staticmethod
    def of(places: list[list[tuple[int, int]]], children: list[int]) -> Template:
        steps: list[Step] = []
        parents: list[int] = []
        inner_above, start, above_start = [0], 0, 0
        spoken = [-1]
        for level, nodes in enumerate(places):
            followed = {parent for parent, _ in places[level + 1]} if level + 1 < len(places) else set()
            inner = sorted(followed)
            taken = [inner_above.index(parent) * children[level] + rank for parent, rank in nodes]
            above = [inner_above.index(nodes[place][0]) for place in inner]
            steps.append(Step(torch.tensor(taken), torch.tensor(inner, dtype=torch.long), torch.tensor([above])))
            parents += [above_start + parent if level else -1 for parent, _ in nodes]
            spoken += [start + place for place in inner]
            inner_above, above_start, start = inner, start, start + len(nodes)
        first, at = [], -1  # the path of first ranks
        while (following := next((node for node, parent in enumerate(parents) if parent == at), None)) is not None:
            first.append(following)
            at = following
        order = first + [node for node in range(len(parents)) if node not in first]
        where = {node: place for place, node in enumerate(order)} | {-1: -1}
        moved = torch.tensor([[where[parents[node]] for node in order]])
        chain = moved[0].tolist() == list(range(-1, len(order) - 1))
        shape = Draft(torch.zeros_like(moved), moved, torch.ones_like(moved, dtype=torch.bool), chain)
        return Template(steps, torch.tensor(order), shape, torch.tensor([where[node] + 1 for node in spoken]))

    def on(self, device: torch.device) -> Template:
        if self.order.device == device:
            return self
        steps = [Step(*(part.to(device) for part in (step.taken, step.inner, step.above))) for step in self.steps]
        shape = replace(
            self.shape, **{name: getattr(self.shape, name).to(device) for name in ("tokens", "parents", "valid")}
        )
        return Template(steps, self.order.to(device), shape, self.spoken.to(device))


@lru_cache(maxsize=64)
def template_on(plan: Static, device: torch.device) -> Template:
    """Moved to a device once, not in every pass."""
    return plan.template.on(device)


@dataclass(frozen=True)
class Filled:
    """A template with tokens, level by level."""

    template: Template
    tokens: list[Tensor]
    possible: list[Tensor]
    laws: list[Tensor]

    @cached_property
    def draft(self) -> Draft:
        order = self.template.order
        return self.template.shape.with_tokens(
            torch.cat(self.tokens, 1)[:, order], torch.cat(self.possible, 1)[:, order]
        )

    @property
    def led(self) -> Draft:
        return self.draft

    def q(self) -> Tensor:
        laws = torch.cat(self.laws, 1)
        q = laws.new_zeros(len(laws), self.draft.size + 1, laws.shape[-1])
        q[:, self.template.spoken] = laws
        return q


@dataclass
class Grown:
    """Candidates of a tree under way, level by level, and the laws they were ranked by.

    All indices are among all candidates so far, -1 is the root. live: `[B, W]` a level, which candidates got children.
    """

    plan: Dynamic
    ids: list[Tensor] = field(default_factory=list)
    possible: list[Tensor] = field(default_factory=list)
    path_scores: list[Tensor] = field(default_factory=list)
    parents: list[Tensor] = field(default_factory=list)
    live: list[Tensor] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)

    def add(self, law: Tensor, ids: Tensor, scores: Tensor, chosen: Tensor) -> None:
        """A level: laws `[B, W, V]` of the live nodes, their children `[B, W, K]`, and which of these live on."""
        rows, width, children = ids.shape
        start = sum(level.shape[1] for level in self.ids)
        above = self.live[-1] if self.live else torch.full((rows, width), -1, device=ids.device)
        self.parents.append(above.repeat_interleave(children, 1))
        self.ids.append(ids.flatten(1))
        self.possible.append((law.gather(-1, ids) > -torch.inf).flatten(1))
        self.path_scores.append(scores.flatten(1))
        self.live.append(start + chosen)
        self.laws.append(law)

    def live_tokens(self) -> Tensor:
        start = sum(level.shape[1] for level in self.ids[:-1])
        return self.ids[-1].gather(1, self.live[-1] - start)

    @cached_property
    def scores(self) -> Tensor:
        return torch.cat(self.path_scores, 1)

    @cached_property
    def level(self) -> Tensor:
        return torch.cat([torch.full_like(scores, deep) for deep, scores in enumerate(self.path_scores)], 1)

    @cached_property
    def kept(self) -> Tensor:
        return self.plan.drafted(self)

    @cached_property
    def place(self) -> Tensor:
        """`[B, M]`: where a candidate stands in the draft; N, one past the end, if nowhere."""
        nodes = self.kept.shape[1]
        place = torch.full(self.scores.shape, nodes, device=self.kept.device)
        return place.scatter_(1, self.kept, torch.arange(nodes, device=place.device).expand_as(self.kept))

    @cached_property
    def draft(self) -> Draft:
        parents = torch.cat(self.parents, 1).gather(1, self.kept)
        parents = torch.where(parents < 0, -1, self.place.gather(1, parents.clamp(min=0)))
        tokens = torch.cat(self.ids, 1).gather(1, self.kept)
        valid = torch.cat(self.possible, 1).gather(1, self.kept)
        return Draft(tokens, parents, valid, self.chain)

    @property
    def chain(self) -> bool:
        return all(level.shape[1] == 1 for level in self.ids)

    @property
    def led(self) -> Draft:
        return self.draft if self.chain else self.draft.led_by(self.likeliest)

    @property
    def likeliest(self) -> Tensor:
        """`[B]`: the deepest drafted node, the best of those."""
        return (1e3 * self.level + self.scores).gather(1, self.kept).argmax(1)

    def q(self) -> Tensor:
        """Log q behind every column of the draft, `[B, N + 1, V]`; meaningless behind leaves."""
        laws = torch.cat(self.laws, 1)
        ranked = torch.cat(self.live[:-1], 1) if len(self.live) > 1 else self.live[0][:, :0]
        columns = torch.nn.functional.pad(self.place.gather(1, ranked) + 1, (1, 0))
        q = laws.new_zeros(len(laws), self.kept.shape[1] + 2, laws.shape[-1])
        q.scatter_(1, columns[..., None].expand(-1, -1, laws.shape[-1]), laws)
        return q[:, :-1]
