"""What is fitted: how much to draft, to the machine; how far to trust a drafter, to the drafter."""

from __future__ import annotations

import statistics
import time
from bisect import bisect
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


@torch.inference_mode()
def pass_seconds(
    target: CausalTarget, prompts: list[Prompt], nodes: Sequence[int], repeats: int = 3
) -> dict[int, float]:
    """t(N): median wall time of a target pass over root and N drafted nodes, by N."""
    state = target.empty()
    target.prefill(state, prompts)
    seconds: dict[int, list[float]] = {count: [] for count in nodes}
    for repeat in range(repeats + 1):
        for count in nodes:
            draft = Draft.of_chain(side_by_side(target.some(count), len(prompts)))
            start = time.perf_counter()
            target.score(state, draft).outputs.sum().item()  # waits for the device
            if repeat:  # the first round warms up
                seconds[count].append(time.perf_counter() - start)
    return {count: statistics.median(times) for count, times in seconds.items()}


ALIKE = 0.95  # of the best rate: less cannot be told from noise, and of equals the shorter window wastes less


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
