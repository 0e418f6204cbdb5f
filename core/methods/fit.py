"""What is fitted: how much to draft, to the machine; how far to trust a drafter, to the drafter."""

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
from polydraft.core.drafters.tree.plans import Static, chances
from polydraft.core.law.noise import gumbel, row_keys
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.tokens import side_by_side

Clock = Callable[[], float]

AGREEMENT = 1.25  # repeats agree where the second fastest takes at most so many times as long as the fastest
ROUNDS, MOST_ROUNDS = 3, 8  # repeats of a measurement, and of one whose repeats do not agree
HOPELESS = 3.0  # times the fastest repeat that typical ones take where no further repeat would help
CHECKED = 32  # passes that are compared with what was measured
OTHERWISE = 1.6  # a pass that takes so many times as long, or as short, as measured is another kind of pass


@dataclass(frozen=True)
class Timing:
    """Wall time of target passes by number of draft nodes."""

    seconds: dict[int, float]  # of the fastest repeat: others can only slow a pass down
    steady: bool  # whether repeats agreed

    @classmethod
    def of_repeats(cls, repeats: Mapping[int, Sequence[float]]) -> Timing:
        """Return what `repeats`, seconds by number of nodes, come to."""
        fastest = {count: sorted(times)[:2] for count, times in repeats.items()}
        steady = all(times[-1] <= AGREEMENT * times[0] for times in fastest.values())
        return cls({count: times[0] for count, times in fastest.items()}, steady)

    def joined(self, other: Timing) -> Timing:
        """Return both measurements as one."""
        return Timing(self.seconds | other.seconds, self.steady and other.steady)


def time_passes(
    target: CausalTarget, prompts: list[Prompt], nodes: Sequence[int], clock: Clock = time.perf_counter
) -> Timing:
    """Measure t(N), again and again until repeats agree, `MOST_ROUNDS` times at most.

    Args:
        target (CausalTarget): Whose passes are timed.
        prompts (list[Prompt]): Sequences that share the passes.
        nodes (Sequence[int]): Numbers of draft nodes.
        clock (Clock): Seconds; of one thread better the processor's, which others do not slow down.
    """
    repeats = pass_repeats(target, prompts, nodes, ROUNDS, clock)
    while not (timing := Timing.of_repeats(repeats)).steady and len(repeats[nodes[0]]) < MOST_ROUNDS:
        if slowest(repeats) > HOPELESS:
            break
        for count, times in pass_repeats(target, prompts, nodes, 1, clock).items():
            repeats[count] += times
    return timing


def slowest(repeats: Mapping[int, Sequence[float]]) -> float:
    """Return how many times as long as the fastest the typical repeat took, at worst."""
    return max(statistics.median(times) / min(times) for times in repeats.values())


def pass_seconds(
    target: CausalTarget, prompts: list[Prompt], nodes: Sequence[int], repeats: int = 3
) -> dict[int, float]:
    """Return t(N), the median wall time of a target pass over root and N draft nodes, by N."""
    measured = pass_repeats(target, prompts, nodes, repeats, time.perf_counter)
    return {count: statistics.median(times) for count, times in measured.items()}


@torch.inference_mode()
def pass_repeats(
    target: CausalTarget, prompts: list[Prompt], nodes: Sequence[int], repeats: int, clock: Clock
) -> dict[int, list[float]]:
    """Return seconds of `repeats` target passes over root and N draft nodes, by N, in turns."""
    state = target.empty()
    target.prefill(state, prompts)
    seconds: dict[int, list[float]] = {count: [] for count in nodes}
    for repeat in range(repeats + 1):
        for count in nodes:
            draft = Draft.of_chain(side_by_side(target.some(count), len(prompts)))
            start = clock()
            target.score(state, draft).outputs.sum().item()  # waits for the device
            taken = clock() - start
            if repeat:  # the first round warms up
                seconds[count].append(taken)
    return seconds


class PassTimes:
    """Time of a target pass by draft nodes on this machine, checked against the passes that follow.

    Args:
        measure (Callable[[Sequence[int]], Timing]): Measure passes of so many nodes.
        near (Sequence[int]): Nodes that passes of one sequence have.
        far (Sequence[int]): Nodes as far as many sequences of few nodes go; measured when sequences first share a pass.
        patience (int): Passes that contradict the measurement before it counts as outdated.
    """

    def __init__(
        self, measure: Callable[[Sequence[int]], Timing], near: Sequence[int], far: Sequence[int],
        patience: int = CHECKED,
    ) -> None:  # fmt: skip
        self._measure, self._near, self._far, self.patience = measure, near, far, patience
        self._known: Timing | None = None
        self._reaches_far = False
        self._factors: deque[float] = deque(maxlen=CHECKED)  # seconds of recent passes over what was measured
        self.contradictions = 0  # passes in a row whose recent median contradicts the measurement

    @property
    def measured(self) -> bool:
        """Return whether anybody has asked so far."""
        return self._known is not None

    @property
    def steady(self) -> bool:
        """Return whether repeats agreed, so that the measurement may be kept."""
        return self._known is None or self._known.steady

    @property
    def contradicted(self) -> bool:
        """Return whether passes have long turned out otherwise than measured."""
        return self.contradictions >= self.patience

    def near(self) -> Mapping[int, float]:
        """Return t(N) of passes of one sequence."""
        if self._known is None:
            self._known = self._measure(self._near)
        return self._known.seconds

    def far(self) -> Mapping[int, float]:
        """Return t(N) of passes of one sequence and of many."""
        self.near()
        assert self._known is not None
        if not self._reaches_far:
            self._known, self._reaches_far = self._known.joined(self._measure(self._far)), True
        return self._known.seconds

    def observe(self, nodes: int, seconds: float) -> None:
        """Compare a pass over root and `nodes` draft nodes with what was measured."""
        if self._known is None:
            return
        self._factors.append(seconds / interpolated(self._known.seconds, nodes))
        if len(self._factors) == CHECKED:
            agrees = 1 / OTHERWISE < statistics.median(self._factors) < OTHERWISE
            self.contradictions = 0 if agrees else self.contradictions + 1


