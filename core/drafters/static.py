"""A draft tree of fixed shape: places that are found once, and filled by rank in every pass.

EAGLE-1 (Li et al. 2024, arXiv 2401.15077) and Medusa (Cai et al. 2024, arXiv 2401.10774) draft such trees.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.plans import Levels, Rank
from polydraft.core.errors import InvalidArgument


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

    @property
    def levels(self) -> int:
        return len(self.tokens)

    def q(self) -> Tensor:
        laws = torch.cat(self.laws, 1)
        q = laws.new_zeros(len(laws), self.draft.size + 1, laws.shape[-1])
        q[:, self.template.spoken] = laws
        return q
