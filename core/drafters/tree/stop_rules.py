"""Stop rules: when a draft tree that grows has enough levels.

After every level a rule estimates the probability that the draft is right so far; a sequence's last level is the first
whose estimate is below the threshold of the tree's shape. A rule may use whatever was drafted by then, the last level
included, and nothing that is drawn later, and what was drafted stays in the draft. So tokens tested by a verifier are
distributed as without a rule, and exact methods stay exact.

    shape = DynamicTree(depth=8, stop=0.4, rule=EntropyBound())
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.errors import WeightsError
from polydraft.core.sampling.noise import GOLDEN, box_muller, splitmix64, uniforms_from_key

ENTROPY_SCALE = 0.2  # γ of AdaEDL, in section 4 of the paper
MAX_LOGIT = 20.0  # of an acceptance probability
FEATURE_NAMES = ("constant", "acceptance logit", "log top probability", "root of entropy", "level")
PATH_WEIGHTS = (0.0, 1.0, 0.0, 0.0, 0.0)  # of an `AcceptanceHead` that estimates what `PathProbability` does
MAX_TESTS = 64.0  # tests of a level that `ThompsonDepths` remembers; older ones fade


class StopRule(ABC):
    """Estimator of the probability that a draft is right so far, by which its growth is stopped."""

    @abstractmethod
    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Return the estimated probability that some frontier node is accepted with all its ancestors, `[B, 1]`.

        It is asked for once per level, in order; what a rule needs again is in `tree.rule_state`.

        Args:
            tree (DraftTree): Tree whose last level has just been added.
            logits (Tensor): [B, W, K] draft logits that the level was drawn from, of the W frontier nodes of the level
                before.
        """

    def observe(self, outcome: DraftOutcome, num_pending: Tensor) -> None:  # noqa: B027 (most rules learn nothing)
        """Learn from a verification.

        Args:
            outcome (DraftOutcome): The draft and its verification.
            num_pending (Tensor): [B] nodes of every draft in front of its tree, which had been accepted before.
        """


@dataclass(frozen=True)
class PathProbability(StopRule):
    """Rule that sums the path probabilities of the frontier nodes, as the ranking of candidates estimates them.

    The sum is the most that a further level can add, in tokens.
    """

    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Return the sum of the frontier nodes' path probabilities, `[B, 1]`."""
        return tree.levels[-1].frontier_scores.exp().sum(1, keepdim=True)


@dataclass(frozen=True)
class EntropyBound(StopRule):
    """Rule that bounds the acceptance of the last guess by the entropy H of its draft distribution: 1 - √(γ H).

    Agrawal et al. 2024, AdaEDL (arXiv 2410.18351). Zhang et al. 2024, SVIP (arXiv 2411.18462) stop where √H exceeds a
    threshold h, which is the same rule with h = (1 - stop) / √γ. A tree's bound is the mean over its frontier nodes,
    weighted by their path probabilities.
    """

    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Return the bound of the newest level alone, `[B, 1]`."""
        return 1 - (ENTROPY_SCALE * frontier_mean(tree, entropy(logits))).sqrt()


class AcceptanceHead(StopRule):
    """Rule with a fitted logistic model of the acceptance of every level; the estimate is their product.

    Huang et al. 2024, SpecDec++ (arXiv 2405.19715) stop where the probability that any guess is rejected exceeds a
    threshold, and predict it from the drafter's hidden state. The inputs here are those that every drafter has, much
    as in Mamou et al. 2024, DISCO (arXiv 2405.04304): what the ranking of candidates expects, the probability of the
    likeliest token, the entropy, and the level.

    Args:
        weights (Sequence[float]): One per entry of `FEATURE_NAMES`; `fit_stop_rule` fits them.
        device (torch.device | str): Device of the drafter.

    Raises:
        WeightsError: Their number is wrong.
    """

    def __init__(self, weights: tuple[float, ...] = PATH_WEIGHTS, device: torch.device | str = "cpu") -> None:
        if len(weights) != len(FEATURE_NAMES):
            raise WeightsError(
                f"a stop rule's head has {len(weights)} weights and needs {len(FEATURE_NAMES)}; train the drafter "
                "again."
            )
        self.weights: Tensor = torch.tensor(weights, dtype=torch.float32, device=device)

    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Return the product of the predicted acceptances of all levels, `[B, 1]`."""
        log_acceptance = F.logsigmoid(level_features(tree, logits) @ self.weights)[:, None]
        return multiply_level(tree, log_acceptance)


