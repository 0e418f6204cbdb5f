"""Shapes of draft trees and the ranking of candidates: trees of fixed shape, and trees that grow by confidence.

With shared Gumbel noise g, children are ordered as the target would choose them (verifiers on the shared noise) or as
they were drawn (verifiers that test them): a clear winner under `log q + g` is probably the target's winner.
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

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import Draft, all_equal_without_sync
from polydraft.core.drafters.tree.candidates import DraftTree, TreeLevel, zero_index
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.filters import fast_topk

MAX_NATS = 100.0  # nats; a token that cannot be drawn counts as no worse than this, so that sums stay finite


@dataclass(frozen=True)
class ChildScores:
    """Scores of all possible children of the W frontier nodes."""

    logits: Tensor  # [B, W, K] processed draft logits
    noise: Tensor | None = None  # [B, 1, K] shared Gumbel noise; None if every row is greedy
    ids: Tensor | None = None  # [K] token ids that the last dimension stands for; None for the whole vocabulary

    def top_ids(self, values: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the `width` highest of `values` `[B, W, K]` and their token ids, both `[B, W, width]`."""
        values, index = fast_topk(values, width)
        return values, index if self.ids is None else self.ids.take(index)


@dataclass(frozen=True)
class CandidateRanking:
    """Ranking of candidates by estimated log acceptance, `log_softmax((log q + g) / logit_noise_scale)`."""

    logit_noise_scale: float = (
        1.0  # scale of the drafter's logit error, fitted to the model (method parameter `spread`)
    )
    # True: add the noise g, so that children are draws from q, in order; False: the likeliest tokens, as EAGLE-2 is
    # published
    draws: bool = True
    # Draft temperature relative to the target's. Identical decoding accepts most at 1, since the shared noise chooses
    # at 1; a lossy rule also accepts tokens that the noise did not choose, and rejects likely ones less often.
    temperature: float = 1.0

    def top_children(self, scores: ChildScores, width: int) -> tuple[Tensor, Tensor]:
        """Return the best `width` children of each node, best first.

        Returns:
            tuple[Tensor, Tensor]: values that rise with the acceptance, and token ids, both [B, W, width].
        """
        return scores.top_ids(self.perturb(scores), width)

    def top_children_log_probs(self, scores: ChildScores, width: int) -> tuple[Tensor, Tensor]:
        """Return the best `width` children of each node: log of the estimated acceptance, and ids, `[B, W, width]`."""
        perturbed = self.perturb(scores)
        if self.logit_noise_scale != 1:
            perturbed = perturbed / self.logit_noise_scale
        return scores.top_ids(perturbed.log_softmax(-1), width)

    def perturb(self, scores: ChildScores) -> Tensor:
        """Return the draft logits with the shared noise added, if this ranking draws."""
        return scores.logits + scores.noise if self.draws and scores.noise is not None else scores.logits


def clamp_log_probs(log_probs: Tensor) -> Tensor:
    """Return `log_probs` clamped to at least -MAX_NATS; NaN, of logits that are not finite, becomes -MAX_NATS.

    Otherwise NaN would outrank everything, and children would be kept without their parents.
    """
    return torch.fmax(log_probs, log_probs.new_full((), -MAX_NATS))


