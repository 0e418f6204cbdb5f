"""Number of draft nodes per pass: as many as pay for the time that scoring them takes.

A pass over n positions takes t(n), which is learned from the passes themselves. A draft with estimated acceptance
(`Draft.path_probs`) is cut to the nodes that maximise expected tokens per second over all sequences that share the
pass: few nodes of sure drafts and many of doubtful ones compete for the same time (Wu et al. 2025, TETRIS, arXiv
2502.15197, select nodes over a batch by the same criterion).

    budget = NodeBudget()
    draft = budget.prune(draft)          # before scoring
    budget.observe(positions, seconds, num_accepted, num_rows)   # after the pass
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft

PRIOR_POSITIONS, PRIOR_SLOPE = 16.0, 0.4  # before anything is known, 16 more positions take 40 % longer
PRIOR_WEIGHT = 0.25  # passes that the prior counts for
FORGETTING = 0.98  # weight of a pass after one more
MIN_CORRECTION, MAX_CORRECTION = 0.02, 4.0  # of estimated acceptance by what was observed
MAX_CHANGE = 3.0  # a pass this many times slower than expected was disturbed, and counts as no more than this


@dataclass
class PassLatency:
    """Time of target passes by number of scored positions: a line fitted to recent passes.

    Its slope starts from a prior, since plain decoding alone would not show it.
    """

    weight: float = 0.0  # decayed sums over passes: of 1, positions n, seconds t, n², and n t
    sum_n: float = 0.0
    sum_t: float = 0.0
    sum_nn: float = 0.0
    sum_nt: float = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether a pass has been observed."""
        return self.weight > 0

    def observe(self, positions: int, seconds: float) -> None:
        """Add a pass over `positions` positions, roots included, that took `seconds`."""
        if self.is_known:
            seconds = min(seconds, MAX_CHANGE * self.estimate(positions))
        sums = self.weight, self.sum_n, self.sum_t, self.sum_nn, self.sum_nt
        new = 1.0, positions, seconds, positions * positions, positions * seconds
        self.weight, self.sum_n, self.sum_t, self.sum_nn, self.sum_nt = (
            FORGETTING * total + value for total, value in zip(sums, new, strict=True)
        )

    def line(self) -> tuple[float, float]:
        """Return seconds at 0 positions, and seconds per position, of the fitted line."""
        mean_n, mean_t = self.sum_n / self.weight, self.sum_t / self.weight
        # least squares around the means, with the prior as a further pass of PRIOR_POSITIONS more positions
        variance = self.sum_nn - self.weight * mean_n**2 + PRIOR_WEIGHT * PRIOR_POSITIONS**2
        covariance = self.sum_nt - self.weight * mean_n * mean_t + PRIOR_WEIGHT * PRIOR_POSITIONS * PRIOR_SLOPE * mean_t
        slope = max(0.0, covariance / variance)
        return mean_t - slope * mean_n, slope

    def estimate(self, positions: int) -> float:
        """Return the expected seconds of a pass over `positions` positions."""
        offset, slope = self.line()
        return max(offset + slope * positions, 1e-9)


@dataclass
class AcceptanceCorrection:
    """Ratio of accepted nodes to those that a drafter expected to be accepted."""

    expected: float = 2.0  # decayed sums; at first as if a few nodes had been accepted as expected
    accepted: float = 2.0

    @property
    def factor(self) -> float:
        """Return the factor by which estimates are corrected."""
        return min(max(self.accepted / self.expected, MIN_CORRECTION), MAX_CORRECTION)

    def observe(self, expected: float, accepted: float) -> None:
        """Add a pass, given how many nodes were expected to be accepted, and how many were."""
        self.expected = FORGETTING * self.expected + expected
        self.accepted = FORGETTING * self.accepted + accepted


@dataclass
class NodeBudget:
    """Rule that decides how many draft nodes every sequence of a batch gets."""

    # by number of sequences, since each has costs of its own beside those of its positions
    latency: defaultdict[int, PassLatency] = field(default_factory=lambda: defaultdict(PassLatency))
    acceptance: dict[str, AcceptanceCorrection] = field(default_factory=dict)  # by drafter
    last: tuple[str, float] = ("", 0.0)  # drafter of the last draft, and how many nodes it expected to be accepted

    def observe(self, positions: int, seconds: float, num_accepted: int = 0, num_rows: int = 1) -> None:
        """Learn from a step.

        Args:
            positions (int): Positions that it scored, roots included.
            seconds (float): Time of scoring and verifying them.
            num_accepted (int): Draft nodes that were accepted, over all sequences.
            num_rows (int): Sequences that shared the pass.
        """
        self.latency[num_rows].observe(positions, seconds)
        drafter, expected = self.last
        if expected:
            self.acceptance[drafter].observe(expected, num_accepted)
        self.last = "", 0.0

    def prune(self, draft: Draft, drafter: str = "") -> Draft:
        """Return `draft` with the nodes that pay; all of them where nothing can be said.

        All sequences keep the same number of nodes, since they share rectangular tensors. Accelerators score a few more
        positions in the same time, and tensor shapes must not depend on values there, so nothing is dropped.

        Args:
            draft (Draft): A draft of any drafter.
            drafter (str): Name of the drafter, since each is wrong about its acceptance in its own way.
        """
        path_probs = draft.path_probs
        if not draft.size or draft.tokens.device.type != "cpu":
            return draft
        if path_probs is None:  # all nodes may be worth their time, unless no sequence has them
            return draft.truncate_chain(int(draft.valid.sum(1).max())) if draft.is_chain else draft
        correction = self.acceptance.setdefault(drafter, AcceptanceCorrection())
        ranked, _ = draft.ranked_nodes
        gains = ranked.sum(0)  # [N] accepted nodes that the i-th best of every sequence adds
        num_nodes = self.best_num_nodes(gains * correction.factor, len(draft.tokens))
        kept = ranked[:, :num_nodes]
        # Nodes that were accepted before, and lead the draft because they are not committed yet, are sure. They are not
        # expected again, since their acceptance is counted only when they are committed.
        self.last = drafter, float((kept * (kept < 1)).sum())
        return draft.keep_likeliest(num_nodes)

    def best_num_nodes(self, gains: Tensor, num_rows: int) -> int:
        """Return the number of nodes per sequence with the most expected tokens per second.

        It is one at least where the drafter hopes for any, or nothing would be learned of its acceptance.

        Args:
            gains (Tensor): `[N]` expected tokens that the i-th node of all sequences together adds, descending.
            num_rows (int): Sequences.
        """
        num_useful = int((gains > 0).sum())
        latency = self.latency[num_rows]
        if not latency.is_known or not num_useful:
            return num_useful
        offset, slope = latency.line()
        tokens = torch.cat([gains.new_full((1,), num_rows), gains[:num_useful]]).cumsum(0)  # for 0 … N nodes
        positions = num_rows * torch.arange(1, num_useful + 2)
        return max(1, int((tokens / (offset + slope * positions)).argmax()))
