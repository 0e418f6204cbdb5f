"""A draft tree that grows where the drafter is sure: the best paths as they turn out, or a chain.

EAGLE-2 (Li et al. 2024, arXiv 2406.16858), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.plans import Levels, Rank

WORST = 100.0  # nats; what cannot be drawn is no better than this, and sums stay finite


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
        return self.depth if self.width == 1 else self.total or self.depth * self.width

    def grow(self, levels: Levels, noise: Tensor, rank: Rank) -> Grown:
        grown, law = Grown(self), next(levels)
        path = law.new_zeros(len(law), 1)
        going = torch.ones(len(law), 1, dtype=torch.bool, device=law.device)
        for level in range(self.depth):
            best, ids = rank(law, noise[:, level : level + 1]).topk(self.width, -1)
            scores = path[..., None] + best.clamp(min=-WORST)
            path, chosen = scores.flatten(1).topk(min(self.width, scores[0].numel()), 1)
            grown.add(law, ids, scores, chosen, going)
            if self.stop:
                chances = best.flatten(1).gather(1, chosen).exp()
                going = going & (chances >= self.stop).any(1, keepdim=True)
            if level + 1 == self.depth or (self.stop and not going.any()):  # the second waits for an accelerator
                break
            law = levels.send((grown.live_tokens(), chosen // self.width))
        return grown

    def drafted(self, grown: Grown) -> Tensor:
        # a child never outranks its parent; at equal scores the shallower one comes first
        scores = grown.scores.double() - 1e-4 * grown.level
        return scores.topk(min(self.nodes, scores.shape[1]), 1).indices.sort(1).values


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

    def add(self, law: Tensor, ids: Tensor, scores: Tensor, chosen: Tensor, going: Tensor) -> None:
        """A level: laws `[B, W, V]` of the live nodes, their children `[B, W, K]`, and which of these live on.

        going: `[B, 1]` bool, rows that still draft.
        """
        rows, width, children = ids.shape
        start = sum(level.shape[1] for level in self.ids)
        above = self.live[-1] if self.live else torch.full((rows, width), -1, device=ids.device)
        self.parents.append(above.repeat_interleave(children, 1))
        self.ids.append(ids.flatten(1))
        self.possible.append((law.gather(-1, ids) > -torch.inf).flatten(1) & going)
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
    def levels(self) -> int:
        return len(self.ids)

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