class TreeShape(Protocol):
    """Rule that decides which nodes a draft tree gets."""

    @property
    def depth(self) -> int:
        """Number of levels."""

    @property
    def width(self) -> int:
        """Largest number of children of a node."""

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes of a draft."""

    @property
    def max_expanded_nodes(self) -> int:
        """Largest number of nodes with children, over all levels."""

    def for_batch(self, rows: int) -> TreeShape:
        """Return the shape to use if `rows` sequences share a pass; it has no more nodes or levels than this one."""

    def grow(self, tree: DraftTree, scores: ChildScores, ranking: CandidateRanking) -> bool:
        """Add a level of children to the frontier of `tree`; return whether a further level is worth a pass."""

    def as_sampled(self, tree: DraftTree) -> tuple[Draft, Tensor]:
        """Return the draft, siblings in the order they were drawn, and the candidates it holds, `[B, N]`."""

    def best_path_first(self, tree: DraftTree) -> Draft:
        """Return the draft with its best path in front, for verifiers to which the order of siblings means nothing."""


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2 tree: `width` frontier nodes a level, then the best `total` candidates of all levels.

    Li et al. 2024, arXiv 2406.16858, section 4. The decision to stop depends on nothing that a verifier's test does not
    see, and what was guessed by then is drafted, so exact methods stay exact. (Liu et al. 2024, Kangaroo, arXiv
    2404.18911, section 3.2, test the last guess alone.)
    """

    depth: int
    width: int = 1  # 1 is a chain
    total: int = 0
    # A row's last level is the first whose frontier nodes together have less than this probability that one of them is
    # accepted with all its ancestors. That is the most a further level could add, in tokens.
    stop: float = 0.0

    @property
    def max_nodes(self) -> int:
        if self.width == 1:
            return self.depth
        candidates = self.width + (self.depth - 1) * self.width**2
        return min(candidates, self.total or self.depth * self.width)

    @property
    def max_expanded_nodes(self) -> int:
        return (self.depth - 1) * self.width

    def for_batch(self, rows: int) -> TreeShape:
        return self

    def grow(self, tree: DraftTree, scores: ChildScores, ranking: CandidateRanking) -> bool:
        log_probs, ids = ranking.top_children_log_probs(scores, self.width)
        path_scores = clamp_log_probs(log_probs)
        if tree.levels:
            path_scores = path_scores + tree.levels[-1].frontier_scores[..., None]
        if tree.active_rows is not None:  # rows that stopped keep what they had: new candidates rank below all of it
            stopped = ~tree.active_rows[..., None]
            log_probs = log_probs.masked_fill(stopped, -torch.inf)
            path_scores = path_scores.masked_fill(stopped, -MAX_NATS * (1 + len(tree.levels)))
        flat_scores = path_scores.flatten(1)
        is_last = len(tree.levels) + 1 == self.depth
        if self.width == 1:
            frontier_scores, frontier = flat_scores, zero_index(tree.rows, tree.device)
            parent_index = frontier
        else:
            frontier_scores, frontier = flat_scores.topk(0 if is_last else self.width, 1)
            parent_index = frontier // self.width
        level = TreeLevel(
            ids.flatten(1), log_probs.flatten(1), flat_scores, frontier, parent_index, frontier_scores
        )  # fmt: skip
        tree.levels.append(level)
        if self.stop and not is_last:
            active = frontier_scores.exp().sum(1, keepdim=True) >= self.stop  # the sum is 0 for rows that had stopped
            all_active = all_equal_without_sync(active)
            is_last, tree.active_rows = all_active is False, active if all_active is None else None
        return not is_last

    def as_sampled(self, tree: DraftTree) -> tuple[Draft, Tensor]:
        kept = self.kept_candidates(tree).sort(1).values
        return tree.to_draft(kept, self.parent_columns(tree)), kept

    def best_path_first(self, tree: DraftTree) -> Draft:
        kept, parents = self.kept_candidates(tree), self.parent_columns(tree)
        return tree.to_draft(kept if self.width == 1 else tree.best_path_first(kept, parents), parents)

    def kept_candidates(self, tree: DraftTree) -> Tensor:
        """Return the candidates that are drafted, `[B, N]`."""
        if self.width == 1:
            return cached_arange(len(tree.levels), tree.device).expand(tree.rows, -1)
        return tree.best_candidates(self.max_nodes)

    def parent_columns(self, tree: DraftTree) -> Tensor:
        """Return the column of every candidate's parent, `[B, M]`."""
        return tree.expanded_columns[..., None].expand(-1, -1, self.width).flatten(1)


@dataclass(frozen=True)
class StaticTree:
    """Tree of fixed shape, filled by rank (EAGLE-1, arXiv 2401.15077; Medusa, arXiv 2401.10774, section 2.3.3).

    It holds the `max_nodes` likeliest paths under the assumption that a child of rank r at depth d + 1 is accepted with
    probability `acceptance_by_rank[d][r]`, whatever its parent is.
    """

    max_depth: int
    max_nodes: int
    # [depth][rank]; the last row holds for all deeper levels. A row never rises: siblings are drawn in order, so none
    # may be left out before one that is drafted.
    acceptance_by_rank: tuple[tuple[float, ...], ...] = ((0.55, 0.17, 0.08, 0.05),)

    def __post_init__(self) -> None:
        if any(later > share for row in self.acceptance_by_rank for share, later in itertools.pairwise(row)):
            raise InvalidArgument(
                "acceptances by rank must not rise within a depth; fit them with `fit_acceptance_by_rank`."
            )

    @property
    def depth(self) -> int:
        return len(tree_template(self).levels)

    @property
    def width(self) -> int:
        return max(level.num_ranks for level in tree_template(self).levels)

    @property
    def max_expanded_nodes(self) -> int:
        return sum(level.frontier_nodes.shape[1] for level in tree_template(self).levels)

    def for_batch(self, rows: int) -> TreeShape:
        return self

    def acceptances(self, depth: int) -> tuple[float, ...]:
        """Return the acceptance of every rank at `depth`, counted from 0."""
        return self.acceptance_by_rank[min(depth, len(self.acceptance_by_rank) - 1)]

    def grow(self, tree: DraftTree, scores: ChildScores, ranking: CandidateRanking) -> bool:
        level, rows = tree_template(self, tree.device).levels[len(tree.levels)], tree.rows
        values, ids = (part.flatten(1) for part in ranking.top_children(scores, level.num_ranks))
        if level.selected is not None:
            values, ids = values.index_select(1, level.selected), ids.index_select(1, level.selected)
        frontier, parent_index = level.frontier_nodes.expand(rows, -1), level.parent_index.expand(rows, -1)
        tree.levels.append(TreeLevel(ids, values, values, frontier, parent_index, values[:, :0]))
        return len(tree.levels) < self.depth

    def as_sampled(self, tree: DraftTree) -> tuple[Draft, Tensor]:
        template = tree_template(self, tree.device)
        kept, shape = template.order.expand(tree.rows, -1), template.shape
        tokens, valid = tree.ids[:, template.order], tree.valid[:, template.order]
        parents = shape.parents.expand(tree.rows, -1)
        return Draft(tokens, parents, valid, shape.max_depth, shape.is_chain, template=shape), kept

    def best_path_first(self, tree: DraftTree) -> Draft:
        return self.as_sampled(tree)[0]


