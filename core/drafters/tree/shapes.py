"""Shapes of draft trees and the ranking of candidates: trees of fixed shape, and trees that grow by confidence.

With shared Gumbel noise g, children are ordered as the target would choose them (verifiers on the shared noise) or as
they were drawn (verifiers that test them): a clear winner under `log q + g` is probably the target's winner.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Protocol

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import Draft, all_equal_without_sync
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.tree.candidates import DraftTree, TreeLevel, zero_index
from polydraft.core.drafters.tree.stop_rules import PathProbability, StopRule
from polydraft.core.errors import InvalidArgument
from polydraft.core.native.heads import LevelShape
from polydraft.core.sampling.filters import fast_topk

MAX_NATS = 100.0  # nats; a token that cannot be drawn counts as no worse than this, so that sums stay finite


@dataclass(frozen=True)
class ChildScores:
    """Scores of all possible children of the W frontier nodes (the nodes whose children are added next)."""

    logits: Tensor  # [B, W, K] processed draft logits of K token ids
    # [B, 1, K] or [B, W, K] Gumbel noise of the children's position; None if all rows are greedy
    noise: Tensor | None = None
    # token ids that the last dimension stands for, `[K]`, or `[B, W, K]` if they differ between nodes; None for the
    # whole vocabulary
    ids: Tensor | None = None
    # [B, W, 1] log of the probability that the target's token is among the K; None if it is sure to be
    log_coverage: Tensor | None = None

    def top_ids(self, values: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the `width` highest of `values` `[B, W, K]` and their token ids, both `[B, W, width]`."""
        top_values, index = fast_topk(values, width)
        if self.ids is None:  # an entry's index is its id
            return top_values, index
        return top_values, self.ids.take(index) if self.ids.ndim == 1 else self.ids.gather(-1, index)


@dataclass(frozen=True)
class CandidateRanking:
    """Ranking of candidates by estimated log acceptance, `log_softmax((log q + g) / logit_noise_scale)`."""

    # scale of the drafter's logit error, fitted to the model (method parameter `spread`)
    logit_noise_scale: float = 1.0
    # True: add the Gumbel noise g, so that children are draws without replacement from q, in order; False: the most
    # likely tokens, as EAGLE-2 is published
    draws: bool = True
    # Draft temperature relative to the target's. Identical decoding accepts most at 1, since the shared noise chooses
    # at 1; a lossy rule also accepts tokens that the noise did not choose, and rejects likely ones less often.
    temperature: float = 1.0

    def top_children(self, scores: ChildScores, width: int) -> tuple[Tensor, Tensor]:
        """Return the `width` children of each node that are most likely to be accepted, in descending order.

        Args:
            scores (ChildScores): Draft logits and noise of all possible children of W nodes.
            width (int): Number of children per node.

        Returns:
            tuple[Tensor, Tensor]: draft logits, with noise added if this ranking draws, and token ids, both
                [B, W, width].
        """
        return scores.top_ids(self.perturb(scores), width)

    def top_children_log_probs(self, scores: ChildScores, width: int) -> tuple[Tensor, Tensor]:
        """Return the `width` children of each node that are most likely to be accepted, in descending order.

        The acceptance probability is estimated as softmax((logits + noise) / logit_noise_scale).

        Args:
            scores (ChildScores): Draft logits and noise of all possible children of W nodes.
            width (int): Number of children per node.

        Returns:
            tuple[Tensor, Tensor]: log of the estimated acceptance probability, and token ids, both [B, W, width].
        """
        perturbed = self.perturb(scores)
        # The target's winner has the highest target logit plus the same noise; drafter and target logits differ by an
        # error of about this scale, which makes the drafter's winner the less certain the larger it is.
        if self.logit_noise_scale != 1:
            perturbed = perturbed / self.logit_noise_scale
        log_probs = perturbed.log_softmax(-1)
        return scores.top_ids(log_probs if scores.log_coverage is None else log_probs + scores.log_coverage, width)

    def perturb(self, scores: ChildScores) -> Tensor:
        """Return the draft logits `[B, W, K]`, with the Gumbel noise added if this ranking draws and there is any."""
        return scores.logits + scores.noise if self.draws and scores.noise is not None else scores.logits


