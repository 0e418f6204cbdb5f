"""Tuning of methods: how much to draft, to the machine; how far to trust a drafter, to the drafter."""

from __future__ import annotations

import statistics
import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.tree.shapes import StaticTree, node_probs
from polydraft.core.sampling.noise import gumbel_from_keys, row_keys
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.tokens import expand_batch

Clock = Callable[[], float]

MAX_DISAGREEMENT = 1.25  # repeats agree if the second fastest takes at most this many times as long as the fastest
NUM_REPEATS, MAX_REPEATS = 3, 8  # repeats of a measurement, and their limit if they do not agree
MAX_SLOWDOWN = 3.0  # slowdown of the median repeat at which no further repeat would help
NUM_CHECKED_PASSES = 32  # recent passes that are compared with the measurement
CONTRADICTION_FACTOR = 1.6  # a pass this many times slower or faster than measured contradicts the measurement


@dataclass(frozen=True)
class Timing:
    """Wall time of target passes by number of draft nodes."""

    seconds: dict[int, float]  # of the fastest repeat, since other load can only slow a pass down
    is_stable: bool  # whether repeats agreed

    @classmethod
    def of_repeats(cls, repeats: Mapping[int, Sequence[float]]) -> Timing:
        """Return the timing of `repeats`, seconds by number of nodes."""
        fastest = {count: sorted(times)[:2] for count, times in repeats.items()}
        steady = all(times[-1] <= MAX_DISAGREEMENT * times[0] for times in fastest.values())
        return cls({count: times[0] for count, times in fastest.items()}, steady)

    def merge(self, other: Timing) -> Timing:
        """Return both measurements as one."""
        return Timing(self.seconds | other.seconds, self.is_stable and other.is_stable)


def time_passes(
    target: CausalTarget, prompts: list[PromptInputs], nodes: Sequence[int], clock: Clock = time.perf_counter
) -> Timing:
    """Measure t(N), repeatedly until repeats agree, at most `MAX_REPEATS` times.

    Args:
        target (CausalTarget): Target whose passes are timed.
        prompts (list[PromptInputs]): Sequences that share the passes.
        nodes (Sequence[int]): Numbers of draft nodes.
        clock (Clock): Clock in seconds; for a single thread better its CPU time, which others do not change.

    Returns:
        Timing: seconds of the fastest repeats.
    """
    repeats = pass_repeats(target, prompts, nodes, NUM_REPEATS, clock)
    while not (timing := Timing.of_repeats(repeats)).is_stable and len(repeats[nodes[0]]) < MAX_REPEATS:
        if worst_slowdown(repeats) > MAX_SLOWDOWN:
            break
        for count, times in pass_repeats(target, prompts, nodes, 1, clock).items():
            repeats[count] += times
    return timing


def worst_slowdown(repeats: Mapping[int, Sequence[float]]) -> float:
    """Return the ratio of the median repeat to the fastest one, of the number of nodes where it is worst."""
    return max(statistics.median(times) / min(times) for times in repeats.values())


def median_pass_seconds(
    target: CausalTarget, prompts: list[PromptInputs], nodes: Sequence[int], repeats: int = 3
) -> dict[int, float]:
    """Return t(N), the median wall time of a target pass over root and N draft nodes, by N."""
    repeats_by_size = pass_repeats(target, prompts, nodes, repeats, time.perf_counter)
    return {count: statistics.median(times) for count, times in repeats_by_size.items()}


@torch.inference_mode()
def pass_repeats(
    target: CausalTarget, prompts: list[PromptInputs], nodes: Sequence[int], repeats: int, clock: Clock
) -> dict[int, list[float]]:
    """Return the seconds of `repeats` target passes over root and N draft nodes, by N; numbers of nodes take turns."""
    state = target.empty_state()
    target.prefill(state, prompts)
    seconds: dict[int, list[float]] = {count: [] for count in nodes}
    for repeat in range(repeats + 1):
        for count in nodes:
            draft = Draft.from_chain(expand_batch(target.dummy_tokens(count), len(prompts)))
            start = clock()
            target.score(state, draft).outputs.sum().item()  # synchronises with the device
            elapsed = clock() - start
            if repeat:  # the first round is a warm-up
                seconds[count].append(elapsed)
    return seconds