@dataclass(frozen=True)
class BatchScaledTree(StaticTree):
    """Static tree with fewer nodes where several sequences share a pass, for results that do not depend on drafts."""

    nodes_for_batch: Callable[[int], int] = field(kw_only=True)  # number of sequences → nodes of each draft

    def for_batch(self, rows: int) -> TreeShape:
        return StaticTree(self.max_depth, self.nodes_for_batch(rows), self.acceptance_by_rank)


@dataclass(frozen=True)
class TemplateLevel:
    """One level of a `TreeTemplate`."""

    num_ranks: int  # children that are ranked for every parent
    selected: Tensor | None  # nodes of this level, as indices into all ranked children; None if it has them all
    frontier_nodes: Tensor  # [1, W] nodes of this level that have children
    parent_index: Tensor  # [1, W] index of their parents among the frontier nodes of the level before


@dataclass(frozen=True)
class TreeTemplate:
    """Static tree as index tensors."""

    levels: list[TemplateLevel]
    order: Tensor  # nodes level by level → nodes with the path of first ranks in front
    shape: Draft  # draft of one row, whose tree mask and depths all drafts share


@lru_cache(maxsize=64)
def tree_template(shape: StaticTree, device: torch.device | str = "cpu") -> TreeTemplate:
    """Return the index tensors of `shape`, made once per shape and device."""
    nodes_of_levels = nodes_by_level(shape)
    levels: list[TemplateLevel] = []
    parents: list[int] = []
    last_frontier, start, last_start = [0], 0, 0

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    with torch.inference_mode(False):
        for depth, nodes in enumerate(nodes_of_levels):
            is_last = depth + 1 == len(nodes_of_levels)
            frontier = [] if is_last else sorted({parent for parent, _ in nodes_of_levels[depth + 1]})
            num_ranks = 1 + max(rank for _, rank in nodes)
            selected = [last_frontier.index(parent) * num_ranks + rank for parent, rank in nodes]
            has_all = selected == list(range(num_ranks * len(last_frontier)))
            parent_index = [last_frontier.index(nodes[node][0]) for node in frontier]
            levels.append(
                TemplateLevel(
                    num_ranks, None if has_all else tensor(selected), tensor([frontier]), tensor([parent_index])
                )
            )
            parents += [last_start + parent if depth else -1 for parent, _ in nodes]
            last_frontier, last_start, start = frontier, start, start + len(nodes)
        first_path, node = [], -1  # the path of first ranks
        while (child := next((n for n, parent in enumerate(parents) if parent == node), None)) is not None:
            first_path.append(child)
            node = child
        order = first_path + [node for node in range(len(parents)) if node not in first_path]
        index_of = {node: index for index, node in enumerate(order)} | {-1: -1}
        ordered_parents = [index_of[parents[node]] for node in order]
        is_chain = ordered_parents == list(range(-1, len(order) - 1))
        row = tensor([ordered_parents])
        draft = Draft(
            torch.zeros_like(row), row, torch.ones_like(row, dtype=torch.bool), len(nodes_of_levels), is_chain
        )  # fmt: skip
        return TreeTemplate(levels, tensor(order), draft)


def likeliest_paths(shape: StaticTree) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield acceptance probability and ranks of every path of `shape`, the likeliest first."""
    queue: list[tuple[float, tuple[int, ...]]] = [(-share, (rank,)) for rank, share in enumerate(shape.acceptances(0))]
    heapq.heapify(queue)
    for _ in range(shape.max_nodes):
        if not queue:
            return
        negative, path = heapq.heappop(queue)
        yield -negative, path
        if len(path) < shape.max_depth:
            for rank, share in enumerate(shape.acceptances(len(path))):
                heapq.heappush(queue, (negative * share, (*path, rank)))


def node_probs(shape: StaticTree) -> list[float]:
    """Return the probability of every node of `shape` to be committed, the likeliest first."""
    return [probability for probability, _ in likeliest_paths(shape)]


def nodes_by_level(shape: StaticTree) -> list[list[tuple[int, int]]]:
    """Return for every level the (index of the parent in the level above, rank) of each node."""
    paths = [path for _, path in likeliest_paths(shape)]
    levels = [sorted(path for path in paths if len(path) == depth) for depth in range(1, shape.max_depth + 1)]
    levels = list(itertools.takewhile(bool, levels))
    return [
        [(above.index(path[:-1]) if path[:-1] else 0, path[-1]) for path in level]
        for above, level in zip([[], *levels], levels, strict=False)
    ]