def clamp_log_probs(log_probs: Tensor) -> Tensor:
    """Return `log_probs` `[...]` clamped to at least -MAX_NATS; NaN (from infinite logits) becomes -MAX_NATS, too.

    MAX_NATS is so large that such a token counts as impossible, and finite, so that sums along a path stay finite, too.
    `topk` would rank NaN highest, and so children would be kept without their parents.
    """
    # fmax ignores NaN, unlike maximum and clamp
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
        """Return the shape for a batch of `rows` sequences; it has at most as many nodes and levels as this one."""

    def grow(self, tree: DraftTree, scores: ChildScores, ranking: CandidateRanking) -> bool:
        """Add a level of children below the frontier nodes of `tree`.

        Args:
            tree (DraftTree): Tree to extend in place.
            scores (ChildScores): Scores of all possible children.
            ranking (CandidateRanking): Ranking of the children of a node.

        Returns:
            bool: True if a further level should be added.
        """

    def draft_in_sampled_order(self, tree: DraftTree) -> tuple[Draft, Tensor]:
        """Return the draft with siblings in the order they were sampled, not by probability; subclasses define it.

        Verifiers by recursive rejection test siblings in this order. `tree` has all candidates, the draft those kept.

        Returns:
            tuple[Draft, Tensor]: draft, and the index of each of its N nodes among the candidates of `tree`, [B, N].
        """

    def draft_main_path_first(self, tree: DraftTree) -> Draft:
        """Return the draft with the path that is most likely to be accepted (the main path) before all other nodes.

        Accepted tokens of that path are committed without moving KV entries. It is for verifiers that do not depend on
        the order of siblings.
        """

    def observe(self, outcome: DraftOutcome, num_pending: Tensor) -> None:
        """Learn from a verification.

        Args:
            outcome (DraftOutcome): The draft and its verification.
            num_pending (Tensor): [B] nodes of every draft in front of its tree, which had been accepted before.
        """


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2 tree: grows `width` frontier nodes per level, then keeps the `total` highest-scoring candidates.

    Li et al. 2024, arXiv 2406.16858, section 4. The decision to stop (`stop_rules`) depends on nothing that a
    verifier's test does not see, and what was guessed by then is drafted, so exact methods stay exact. (Liu et al.
    2024, Kangaroo, arXiv 2404.18911, section 3.2, test the last guess alone.)
    """

    depth: int  # number of levels
    width: int = 1  # children per node, and nodes per level that get children; 1 is a chain
    total: int = 0  # nodes of a draft; 0 for depth * width
    # A sequence's last level is the first at which `rule` estimates that the draft is right so far with less than this
    # probability; 0 never stops.
    stop: float = 0.0
    rule: StopRule = PathProbability()

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes of a draft."""
        if self.width == 1:  # a chain, of which nothing is left out
            return self.depth
        # the first level has `width` candidates, every later one `width` children of `width` nodes
        num_candidates = self.width + (self.depth - 1) * self.width**2
        return min(num_candidates, self.total or self.depth * self.width)

    @property
    def max_expanded_nodes(self) -> int:
        """Largest number of nodes with children, over all levels."""
        return (self.depth - 1) * self.width

    def for_batch(self, rows: int) -> TreeShape:
        """Return this shape: it does not depend on the batch size."""
        return self

    def grow(self, tree: DraftTree, scores: ChildScores, ranking: CandidateRanking) -> bool:
        """Add the `width` best children of each frontier node of `tree` as a level, and choose the next frontier.

        Args:
            tree (DraftTree): Tree to extend in place.
            scores (ChildScores): Scores of all possible children.
            ranking (CandidateRanking): Estimates the acceptance probability of children.

        Returns:
            bool: True if a further level should be added: some row's estimate has always been at least `stop`.
        """
        log_probs, ids = ranking.top_children_log_probs(scores, self.width)  # [B, W, width], W frontier nodes
        path_scores = clamp_log_probs(log_probs)  # sum of log probabilities from the root
        if tree.levels:
            path_scores = path_scores + tree.levels[-1].frontier_scores[..., None]
        if tree.active_rows is not None:  # in batch rows that stopped, new candidates rank below all earlier ones
            is_stopped = ~tree.active_rows[..., None]
            log_probs = log_probs.masked_fill(is_stopped, -torch.inf)  # marks them as invalid
            # the lowest score that a path of this length can have: MAX_NATS bounds each of its log probabilities
            path_scores = path_scores.masked_fill(is_stopped, -MAX_NATS * (1 + len(tree.levels)))
        candidate_scores = path_scores.flatten(1)  # [B, W * width]
        is_last = len(tree.levels) + 1 == self.depth
        if self.width == 1:  # a chain: the only candidate is the frontier
            frontier_scores, frontier_nodes = candidate_scores, zero_index(tree.rows, tree.device)
            parent_index = frontier_nodes
        else:  # no node of the last level gets children
            frontier_scores, frontier_nodes = candidate_scores.topk(0 if is_last else self.width, 1)
            parent_index = frontier_nodes // self.width  # each parent has `width` consecutive candidates
        level = TreeLevel(
            ids.flatten(1), log_probs.flatten(1), candidate_scores, frontier_nodes, parent_index, frontier_scores
        )  # fmt: skip
        tree.levels.append(level)
        if self.stop and not is_last:
            is_active = self.rule.estimate(tree, scores.logits) >= self.stop  # [B, 1]
            if tree.active_rows is not None:
                is_active = is_active & tree.active_rows
            shared_value = all_equal_without_sync(is_active)  # None if rows differ, or if the device must not be read
            # if all rows stop, the tree is complete; if only some may, later levels are masked in the rows that stopped
            is_last, tree.active_rows = shared_value is False, is_active if shared_value is None else None
        return not is_last

    def draft_in_sampled_order(self, tree: DraftTree) -> tuple[Draft, Tensor]:
        """Return the draft with siblings in the order they were drawn, and its candidates in `tree`, `[B, N]`."""
        # candidates are numbered level by level, siblings in the order they were drawn
        draft_candidates = self.kept_candidates(tree).sort(1).values
        return tree.to_draft(draft_candidates, self.parent_tree_indices(tree)), draft_candidates

    def draft_main_path_first(self, tree: DraftTree) -> Draft:
        """Return the draft with the path to its deepest node before all other nodes."""
        # a chain (`width` 1) is such a path already
        draft_candidates, parents = self.kept_candidates(tree), self.parent_tree_indices(tree)
        if self.width > 1:
            draft_candidates = tree.deepest_path_first(draft_candidates, parents)
        draft = tree.to_draft(draft_candidates, parents)
        path_probs = tree.path_scores.exp().gather(1, draft_candidates) * draft.valid
        return replace(draft, path_probs=path_probs)

    def kept_candidates(self, tree: DraftTree) -> Tensor:
        """Return the indices of the candidates that are drafted, `[B, N]`, in no particular order."""
        if self.width == 1:
            return cached_arange(len(tree.levels), tree.device).expand(tree.rows, -1)
        return tree.top_candidates(self.max_nodes)

    def parent_tree_indices(self, tree: DraftTree) -> Tensor:
        """Return the tree index of every candidate's parent, `[B, M]` for M candidates; 0 is the root."""
        # every expanded node (node with children) has `width` candidates, which come one after another
        return tree.expanded_tree_indices[..., None].expand(-1, -1, self.width).flatten(1)

    def observe(self, outcome: DraftOutcome, num_pending: Tensor) -> None:
        """Let the stop rule learn from a verification, see `TreeShape.observe`."""
        self.rule.observe(outcome, num_pending)