ALIKE = 0.98  # of the best rate: less cannot be told from noise, and of equals the shorter window wastes less


def best_nodes(committed: Mapping[int, float], seconds: Mapping[int, float]) -> int:
    """The fewest nodes near the most tokens a second: `committed[N]` is τ with N drafted tokens."""
    rates = {count: tau / seconds[count] for count, tau in committed.items()}
    return min(count for count, rate in rates.items() if rate >= ALIKE * max(rates.values()))


@dataclass(eq=False)
class ByRows:
    """How many nodes a row gets where `rows` rows share a pass: `sized(rows)`.

    A column costs what it adds to the pass, and rows fill it as nodes do: past what a machine computes while it reads
    the weights, more nodes a row cost more than they commit. committed: τ by nodes; near, far: t(N) of a row, as far as
    one row and as many rows go, measured when first asked for.
    """

    committed: Mapping[int, float]
    near: Callable[[], Mapping[int, float]]
    far: Callable[[], Mapping[int, float]]
    found: dict[int, int] = field(default_factory=dict)

    @cached_property
    def alone(self) -> int:
        """Nodes where a row has a pass to itself; never more."""
        return self.best(self.committed, self.near(), 1)

    def __call__(self, rows: int) -> int:
        if rows <= 1:
            return self.alone
        if rows not in self.found:
            fewer = {count: tau for count, tau in self.committed.items() if count <= self.alone}
            self.found[rows] = self.best(fewer, self.far(), rows)
        return self.found[rows]

    @staticmethod
    def best(committed: Mapping[int, float], seconds: Mapping[int, float], rows: int) -> int:
        costs = {count: interpolated(seconds, rows * (count + 1) - 1) for count in committed}
        return best_nodes(committed, costs)


def interpolated(seconds: Mapping[int, float], nodes: int) -> float:
    """t(nodes) on the line between the two that were measured next to it, or on the last line."""
    known = sorted(seconds)
    after = min(max(1, bisect(known, nodes)), len(known) - 1)
    left, right = known[after - 1], known[after]
    return seconds[left] + (seconds[right] - seconds[left]) * (nodes - left) / (right - left)


def expected(shares: Sequence[Sequence[float]], longest: int, most: int) -> dict[int, float]:
    """τ by nodes, up to `most`, of trees that hold the likeliest paths (`plans.Static`)."""
    plan = Static(longest, most, tuple(map(tuple, shares)))
    taus, tau = {}, 1.0
    for nodes, chance in enumerate(chances(plan), start=1):
        tau += chance
        taus[nodes] = tau
    return taus


SPREADS = tuple(0.2 * 1.2**step for step in range(20))


def best_spread(p: Tensor, q: Tensor, seed: int = 0) -> float:
    """The scale of a drafter's logit error: `softmax((log q + g) / spread)` best tells which id the target chooses.

    p and q: log laws `[M, V]` of target and drafter at the same places, drawn from with the same noise.
    """
    scores, chosen = contested(p, q, seed)
    said = {spread: (scores / spread).log_softmax(-1).gather(1, chosen).mean().item() for spread in SPREADS}
    return max(said, key=said.__getitem__)


def best_shares(p: Tensor, q: Tensor, place: Tensor, ranks: int = 8, seed: int = 0) -> list[list[float]]:
    """How often the target's choice has rank r among a drafter's candidates, by place: `Static.shares`.

    p and q as above; place: `[M]` which of the drafter's places each q is.
    """
    scores, chosen = contested(p, q, seed)
    rank = (scores > scores.gather(-1, chosen)).sum(-1)
    found = [rank[place == index] for index in range(int(place.max()) + 1)]
    shares = [row.bincount(minlength=ranks)[:ranks] / max(1, len(row)) for row in found]
    return [row.cummin(0).values.tolist() for row in shares]  # what a few samples raise by chance does not rise


def contested(p: Tensor, q: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """log q + g `[M, V]`, and what the target chooses with the same g, `[M, 1]`."""
    places = torch.arange(len(p), device=p.device)
    keys = row_keys(*torch.tensor([[seed], [0]], device=p.device))
    noise = gumbel(keys, places[None], p.shape[1])[0]
    return q.clamp(min=-100) + noise, (p + noise).argmax(-1, keepdim=True)