class PassTimes:
    """Latency of target passes by number of draft nodes on this machine, checked against the passes that follow.

    Args:
        measure (Callable[[Sequence[int]], Timing]): Measure passes of these numbers of nodes.
        near (Sequence[int]): Numbers of nodes in passes of one sequence.
        far (Sequence[int]): Numbers of nodes in passes of many sequences; measured when sequences first share a pass.
        patience (int): Passes that contradict the measurement before it counts as outdated.
    """

    def __init__(
        self, measure: Callable[[Sequence[int]], Timing], near: Sequence[int], far: Sequence[int],
        patience: int = NUM_CHECKED_PASSES,
    ) -> None:  # fmt: skip
        self._measure, self._single_row_sizes, self._batch_sizes, self.patience = measure, near, far, patience
        self._timing: Timing | None = None
        self._has_batch_sizes = False
        self._ratios: deque[float] = deque(maxlen=NUM_CHECKED_PASSES)  # measured over expected seconds of recent passes
        self.contradictions = 0  # passes in a row whose recent median contradicts the measurement

    @property
    def has_measurement(self) -> bool:
        """Return whether any latency was requested so far."""
        return self._timing is not None

    @property
    def is_stable(self) -> bool:
        """Return whether repeats agreed, so that the measurement may be kept."""
        return self._timing is None or self._timing.is_stable

    @property
    def is_outdated(self) -> bool:
        """Return whether recent passes contradict the measurement for longer than `patience`."""
        return self.contradictions >= self.patience

    def single_row_latency(self) -> Mapping[int, float]:
        """Return t(N) in seconds for passes of one sequence, measured at the first call."""
        if self._timing is None:
            self._timing = self._measure(self._single_row_sizes)
        return self._timing.seconds

    def batch_latency(self) -> Mapping[int, float]:
        """Return t(N) in seconds for passes of one sequence and of many, measured at the first call."""
        self.single_row_latency()
        assert self._timing is not None
        if not self._has_batch_sizes:
            self._timing, self._has_batch_sizes = self._timing.merge(self._measure(self._batch_sizes)), True
        return self._timing.seconds

    def observe(self, nodes: int, seconds: float) -> None:
        """Compare a pass over root and `nodes` draft nodes with the measurement."""
        if self._timing is None:
            return
        self._ratios.append(seconds / interpolate_latency(self._timing.seconds, nodes))
        if len(self._ratios) == NUM_CHECKED_PASSES:
            agrees = 1 / CONTRADICTION_FACTOR < statistics.median(self._ratios) < CONTRADICTION_FACTOR
            self.contradictions = 0 if agrees else self.contradictions + 1


EQUAL_RATE = 0.98  # of the best rate: smaller differences are noise, and among equals the shorter window wastes less


def best_draft_size(tau_by_draft_size: Mapping[int, float], seconds: Mapping[int, float]) -> int:
    """Return the smallest draft size whose rate of tokens is near the best.

    Args:
        tau_by_draft_size (Mapping[int, float]): Mean number of tokens committed a pass, by number of drafted tokens.
        seconds (Mapping[int, float]): Seconds of a pass, by number of drafted tokens.
    """
    rates = {count: tau / seconds[count] for count, tau in tau_by_draft_size.items()}
    return min(count for count, rate in rates.items() if rate >= EQUAL_RATE * max(rates.values()))


@dataclass(eq=False)
class BatchAwareDraftSize:
    """Number of draft nodes of a sequence where `rows` sequences share a pass; call it with `rows`.

    A tree column costs what it adds to the pass, and sequences fill a pass as nodes do: beyond what a machine computes
    while it loads the weights, more nodes a sequence cost more than they commit.
    """

    tau_by_draft_size: Mapping[int, float]  # mean number of tokens committed a pass
    single_row_latency: Callable[[], Mapping[int, float]]  # t(N) of one sequence, measured at the first call
    batch_latency: Callable[[], Mapping[int, float]]  # t(N) of as many nodes as many sequences have
    size_by_rows: dict[int, int] = field(default_factory=dict)

    @cached_property
    def single_row_size(self) -> int:
        """Number of nodes where a sequence has a pass to itself, which is the most."""
        return self.best(self.tau_by_draft_size, self.single_row_latency(), 1)

    def __call__(self, rows: int) -> int:
        if rows <= 1:
            return self.single_row_size
        if rows not in self.size_by_rows:
            fewer = {count: tau for count, tau in self.tau_by_draft_size.items() if count <= self.single_row_size}
            self.size_by_rows[rows] = self.best(fewer, self.batch_latency(), rows)
        return self.size_by_rows[rows]

    @staticmethod
    def best(tau_by_draft_size: Mapping[int, float], seconds: Mapping[int, float], rows: int) -> int:
        """Return the best draft size where `rows` sequences share a pass."""
        costs = {count: interpolate_latency(seconds, rows * (count + 1) - 1) for count in tau_by_draft_size}
        return best_draft_size(tau_by_draft_size, costs)


