"""Fit of stop rules: the rule and threshold that commit most tokens per second on recorded drafts.

Drafts of full depth show what any rule would have cost and gained, since a rule only drafts fewer levels.

    recorder = LevelRecorder()
    drafter.tree_shape = replace(shape, stop=1.0, rule=recorder)   # then decode
    fit_stop_rule(recorder.recorded(), pass_seconds, level_seconds)   # {"rule": "head", "stop": 0.35, "head": [...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.stop_rules import (
    PATH_WEIGHTS,
    EntropyBound,
    PathProbability,
    StopRule,
    level_features,
)

MIN_DRAFTS = 64  # drafts from which a rule is fitted
THRESHOLDS = tuple(index / 20 for index in range(20))  # 0 never stops
MIN_GAIN = 1.01  # a rule other than path probability is chosen if it is faster by this factor
EQUAL_RATE = 0.995  # share of the best rate from which thresholds are equally good; of those the middle one is chosen
RIDGE = 1.0  # tests that the weights of path probability count for


@dataclass(frozen=True)
class RecordedDrafts:
    """M drafts of full depth, and what stop rules could read after each of their L first levels."""

    path: Tensor  # [M, L] estimates of `PathProbability`
    entropy: Tensor  # [M, L] estimates of `EntropyBound`
    features: Tensor  # [M, L, F] inputs of an `AcceptanceHead`
    num_accepted: Tensor  # [M] levels that were accepted

    def __len__(self) -> int:
        """Return M."""
        return len(self.num_accepted)

    def select(self, index: slice) -> RecordedDrafts:
        """Return some of the drafts."""
        return RecordedDrafts(self.path[index], self.entropy[index], self.features[index], self.num_accepted[index])


class LevelRecorder(StopRule):
    """Rule that never stops, and records what other rules could have read and how much was accepted."""

    def __init__(self) -> None:
        self.levels: list[Tensor] = []  # [B, 2 + F] per level of the latest draft: both estimates, then features
        self.drafts: list[tuple[Tensor, Tensor]] = []  # [B, L, 2 + F] of every draft, and its accepted levels [B]

    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Record the newest level and return ones, `[B, 1]`."""
        if len(tree.levels) == 1:
            self.levels = []
        path, bound = PathProbability().estimate(tree, logits), EntropyBound().estimate(tree, logits)
        self.levels.append(torch.cat([path, bound, level_features(tree, logits)], 1))
        return torch.ones_like(path)

    def observe(self, outcome: DraftOutcome, num_pending: Tensor) -> None:
        """Record how many levels were accepted."""
        if self.levels:
            num_accepted = outcome.verification.num_matched - 1 - num_pending
            self.drafts.append((torch.stack(self.levels, 1).cpu(), num_accepted.cpu()))
        self.levels = []

    def recorded(self) -> RecordedDrafts | None:
        """Return all drafts of the usual number of levels; None if there are none."""
        depth = max((levels.shape[1] for levels, _ in self.drafts), default=0)
        whole = [draft for draft in self.drafts if draft[0].shape[1] == depth]
        if not whole:
            return None
        levels, num_accepted = (torch.cat(part) for part in zip(*whole, strict=True))
        return RecordedDrafts(levels[..., 0], levels[..., 1], levels[..., 2:], num_accepted)


def fit_stop_rule(drafts: RecordedDrafts | None, pass_seconds: float, level_seconds: float) -> dict[str, Any]:
    """Return tuned values of `rule`, `stop` and `head`; empty with fewer than MIN_DRAFTS drafts.

    The head is fitted to one half of the drafts; rules and thresholds are compared on the other half.

    Args:
        drafts (RecordedDrafts | None): Drafts of full depth.
        pass_seconds (float): Seconds of a target pass.
        level_seconds (float): Seconds of drafting a level.
    """
    if drafts is None or len(drafts) < MIN_DRAFTS:
        return {}
    weights, judged = fit_head(drafts.select(slice(0, None, 2))), drafts.select(slice(1, None, 2))
    head = F.logsigmoid(judged.features @ weights).cumsum(1).exp()
    estimates = {"path": judged.path, "entropy": judged.entropy, "head": head}
    best = {
        rule: best_threshold(
            {
                stop: tokens_per_second(judged.num_accepted, estimate, stop, pass_seconds, level_seconds)
                for stop in THRESHOLDS
            }
        )
        for rule, estimate in estimates.items()
    }
    rule = max(best, key=lambda name: best[name][1] / (1 if name == "path" else MIN_GAIN))
    return {"rule": rule, "stop": best[rule][0], "head": [round(weight, 4) for weight in weights.tolist()]}


def best_threshold(rates: Mapping[float, float]) -> tuple[float, float]:
    """Return the threshold with the most tokens per second, given the rate of each in ascending order, and its rate."""
    best = max(rates.values())
    near = [stop for stop, rate in rates.items() if rate >= EQUAL_RATE * best]
    return near[len(near) // 2], best


def tokens_per_second(
    num_accepted: Tensor, estimates: Tensor, stop: float, pass_seconds: float, level_seconds: float
) -> float:
    """Return the tokens per second that drafts would have committed if a rule had stopped them.

    Args:
        num_accepted (Tensor): [M] levels that were accepted at full depth.
        estimates (Tensor): [M, L] the rule's estimate after every level but the last.
        stop (float): Threshold of the rule.
        pass_seconds (float): Seconds of a target pass.
        level_seconds (float): Seconds of drafting a level.
    """
    levels = 1 + (estimates >= stop).cumprod(1).sum(1)  # [M]
    tokens = 1 + torch.minimum(num_accepted, levels)
    return float(tokens.sum()) / float((pass_seconds + level_seconds * levels).sum())


def fit_head(drafts: RecordedDrafts) -> Tensor:
    """Return weights `[F]` of an `AcceptanceHead` by maximum likelihood, near those of path probability."""
    level = torch.arange(drafts.features.shape[1])
    tested = drafts.num_accepted[:, None] >= level  # [M, L], the level before was accepted
    inputs = drafts.features[tested].double()  # [T, F] of all tested levels
    accepted = (drafts.num_accepted[:, None] > level)[tested].double()
    prior = torch.tensor(PATH_WEIGHTS, dtype=torch.float64)
    weights = prior.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        nats = F.binary_cross_entropy_with_logits(inputs @ weights, accepted, reduction="sum")
        total = nats + RIDGE / 2 * (weights - prior).square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    return weights.detach().float()