@dataclass(frozen=True)
class StaticTree:
    """Tree of fixed shape (EAGLE-1, arXiv 2401.15077; Medusa, arXiv 2401.10774, section 2.3.3).

    A child's rank is its index among its siblings, from the likeliest on. The tree holds the `max_nodes` likeliest
    paths of ranks, assuming that a child of rank r at depth d + 1 is accepted with probability
    `acceptance_by_rank[d][r]`, whatever its parent is.
    """

    max_depth: int  # largest number of levels
    max_nodes: int  # nodes of a draft
    # [depth][rank]; the last entry is used for all deeper levels. Probabilities of one depth must not rise with the
    # rank, because siblings are drawn in order and none may be left out before one that is drafted.
    acceptance_by_rank: tuple[tuple[float, ...], ...] = ((0.55, 0.17, 0.08, 0.05),)

    def __post_init__(self) -> None:
        """Check that the acceptance does not rise with the rank."""
        pairs = (pair for acceptances in self.acceptance_by_rank for pair in itertools.pairwise(acceptances))
        if any(next_acceptance > acceptance for acceptance, next_acceptance in pairs):
            raise InvalidArgument(
                "acceptances by rank must not rise within a depth; fit them with `fit_acceptance_by_rank`."
            )

    @property
    def depth(self) -> int:
        """Number of levels."""
        return len(tree_template(self).levels)

    @property
    def width(self) -> int:
        """Largest number of children of a node."""
        return max(level.num_ranks for level in tree_template(self).levels)

    @property
    def max_expanded_nodes(self) -> int:
        """Number of nodes with children, over all levels."""
        return sum(level.frontier_nodes.shape[1] for level in tree_template(self).levels)

    def for_batch(self, rows: int) -> TreeShape:
        """Return this shape: it does not depend on the batch size."""
        return self

    def acceptances(self, depth: int) -> tuple[float, ...]:
        """Return the acceptance probability of every rank at `depth`, where the root's children have depth 0."""
        # depths beyond the table use its last entry
        return self.acceptance_by_rank[min(depth, len(self.acceptance_by_rank) - 1)]

    def grow(self, tree: DraftTree, scores: ChildScores, ranking: CandidateRanking) -> bool:
        """Add the next level of the fixed shape: to each frontier node of `tree` its children of the chosen ranks.

        A child's rank is its index among its siblings, from the likeliest on. The shape as index tensors is in
        `tree_template`. Returns True if the shape has a further level.
        """
        level, rows = tree_template(self, tree.device).levels[len(tree.levels)], tree.rows
        # rank the same number of children for all W frontier nodes, [B, W * num_ranks], then keep those of the shape
        values, ids = (part.flatten(1) for part in ranking.top_children(scores, level.num_ranks))
        if level.selected is not None:  # None: the shape has them all
            values, ids = values.index_select(1, level.selected), ids.index_select(1, level.selected)
        frontier_nodes, parent_index = level.frontier_nodes.expand(rows, -1), level.parent_index.expand(rows, -1)
        # the shape does not depend on scores: draft logits in their place only tell which nodes are valid (finite)
        new_level = TreeLevel(
            ids, log_probs=values, path_scores=values, frontier_nodes=frontier_nodes, parent_index=parent_index,
            frontier_scores=values[:, :0],
        )  # fmt: skip
        tree.levels.append(new_level)
        return len(tree.levels) < self.depth

    @cached_property
    def level_shapes(self) -> tuple[LevelShape, ...]:
        """Return the levels as the C library takes them."""
        num_frontier, shapes = 1, []
        for level in tree_template(self).levels:
            all_ranked = range(level.num_ranks * num_frontier)
            ranked = all_ranked if level.selected is None else level.selected.tolist()
            expanded, parents = level.frontier_nodes[0].tolist(), level.parent_index[0].tolist()
            shapes.append(LevelShape(level.num_ranks, tuple(ranked), tuple(expanded), tuple(parents)))
            num_frontier = len(expanded)
        return tuple(shapes)

    def add_all_levels(self, tree: DraftTree, ids: Tensor, scores: Tensor) -> None:
        """Add all levels to a tree that has none, given token ids and scores of all nodes, `[B, N]` each."""
        template = tree_template(self, tree.device).levels
        sizes = [len(level.ranked) for level in self.level_shapes]
        for level, level_ids, values in zip(template, ids.split(sizes, 1), scores.split(sizes, 1), strict=True):
            frontier_nodes, parent_index = level.frontier_nodes.expand(tree.rows, -1), level.parent_index
            tree.levels.append(
                TreeLevel(level_ids, values, values, frontier_nodes, parent_index.expand(tree.rows, -1), values[:, :0])
            )

    def draft_in_sampled_order(self, tree: DraftTree) -> tuple[Draft, Tensor]:
        """Return the draft, and the index of each of its nodes among the candidates of `tree`, `[B, N]`.

        The path of first ranks (from the root always to the likeliest child) comes before all other nodes. Siblings
        stay in the order they were drawn, since the first is drawn first.
        """
        template = tree_template(self, tree.device)  # the shape as index tensors, cached
        draft_candidates, shape = template.order.expand(tree.rows, -1), template.shape
        tokens, valid = tree.ids[:, template.order], tree.valid[:, template.order]
        parents = shape.parents.expand(tree.rows, -1)
        return Draft(tokens, parents, valid, shape.max_depth, shape.is_chain, template=shape), draft_candidates

    def draft_main_path_first(self, tree: DraftTree) -> Draft:
        """Return the draft with the path of first ranks before all other nodes."""
        return self.draft_in_sampled_order(tree)[0]

    def observe(self, outcome: DraftOutcome, num_pending: Tensor) -> None:
        """Do nothing: the shape is fixed."""