def interpolate_latency(seconds: Mapping[int, float], nodes: int) -> float:
    """Return t(nodes) by linear interpolation between measured sizes; beyond the last two by extrapolation."""
    sizes = sorted(seconds)
    after = min(max(1, bisect(sizes, nodes)), len(sizes) - 1)
    left, right = sizes[after - 1], sizes[after]
    return seconds[left] + (seconds[right] - seconds[left]) * (nodes - left) / (right - left)


def expected_tau_by_nodes(
    acceptance_by_rank: Sequence[Sequence[float]], max_depth: int, max_nodes: int
) -> dict[int, float]:
    """Return the expected τ of static trees by number of nodes.

    Args:
        acceptance_by_rank (Sequence[Sequence[float]]): Acceptance by depth and rank, see `StaticTree`.
        max_depth (int): Longest path.
        max_nodes (int): Largest number of nodes.
    """
    shape = StaticTree(max_depth, max_nodes, tuple(map(tuple, acceptance_by_rank)))
    taus, tau = {}, 1.0
    for nodes, probability in enumerate(node_probs(shape), start=1):
        tau += probability
        taus[nodes] = tau
    return taus


NOISE_SCALES = tuple(0.2 * 1.2**step for step in range(20))


def fit_logit_noise_scale(p: Tensor, q: Tensor, seed: int = 0) -> float:
    """Return the scale of a drafter's logit error.

    With this scale `softmax((log q + g) / scale)` best predicts which token the target chooses under shared noise g.

    Args:
        p (Tensor): [M, V] log probabilities of the target.
        q (Tensor): [M, V] log probabilities of the drafter at the same positions.
        seed (int): Seed of the noise.
    """
    scores, chosen = perturbed_choices(p, q, seed)
    likelihood = {scale: (scores / scale).log_softmax(-1).gather(1, chosen).mean().item() for scale in NOISE_SCALES}
    return max(likelihood, key=likelihood.__getitem__)


def fit_acceptance_by_rank(p: Tensor, q: Tensor, depth: Tensor, ranks: int = 8, seed: int = 0) -> list[list[float]]:
    """Return how often the target's token has rank r among a drafter's candidates, by depth; see `StaticTree`.

    Args:
        p (Tensor): [M, V] log probabilities of the target.
        q (Tensor): [M, V] log probabilities of the drafter at the same positions.
        depth (Tensor): [M] depth in the draft that each q is for, from 0.
        ranks (int): Number of ranks.
        seed (int): Seed of the noise.

    Returns:
        list[list[float]]: acceptance by depth and rank, never rising within a depth.
    """
    scores, chosen = perturbed_choices(p, q, seed)
    rank = (scores > scores.gather(-1, chosen)).sum(-1)
    rank_by_depth = [rank[depth == index] for index in range(int(depth.max()) + 1)]
    acceptances = [row.bincount(minlength=ranks)[:ranks] / max(1, len(row)) for row in rank_by_depth]
    return [row.cummin(0).values.tolist() for row in acceptances]  # few samples may rise by chance


def perturbed_choices(p: Tensor, q: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return log q + g `[M, V]`, and the token that the target chooses with the same noise g, `[M, 1]`."""
    positions = torch.arange(len(p), device=p.device)
    keys = row_keys(*torch.tensor([[seed], [0]], device=p.device))
    noise = gumbel_from_keys(keys, positions[None], p.shape[1])[0]
    return q.clamp(min=-100) + noise, (p + noise).argmax(-1, keepdim=True)
