"""The tape walk: from the root, go to the child that is the target's own choice; emit the choice where none is.

Identical to plain decoding with the same seed, whatever drafted the tree (arXiv 2408.07978). Temperature 0 is the same
walk on a tape of zeros. With a `match` rule a child may also stand for the choice (a near neighbour in the codebook):
the walk goes on with that child, and is lossy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.noise import Noise, Places
from polydraft.core.law.sampling import Law
from polydraft.core.rows import following
from polydraft.core.tokens import same, take
from polydraft.core.verdict import Verdict, follow
from polydraft.core.verify.rules import Match, at, may_stand


@dataclass(frozen=True)
class Columns(Places):
    """Of a draft's columns: all nodes of one depth share their position's noise. t: `[B, D+1]`, of depths behind
    `count` `[B]` tokens."""

    draft: Draft
    count: Tensor

    def gumbel(self) -> Tensor | None:
        return at_depth(self.noise.behind(self.count, self.t.shape[1]), self.draft) if self.noise.sampled else None


@dataclass(frozen=True)
class FreshColumns(Columns):
    """The same, drawn afresh in every pass."""

    def gumbel(self) -> Tensor | None:
        return at_depth(self.noise.gumbel(self.draft.deepest + 1), self.draft) if self.noise.sampled else None


@dataclass(frozen=True)
class TapeVerifier:
    """What the law draws at every column at once, then one look at which nodes it agrees with.

    rigid: `[V]` bool, ids that no match touches.
    """

    match: Match | None = None
    rigid: Tensor | None = field(default=None, repr=False)

    on_tape = True

    @property
    def guarantee(self) -> str:
        return "identical" if self.match is None else "lossy"

    def columns(self, draft: Draft, noise: Noise, t: Tensor) -> Places:
        """What the law draws at every column."""
        return Columns(noise, following(t, draft.deepest + 1), draft, t)

    def spots_at(self, draft: Draft, noise: Noise, t: Tensor, further: int) -> Tensor:
        """`[B, N+1]` in 0..1, likewise, for the rule's draw `further`."""
        return at_depth(noise.spots(following(t, draft.deepest + 1), further), draft)

    def verify(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> Verdict:
        return walk(draft, *self.agreeing(draft, law, noise, t))

    def agreeing(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> tuple[Tensor, Tensor]:
        """What the law draws at every column `[B, N+1]`, and which nodes are it or stand for it, `[B, N]` bool."""
        choices = law.drawn(self.columns(draft, noise, t))
        if self.match is None:
            return choices, draft.valid & same(draft.tokens, take(choices, draft.parents + 1))
        spots = [self.spots_at(draft, noise, t, index + 1) for index in range(self.match.draws)]
        draws = [self.match.draw(law, spot, choices) for spot in spots]
        return choices, self.standing(draft, law, choices, draws)

    def standing(self, draft: Draft, law: Law, choices: Tensor, draws: list[Tensor]) -> Tensor:
        """`[B, N]` bool: of every node's children the one that is its choice, or else the likeliest that matches it."""
        assert self.match is not None
        parent = draft.parents + 1
        p, wanted = take(law.p, parent), take(choices, parent)
        further = torch.stack([draw.gather(1, parent) for draw in draws], -1) if draws else wanted[..., None][..., :0]
        stands = draft.valid & may_stand(self.match, self.rigid, p, wanted, draft.tokens, further)
        score = at(p, draft.tokens) + 2.0 * (draft.tokens == wanted)
        score = torch.where(stands, score, -1.0)
        siblings = parent[:, :, None] == parent[:, None, :]
        earlier = torch.ones(draft.size, draft.size, dtype=torch.bool, device=score.device).tril(-1)
        better = (score[:, None, :] > score[:, :, None]) | ((score[:, None, :] == score[:, :, None]) & earlier)
        return stands & ~(siblings & better).any(-1)


@dataclass(frozen=True)
class TargetOnlyVerifier(TapeVerifier):
    """The same walk with noise drawn afresh in every pass: exact for any tree, however it was chosen."""

    on_tape = False

    @property
    def guarantee(self) -> str:
        return "exact" if self.match is None else "lossy"

    def columns(self, draft: Draft, noise: Noise, t: Tensor) -> Columns:
        return FreshColumns(noise, following(t, draft.deepest + 1), draft, t)

    def spots_at(self, draft: Draft, noise: Noise, t: Tensor, further: int) -> Tensor:
        return at_depth(noise.uniform(draft.deepest + 1), draft)


def walk(draft: Draft, choices: Tensor, agrees: Tensor) -> Verdict:
    """Follow agreeing nodes `[B, N]` from the root as deep as they go, then the choice there."""
    agrees = torch.nn.functional.pad(agrees, (1, 0), value=True)  # the root is committed
    reached = ~(draft.lineage & ~agrees[:, None, :]).any(-1)
    return follow(torch.where(reached, draft.depth, -1).argmax(1), draft, choices)


def at_depth(noise: Tensor, draft: Draft) -> Tensor:
    """Noise `[B, D+1, …]` of depths at every column."""
    return noise if draft.chain else take(noise, draft.depth)