@dataclass(frozen=True)
class BatchScaledTree(StaticTree):
    """Static tree with fewer nodes in larger batches; only for methods whose results do not depend on the draft."""

    nodes_for_batch: Callable[[int], int] = field(kw_only=True)  # number of sequences → nodes of each draft

    def for_batch(self, rows: int) -> TreeShape:
        """Return the static tree for a batch of `rows` sequences."""
        return StaticTree(self.max_depth, self.nodes_for_batch(rows), self.acceptance_by_rank)


@dataclass(frozen=True)
class TemplateLevel:
    """One level of a static tree (`TreeTemplate`), equal in all batch rows."""

    num_ranks: int  # children that are ranked for every frontier node of the level before
    selected: Tensor | None  # [K] indices of this level's nodes among all ranked children; None if it has them all
    frontier_nodes: Tensor  # [1, W] nodes of this level that have children
    parent_index: Tensor  # [1, W] index of their parents among the frontier nodes of the level before


@dataclass(frozen=True)
class TreeTemplate:
    """Static tree as index tensors."""

    levels: list[TemplateLevel]
    order: Tensor  # [N] nodes, numbered level by level, in the order of drafts: the path of first ranks comes first
    shape: Draft  # draft of one batch row, whose tree mask and depths all drafts share


@lru_cache(maxsize=64)
def tree_template(shape: StaticTree, device: torch.device | str = "cpu") -> TreeTemplate:
    """Return the index tensors of `shape`, cached per shape and device.

    A child's rank is its index among its siblings, from the likeliest on. Frontier nodes are those with children.
    """
    nodes_of_levels = nodes_by_level(shape)  # per level: (index of the parent in the level above, rank) of each node
    levels: list[TemplateLevel] = []
    parents: list[int] = []  # parent of every node, numbered level by level; -1 is the root
    # indices of the frontier nodes within the level before (at first the root), and the numbers of the first node of
    # this level and of the level before
    last_frontier, level_start, last_level_start = [0], 0, 0

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    with torch.inference_mode(False):  # cached tensors made in inference mode could not be used in training later
        for depth, nodes in enumerate(nodes_of_levels):
            is_last = depth + 1 == len(nodes_of_levels)
            frontier = [] if is_last else sorted({parent for parent, _ in nodes_of_levels[depth + 1]})
            # ranks that some node has; as many children are ranked for every frontier node, and `selected` are those
            # of the shape
            num_ranks = 1 + max(rank for _, rank in nodes)
            selected = [last_frontier.index(parent) * num_ranks + rank for parent, rank in nodes]
            has_all = selected == list(range(num_ranks * len(last_frontier)))
            parent_index = [last_frontier.index(nodes[node][0]) for node in frontier]
            levels.append(
                TemplateLevel(
                    num_ranks, None if has_all else tensor(selected), tensor([frontier]), tensor([parent_index])
                )
            )
            parents += [last_level_start + parent if depth else -1 for parent, _ in nodes]
            last_frontier, last_level_start, level_start = frontier, level_start, level_start + len(nodes)
        first_path, node = [], -1  # the path of first ranks, from the root (-1) down
        while (child := next((index for index, parent in enumerate(parents) if parent == node), None)) is not None:
            first_path.append(child)
            node = child
        order = first_path + [node for node in range(len(parents)) if node not in first_path]
        index_of = {node: index for index, node in enumerate(order)} | {-1: -1}  # node -> its index in drafts
        ordered_parents = [index_of[parents[node]] for node in order]
        is_chain = ordered_parents == list(range(-1, len(order) - 1))  # every node's parent is the one before it
        draft_parents = tensor([ordered_parents])  # [1, N]
        unused_tokens, valid = torch.zeros_like(draft_parents), torch.ones_like(draft_parents, dtype=torch.bool)
        # a draft without tokens of its own, of which only parents, ancestor mask and depths are used
        draft = Draft(unused_tokens, draft_parents, valid, len(nodes_of_levels), is_chain)
        return TreeTemplate(levels, tensor(order), draft)


