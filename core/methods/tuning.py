"""Tuning of methods: draft sizes fitted to the machine's latency, and parameters fitted to a drafter's accuracy.

t(N) is the latency of a target pass over the root and N draft nodes, τ the mean number of tokens committed per pass.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.tree.shapes import StaticTree, node_probs
from polydraft.core.methods.budget import PassLatency
from polydraft.core.sampling.noise import gumbel_from_keys, row_keys
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.tokens import expand_batch

Clock = Callable[[], float]

MAX_DISAGREEMENT = 1.25  # repeats agree if the second fastest takes at most this many times as long as the fastest
NUM_REPEATS, MAX_REPEATS = 3, 8  # repeats of a measurement, and their limit if they do not agree
MAX_SLOWDOWN = 3.0  # slowdown of the median repeat at which no further repeat would help
NUM_CHECKED_PASSES = 32  # recent passes that are compared with the measurement
NUM_TIMED_SEQUENCES = 8  # sequences of the passes that show what each costs
CONTRADICTION_FACTOR = 1.6  # a pass this many times slower or faster than measured contradicts the measurement


@dataclass(frozen=True)
class Timing:
    """Wall time of target passes by number of draft nodes."""

    seconds: dict[int, float]  # of the fastest repeat, since other load can only slow a pass down
    is_stable: bool  # whether the two fastest repeats agreed at every number of nodes

    @classmethod
    def of_repeats(cls, repeats: Mapping[int, Sequence[float]]) -> Timing:
        """Return the fastest of `repeats`, the seconds of repeated passes by number of draft nodes."""
        two_fastest = {count: sorted(times)[:2] for count, times in repeats.items()}
        # stable if the second fastest is at most a quarter slower than the fastest, at every number of nodes
        is_stable = all(times[-1] <= MAX_DISAGREEMENT * times[0] for times in two_fastest.values())
        return cls({count: times[0] for count, times in two_fastest.items()}, is_stable)

    def merge(self, other: Timing) -> Timing:
        """Return the measurements of both, those of `other` where both have a number of nodes."""
        return Timing(self.seconds | other.seconds, self.is_stable and other.is_stable)


def time_passes(
    target: CausalTarget, prompts: list[PromptInputs], nodes: Sequence[int], clock: Clock = time.perf_counter
) -> Timing:
    """Measure the latency of target passes over root and N draft nodes, with further repeats until repeats agree.

    It stops after MAX_REPEATS repeats, or earlier if a median repeat is more than MAX_SLOWDOWN times as slow as the
    fastest: other load on the machine is then too heavy for repeats to help.

    Args:
        target (CausalTarget): Target whose passes are timed.
        prompts (list[PromptInputs]): Sequences that share the passes.
        nodes (Sequence[int]): Numbers of draft nodes.
        clock (Clock): Clock in seconds; for a single thread better its CPU time, which other processes do not change.

    Returns:
        Timing: seconds of the fastest repeat by number of nodes.
    """
    repeats = pass_repeats(target, prompts, nodes, repeats=NUM_REPEATS, clock=clock)
    # all sizes have as many repeats as the first
    while not (timing := Timing.of_repeats(repeats)).is_stable and len(repeats[nodes[0]]) < MAX_REPEATS:
        if worst_slowdown(repeats) > MAX_SLOWDOWN:
            break
        for count, times in pass_repeats(target, prompts, nodes, repeats=1, clock=clock).items():
            repeats[count] += times
    return timing


def worst_slowdown(repeats: Mapping[int, Sequence[float]]) -> float:
    """Return the largest ratio of median to fastest repeat over all numbers of nodes (`repeats`: seconds by number)."""
    return max(statistics.median(times) / min(times) for times in repeats.values())


def median_pass_seconds(
    target: CausalTarget, prompts: list[PromptInputs], nodes: Sequence[int], repeats: int = 3
) -> dict[int, float]:
    """Return the median seconds of a target pass over the root and N draft nodes, for every N in `nodes`.

    Args:
        target (CausalTarget): Target whose passes are timed.
        prompts (list[PromptInputs]): Sequences that share the passes.
        nodes (Sequence[int]): Numbers of draft nodes.
        repeats (int): Passes per number of nodes.
    """
    repeats_by_size = pass_repeats(target, prompts, nodes, repeats, time.perf_counter)
    return {count: statistics.median(times) for count, times in repeats_by_size.items()}


@torch.inference_mode()
def pass_repeats(
    target: CausalTarget, prompts: list[PromptInputs], nodes: Sequence[int], repeats: int, clock: Clock
) -> dict[int, list[float]]:
    """Time `repeats` target passes over the root and N draft nodes, for every N in `nodes`, after a warm-up pass each.

    Sizes are timed in turn (all sizes once, then all again), so that a period of other load affects all of them.

    Args:
        target (CausalTarget): Target whose passes are timed.
        prompts (list[PromptInputs]): Sequences that share the passes.
        nodes (Sequence[int]): Numbers of draft nodes per sequence.
        repeats (int): Timed passes per number of nodes.
        clock (Clock): Returns the time in seconds.

    Returns:
        dict[int, list[float]]: seconds of every repeat by N.
    """
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
    """Latency of target passes by number of draft nodes, measured when it is first needed.

    The seconds of later passes (`observe`) show whether the measurement still holds.

    Args:
        measure (Callable[[Sequence[int], int], Timing]): Times passes over the given numbers of draft nodes per
            sequence, for a number of sequences.
        single_sequence_nodes (Sequence[int]): Numbers of nodes in passes of one sequence.
        batch_nodes (Sequence[int]): Total numbers of nodes in passes of many sequences; measured when sequences first
            share a pass.
        patience (int): Successive contradicting passes after which the measurement counts as outdated.
    """

    def __init__(
        self, measure: Callable[[Sequence[int], int], Timing], single_sequence_nodes: Sequence[int],
        batch_nodes: Sequence[int], patience: int = NUM_CHECKED_PASSES,
    ) -> None:  # fmt: skip
        self._measure = measure
        self.patience: int = patience
        self._single_sequence_nodes, self._batch_nodes = single_sequence_nodes, batch_nodes
        self._timing: Timing | None = None
        self._has_batch_nodes = False  # whether `_timing` includes `batch_nodes`
        self._sequence_seconds: float | None = None  # see `sequence_seconds`; None: not measured yet
        self._ratios: deque[float] = deque(maxlen=NUM_CHECKED_PASSES)  # measured over expected seconds of recent passes
        self.contradictions: int = 0  # passes in a row whose recent median contradicts the measurement
        self._overhead = PassLatency()  # of steps beside their pass, by number of scored positions

    @property
    def has_measurement(self) -> bool:
        """Return whether latencies were measured, which the first request for them does."""
        return self._timing is not None

    @property
    def is_stable(self) -> bool:
        """Return whether repeats of the measurement agreed, so that it may be stored; True before there is one."""
        return self._timing is None or self._timing.is_stable

    @property
    def is_outdated(self) -> bool:
        """Return whether at least `patience` successive passes contradicted the measurement."""
        return self.contradictions >= self.patience

    def single_sequence_latency(self) -> Mapping[int, float]:
        """Return seconds by number of draft nodes for passes of one sequence, measured at the first call."""
        if self._timing is None:
            self._timing = self._measure(self._single_sequence_nodes, 1)
        return self._timing.seconds

    def batch_latency(self) -> Mapping[int, float]:
        """Return seconds by number of draft nodes, up to those of many sequences, measured at the first call."""
        self.single_sequence_latency()  # measures the sizes of one sequence, if that was not done yet
        assert self._timing is not None
        if not self._has_batch_nodes:
            self._timing, self._has_batch_nodes = self._timing.merge(self._measure(self._batch_nodes, 1)), True
        return self._timing.seconds

    def sequence_seconds(self) -> float:
        """Return what every further sequence of a pass costs beside its positions, measured at the first call.

        Each has keys and values of its own to read, and attention over few positions of each fills cores badly.
        """
        if self._sequence_seconds is None:
            one_sequence = interpolate_latency(self.batch_latency(), NUM_TIMED_SEQUENCES - 1)  # as many positions
            timing = self._measure((0,), NUM_TIMED_SEQUENCES)
            assert self._timing is not None
            self._timing = self._timing.merge(Timing({}, timing.is_stable))
            self._sequence_seconds = max(0.0, timing.seconds[0] - one_sequence) / (NUM_TIMED_SEQUENCES - 1)
        return self._sequence_seconds

    def observe_overhead(self, positions: int, seconds: float) -> None:
        """Record what a step of so many scored positions took beside its pass: drafting, verification, the host."""
        self._overhead.observe(positions, seconds)

    def overhead_seconds(self, positions: int) -> float:
        """Return what a step of so many scored positions takes beside its pass; 0 before there was one."""
        return self._overhead.estimate(positions) if self._overhead.is_known else 0.0

    def observe(self, nodes: int, seconds: float, num_sequences: int = 1) -> None:
        """Compare the `seconds` of a pass over one more than `nodes` positions with the measurement, if there is one.

        Passes of several sequences are compared once it is known what these cost.

        Single passes vary, so the median over the last NUM_CHECKED_PASSES passes decides. `contradictions` counts the
        passes in a row at which that median was off by more than CONTRADICTION_FACTOR, in either direction.
        """
        if self._timing is None or (num_sequences > 1 and self._sequence_seconds is None):  # nothing to compare with
            return
        expected = interpolate_latency(self._timing.seconds, nodes)
        if self._sequence_seconds is not None:
            expected += (num_sequences - 1) * self._sequence_seconds
        self._ratios.append(seconds / expected)
        if len(self._ratios) == NUM_CHECKED_PASSES:
            agrees = 1 / CONTRADICTION_FACTOR < statistics.median(self._ratios) < CONTRADICTION_FACTOR
            self.contradictions = 0 if agrees else self.contradictions + 1


EQUAL_RATE = 0.98  # share of the best rate from which rates count as equal: smaller differences are noise
SIZE_STEPS = 16  # steps after which sizes are chosen anew
LARGER_RATE = 0.97  # share of the best rate from which a larger size is preferred, where `prefers_larger`


def best_draft_size(
    tau_by_draft_size: Mapping[int, float], seconds: Mapping[int, float], prefers_larger: bool = False
) -> int:
    """Return the smallest draft size whose tokens per second are within EQUAL_RATE of the best.

    Args:
        tau_by_draft_size (Mapping[int, float]): Mean number of tokens committed per pass, by number of drafted tokens.
        seconds (Mapping[int, float]): Seconds of a pass, by number of drafted tokens.
        prefers_larger (bool): Return the largest within LARGER_RATE of the best instead.
    """
    rates = {count: tau / seconds[count] for count, tau in tau_by_draft_size.items()}
    least_rate = (LARGER_RATE if prefers_larger else EQUAL_RATE) * max(rates.values())
    sizes = [count for count, rate in rates.items() if rate >= least_rate]
    return max(sizes) if prefers_larger else min(sizes)


@dataclass(eq=False)
class BatchAwareDraftSize:
    """Draft size per sequence that is fastest for a batch: an instance maps the number of sequences to a size.

    Draft nodes are nearly free while a pass is bound by loading the weights. The nodes of all sequences share this
    room, so larger batches draft fewer nodes per sequence.
    """

    tau_by_draft_size: Mapping[int, float]  # mean number of tokens committed per pass, by number of draft nodes
    # seconds of a pass by its number of draft nodes: of one sequence, and up to those of many sequences; both are
    # measured at their first call
    single_sequence_latency: Callable[[], Mapping[int, float]]
    batch_latency: Callable[[], Mapping[int, float]]
    sequence_seconds: Callable[[], float] = lambda: 0.0  # that every further sequence of a pass costs by itself
    prefers_larger: bool = False  # whether of sizes of nearly equal speed the largest is chosen
    # what a step takes beside its pass, by number of scored positions, learned from steps; if much, long drafts pay
    overhead_seconds: Callable[[int], float] = lambda positions: 0.0
    size_by_num_sequences: dict[int, int] = field(default_factory=dict)  # results of the last SIZE_STEPS steps
    num_steps: int = 0

    @property
    def largest_size(self) -> int:
        """Largest draft size that may ever be chosen."""
        return max(self.tau_by_draft_size)

    @property
    def single_sequence_size(self) -> int:
        """Draft size of a sequence that is decoded alone; batches never use a larger one."""
        if 1 not in self.size_by_num_sequences:
            self.size_by_num_sequences[1] = self.best_for(self.tau_by_draft_size, self.single_sequence_latency())
        return self.size_by_num_sequences[1]

    def __call__(self, num_sequences: int) -> int:
        """Return the number of draft nodes per sequence where `num_sequences` sequences share a pass."""
        self.num_steps += 1
        if self.num_steps % SIZE_STEPS == 0:
            self.size_by_num_sequences.clear()
        if num_sequences <= 1:
            return self.single_sequence_size
        if num_sequences not in self.size_by_num_sequences:
            # nodes cost more in a batch, so only sizes up to that of a single sequence are considered
            candidates = {
                count: tau for count, tau in self.tau_by_draft_size.items() if count <= self.single_sequence_size
            }
            seconds = self.batch_latency()
            self.size_by_num_sequences[num_sequences] = self.best_for(candidates, seconds, num_sequences)
        return self.size_by_num_sequences[num_sequences]

    def best_for(
        self, tau_by_draft_size: Mapping[int, float], seconds: Mapping[int, float], num_sequences: int = 1
    ) -> int:
        """Return the draft size with the most tokens per second where `num_sequences` sequences share a pass.

        Args:
            tau_by_draft_size (Mapping[int, float]): Tokens committed per sequence and pass, by draft nodes of it.
            seconds (Mapping[int, float]): Seconds of a pass of one sequence by its number of draft nodes.
            num_sequences (int): Sequences in the pass.
        """
        further = (num_sequences - 1) * self.sequence_seconds() if num_sequences > 1 else 0.0
        # The pass scores a root and `count` draft nodes per sequence. `seconds` is indexed by the draft nodes in a pass
        # of one sequence, which leave out its root, so one root is not counted.
        positions = {count: num_sequences * (count + 1) for count in tau_by_draft_size}
        costs = {
            count: interpolate_latency(seconds, scored - 1) + further + self.overhead_seconds(scored)
            for count, scored in positions.items()
        }
        return best_draft_size(tau_by_draft_size, costs, self.prefers_larger)


def interpolate_latency(seconds: Mapping[int, float], nodes: int) -> float:
    """Return the seconds of a pass over `nodes` draft nodes, given measured `seconds` by number of nodes.

    It interpolates linearly between measured sizes and extrapolates beyond the largest two.
    """
    sizes = sorted(seconds)
    # index of the measured size above `nodes`; clamped so that there are two sizes to draw a line through
    right_index = min(max(1, bisect(sizes, nodes)), len(sizes) - 1)
    left, right = sizes[right_index - 1], sizes[right_index]
    return seconds[left] + (seconds[right] - seconds[left]) * (nodes - left) / (right - left)


def expected_tau_by_nodes(
    acceptance_by_rank: Sequence[Sequence[float]], max_depth: int, max_nodes: int
) -> dict[int, float]:
    """Return the expected τ, tokens committed per pass, of the best static trees of 1 … `max_nodes` nodes.

    Args:
        acceptance_by_rank (Sequence[Sequence[float]]): Probability that a child of rank r at depth d is accepted, as
            `[d][r]`; rank 0 is the drafter's likeliest candidate.
        max_depth (int): Longest path.
        max_nodes (int): Largest number of nodes.

    Returns:
        dict[int, float]: τ by number of nodes.
    """
    tree = StaticTree(max_depth, max_nodes, tuple(map(tuple, acceptance_by_rank)))
    tau_by_nodes, tau = {}, 1.0  # the bonus token is always committed
    # `node_probs`: probability of every node to be committed, the likeliest first; the best tree of n nodes has the
    # first n of them
    for nodes, probability in enumerate(node_probs(tree), start=1):
        tau += probability
        tau_by_nodes[nodes] = tau
    return tau_by_nodes


NOISE_SCALES = tuple(0.2 * 1.2**index for index in range(20))  # candidates of `fit_logit_noise_scale`


def fit_logit_noise_scale(p: Tensor, q: Tensor, seed: int = 0) -> float:
    """Fit the scale of a drafter's logit error by maximum likelihood over NOISE_SCALES.

    Drafter and target share position-keyed Gumbel noise g. With the fitted scale, `softmax((log q + g) / scale)` best
    predicts which token the target samples with g, argmax(log p + g).

    Args:
        p (Tensor): [M, V] log probabilities of the target.
        q (Tensor): [M, V] log probabilities of the drafter at the same positions.
        seed (int): Seed of the noise.
    """
    perturbed, target_tokens = perturb_and_sample(p, q, seed)  # [M, V], [M, 1]
    log_likelihood = {
        scale: (perturbed / scale).log_softmax(-1).gather(1, target_tokens).mean().item() for scale in NOISE_SCALES
    }
    return max(log_likelihood, key=log_likelihood.__getitem__)


def fit_acceptance_by_rank(p: Tensor, q: Tensor, depth: Tensor, ranks: int = 8, seed: int = 0) -> list[list[float]]:
    """Estimate the acceptance by depth and rank that shapes static trees.

    It is how often the target's token has rank r among a drafter's candidates, where both share Gumbel noise.

    Args:
        p (Tensor): [M, V] log probabilities of the target.
        q (Tensor): [M, V] log probabilities of the drafter at the same positions.
        depth (Tensor): [M] depth in the draft that each q is for, from 0.
        ranks (int): Number of ranks.
        seed (int): Seed of the noise.

    Returns:
        list[list[float]]: acceptance `[depth][rank]`, never rising with the rank.
    """
    perturbed, target_tokens = perturb_and_sample(p, q, seed)  # [M, V], [M, 1]
    # [M] rank of the target's token: the number of candidates that the drafter ranks higher
    target_ranks = (perturbed > perturbed.gather(-1, target_tokens)).sum(-1)
    ranks_by_depth = [target_ranks[depth == index] for index in range(int(depth.max()) + 1)]
    acceptances = [
        depth_ranks.bincount(minlength=ranks)[:ranks] / max(1, len(depth_ranks)) for depth_ranks in ranks_by_depth
    ]
    # with few samples an acceptance may rise with the rank by chance; the running minimum removes this
    return [by_rank.cummin(0).values.tolist() for by_rank in acceptances]


def perturb_and_sample(p: Tensor, q: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return q + g, and the tokens that the target samples with the same Gumbel noise g, argmax(p + g).

    Tokens that the drafter rules out (-inf) get q = -100, so that likelihoods computed from the result are finite.

    Args:
        p (Tensor): [M, V] log probabilities of the target.
        q (Tensor): [M, V] log probabilities of the drafter.
        seed (int): Seed of the noise.

    Returns:
        tuple[Tensor, Tensor]: perturbed log probabilities of the drafter [M, V], and token ids [M, 1].
    """
    positions = torch.arange(len(p), device=p.device)  # every row of p and q has the noise of another position
    keys = row_keys(*torch.tensor([[seed], [0]], device=p.device))  # seed and segment of a batch of one row
    noise = gumbel_from_keys(keys, positions[None], p.shape[1])[0]
    return q.clamp(min=-100) + noise, (p + noise).argmax(-1, keepdim=True)