class ThompsonDepths(StopRule):
    """Rule that draws the acceptance of every level from what earlier drafts showed (Thompson sampling).

    Whether a level is accepted once the one before it was has a Beta posterior per level, uniform at first. A draft
    takes one draw per level, shared by all sequences, and the estimate is their product: levels of which little is
    known are tried now and then. Liu et al. 2024, EESD (arXiv 2406.03853) draw from one posterior for all levels. The
    drafts depend on other sequences, so only methods whose tokens do not depend on the draft may use this rule. Its
    random numbers come from a counter and no sequence's noise.

    Args:
        depth (int): Number of levels.
        device (torch.device | str): Device of the drafter.
        seed (int): Seed of the draws.
    """

    def __init__(self, depth: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        # plain tensors although drafters may be built in inference mode, and changed in place: a captured step does so
        with torch.inference_mode(False):
            self.accepted: Tensor
            self.rejected: Tensor
            self.accepted, self.rejected = torch.zeros(2, depth, device=device)  # [depth] number of tests, decayed
            self.num_draws: Tensor = torch.tensor(seed << 32, device=device)

    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Return the product of the drawn acceptances of all levels, `[B, 1]`, equal in all rows."""
        level = len(tree.levels) - 1
        self.num_draws += 1
        drawn = sample_beta(1 + self.accepted[level], 1 + self.rejected[level], self.num_draws)
        return multiply_level(tree, drawn.log().view(1, 1)).expand(tree.rows, 1)

    def observe(self, outcome: DraftOutcome, num_pending: Tensor) -> None:
        """Count, per level, how often it was accepted and rejected after the level before it had been accepted."""
        tested, accepted = tested_levels(outcome, num_pending, len(self.accepted))
        self.accepted += accepted.sum(0)
        self.rejected += (tested & ~accepted).sum(0)
        fading = (MAX_TESTS / (self.accepted + self.rejected)).clamp(max=1)
        self.accepted *= fading
        self.rejected *= fading


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of the distributions with `logits` `[..., K]`, `[...]`."""
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def frontier_mean(tree: DraftTree, values: Tensor) -> Tensor:
    """Return the mean of `values` over the frontier nodes of `tree`, weighted by their path probabilities, `[B, 1]`.

    Args:
        tree (DraftTree): Tree whose last level has just been added.
        values (Tensor): [B, W] of the parents, which were the frontier nodes before.
    """
    if values.shape[1] == 1:  # they all have the same parent
        return values
    level = tree.levels[-1]
    return (level.frontier_scores.softmax(1) * values.gather(1, level.parent_index)).sum(1, keepdim=True)


def multiply_level(tree: DraftTree, log_acceptance: Tensor) -> Tensor:
    """Return the product over levels of a rule's acceptances, given the log of the newest `[B, 1]`, `[B, 1]`."""
    tree.rule_state = log_acceptance if tree.rule_state is None else tree.rule_state + log_acceptance
    return tree.rule_state.exp()


def level_features(tree: DraftTree, logits: Tensor) -> Tensor:
    """Return the inputs of an `AcceptanceHead` for the newest level, `[B, F]`, see `FEATURE_NAMES`.

    Args:
        tree (DraftTree): Tree whose last level has just been added.
        logits (Tensor): [B, W, K] draft logits that it was drawn from, of the W frontier nodes of the level before.
    """
    log_path = log_frontier_probability(tree, -1)
    log_acceptance = log_path - log_frontier_probability(tree, -2) if len(tree.levels) > 1 else log_path  # [B]
    odds = log_acceptance - (-log_acceptance.expm1()).clamp(min=1e-9).log()
    log_probs = logits.log_softmax(-1)
    top, spread = log_probs.amax(-1), entropy(logits)
    features = [
        torch.ones_like(odds), odds.clamp(-MAX_LOGIT, MAX_LOGIT), frontier_mean(tree, top)[:, 0],
        frontier_mean(tree, spread).sqrt()[:, 0], torch.full_like(odds, len(tree.levels) - 1),
    ]  # fmt: skip
    return torch.stack(features, 1)


def log_frontier_probability(tree: DraftTree, level: int) -> Tensor:
    """Return the log of the path probability of all frontier nodes of a level together, `[B]`."""
    return tree.levels[level].frontier_scores.logsumexp(1).clamp(max=0)


def tested_levels(outcome: DraftOutcome, num_pending: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Return which levels of draft trees a verification tested, and which of them it accepted, both `[B, depth]`.

    A level is tested if it was drafted and the level before it was accepted.

    Args:
        outcome (DraftOutcome): The draft and its verification.
        num_pending (Tensor): [B] nodes of every draft in front of its tree.
        depth (int): Number of levels of the tree's shape.
    """
    draft, num_accepted = outcome.draft, outcome.verification.num_matched - 1  # [B], pending nodes included
    node_depth = (draft.depth[:, 1:] * draft.valid).amax(1) if draft.size else torch.zeros_like(num_accepted)
    level_depth = num_pending[:, None] + cached_arange(depth, num_pending.device) + 1  # [B, depth]
    tested = (level_depth <= node_depth[:, None]) & (level_depth <= num_accepted[:, None] + 1)
    return tested, tested & (level_depth <= num_accepted[:, None])


def sample_beta(alpha: Tensor, beta: Tensor, key: Tensor) -> Tensor:
    """Return a draw from about Beta(alpha, beta), as a pure function of an integer key.

    All three are scalars on the device, and no host reads them. A gamma variate is the cube of a normal one (Marsaglia
    and Tsang 2000) without the correction of their rejection step, which at shapes from 1 on is rarely needed; the
    mean is right.
    """
    uniforms = uniforms_from_key(splitmix64(key * GOLDEN), 4)
    normals = box_muller(uniforms[:2], uniforms[2:])
    shape = torch.stack([alpha, beta]).double() - 1 / 3
    gammas = shape * (1 + normals / (9 * shape).sqrt()).clamp(min=1e-3) ** 3
    return gammas[0] / gammas.sum()