def likeliest_paths(shape: StaticTree) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield acceptance probability and ranks of the path to every node of `shape`, the likeliest first.

    A path is the tuple of the ranks (indices among siblings, the likeliest first) of its nodes. Its probability is the
    product of their acceptances.
    """
    queue: list[tuple[float, tuple[int, ...]]] = [  # a min-heap, so probabilities are negative
        (-acceptance, (rank,)) for rank, acceptance in enumerate(shape.acceptances(0))
    ]
    heapq.heapify(queue)
    for _ in range(shape.max_nodes):
        if not queue:  # no path of at most `max_depth` nodes is left
            return
        negative_probability, path = heapq.heappop(queue)
        yield -negative_probability, path
        if len(path) < shape.max_depth:
            for rank, acceptance in enumerate(shape.acceptances(len(path))):
                heapq.heappush(queue, (negative_probability * acceptance, (*path, rank)))


def node_probs(shape: StaticTree) -> list[float]:
    """Return the probability of every node of `shape` to be committed, the likeliest first."""
    return [probability for probability, _ in likeliest_paths(shape)]


def nodes_by_level(shape: StaticTree) -> list[list[tuple[int, int]]]:
    """Return for every level of `shape` one pair per node: index of its parent in the level above, and its rank."""
    paths = [path for _, path in likeliest_paths(shape)]  # a path is the tuple of the ranks of its nodes
    levels = [sorted(path for path in paths if len(path) == depth) for depth in range(1, shape.max_depth + 1)]
    levels = list(itertools.takewhile(bool, levels))  # the shape may have fewer levels than `max_depth`
    # a parent's path is the child's without the last rank; nodes of the first level have the parent 0, the root
    return [
        [(above.index(path[:-1]) if path[:-1] else 0, path[-1]) for path in level]
        for above, level in zip([[], *levels], levels, strict=False)
    ]
