"""A target and drafters of latents whose law is known: the next one is normal around a map of the last one.

made = drawn(MapTarget(Line()), drafter, verifier)      # [runs, LENGTH, C]
joint(residuals(made, Line()))                          # of independent standard normals
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydraft.core.decode import Method, decode, start
from polydraft.core.draft import Draft
from polydraft.core.drafters.network.reading import NetworkReader
from polydraft.core.latent.drafters import LatentChainDrafter
from polydraft.core.latent.law import FixedNoise, LatentSampler
from polydraft.core.latent.target import LatentPrefill, nothing
from polydraft.core.law.sampling import Sampling, Settings
from polydraft.core.state import State
from polydraft.core.target import Prefill, Prompt, Scores

from ..tables import Deeper, NoCache

LENGTH, RUNS = 4, 25_000
LEVELS = (3.0, 1.6, 0.9, 0.5, 0.3)  # noise of the states of a chain
HEATS = (1.0, 0.6)  # temperatures of the rows in turn


@dataclass(frozen=True)
class Line(FixedNoise):
    """A chain whose means are straight in x, so that its end is normal. shift: what drafts do not know of the map."""

    size: int = 2
    shift: float = 0.0
    levels: Sequence[float] = LEVELS

    @property
    def start(self) -> float:
        return (1 + self.levels[0] ** 2) ** 0.5

    @property
    def shrinks(self) -> list[float]:
        """How much of x is left after every step."""
        return [(after / before) ** 2 for before, after in zip(self.levels, self.levels[1:], strict=False)]

    @property
    def deviations(self) -> list[float]:  # type: ignore[override]
        return [after * (1 - shrink) ** 0.5 for after, shrink in zip(self.levels[1:], self.shrinks, strict=True)]

    def condition(self, hidden: Tensor) -> Tensor:
        """The map: every coordinate depends on all of the last latent, `[..., C]`."""
        turned = hidden + hidden.flip(-1) / 2
        return 1.5 * (turned + torch.arange(self.size, device=hidden.device)).sin() + self.shift

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        return condition[:, 0] + self.shrinks[step] * (x - condition[:, 0])

    def end(self, before: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the latent after `before` `[..., C]`, of rows of temperature `heat` `[...]`."""
        mean, variance = torch.zeros_like(before), torch.full_like(heat, self.start**2)
        for shrink, deviation in zip(self.shrinks, self.deviations, strict=True):
            mean = self.condition(before) * (1 - shrink) + shrink * mean
            variance = shrink**2 * variance + (heat * deviation) ** 2
        return mean, variance.sqrt()


@dataclass(frozen=True)
class Bent(Line):
    """The same, whose means are not straight in x, so that its end is not normal."""

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        denoised = condition[:, 0] + 2.0 * torch.tanh(3 * x)
        return denoised + self.shrinks[step] * (x - denoised)


@dataclass(frozen=True)
class Still(Line):
    """The same, whose last step has no noise."""

    @property
    def deviations(self) -> list[float]:  # type: ignore[override]
        return [*super().deviations[:-1], 0.0]


@dataclass
class MapTarget:
    """Its hidden states are the last latents; before the first one they are zeros."""

    chain: Line
    branches: int = 1
    vocab: int = 1
    context: int = 64

    device = torch.device("cpu")

    def hidden(self, tokens: Tensor) -> Tensor:
        return tokens.nan_to_num()

    def empty(self) -> State:
        none = torch.zeros(0, dtype=torch.long)
        return State(
            nothing(0, 16, self.chain.size, self.device), none, none, none, none[:, None], Settings.of([], "cpu"), [],
            NoCache(),  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, state: State, prompts: list[Prompt]) -> Prefill:
        rows, size = len(prompts), self.chain.size
        two = torch.full((rows,), 2)
        settings = Settings.of([prompt.sampling for prompt in prompts], "cpu")
        budget = torch.tensor([prompt.budget for prompt in prompts])
        tokens = nothing(rows, 16, size, self.device)
        state.extend(State(tokens, two, two * 0, budget, two[:, None], settings, [2] * rows, state.cache))
        return LatentPrefill(two[:, None].expand(-1, 2), two[:, None], torch.zeros(rows, 1, 2, size), size=size)

    def score(self, state: State, draft: Draft) -> Scores:
        hidden = self.hidden(torch.cat([state.roots(), draft.tokens], 1))
        return Scores(hidden[:, :, None], hidden[:, None])

    def commit(self, state: State, draft: Draft, verdict: Any) -> None:
        state.append(verdict.tokens, verdict.counts)


class MapNetwork:
    """Says the latents that it reads."""

    coordinates = None
    context = 64

    def frontier(self, cache: NoCache, cached: Tensor, nodes: int) -> Deeper:
        return Deeper(cached)

    def level_pass(self, cache: NoCache, inputs: Tensor, level: Deeper) -> Tensor:
        return inputs

    def cache(self, branches: int) -> NoCache:
        return NoCache()

    def prefill(self, cache: NoCache, inputs: Tensor, rows: slice) -> None:
        return None

    def tree_pass(self, cache: NoCache, inputs: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor) -> Tensor:
        return inputs


class MapReader(NetworkReader):
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.target.hidden(tokens)  # type: ignore[attr-defined]

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        return seen.ids, seen.lengths - 1


def reader(target: MapTarget, chain: Line, depth: int = 3) -> LatentChainDrafter:
    """Drafts what `chain` says of the target's own hidden states."""
    return LatentChainDrafter(MapReader(MapNetwork(), target), LatentSampler(chain), depth)  # type: ignore[arg-type]


def asked(runs: int) -> list[Prompt]:
    """Rows of seeds 0, 1, … and temperatures in turn."""
    sampled = [Sampling(temperature=heat) for heat in HEATS]
    return [Prompt(((0, 0),), LENGTH, seed, sampling=sampled[seed % len(HEATS)]) for seed in range(runs)]


@dataclass(frozen=True)
class Made:
    """latents: `[runs, LENGTH, C]`; tau: mean latents a pass."""

    latents: Tensor
    tau: float


def drawn(target: MapTarget, drafter: Any, verifier: Any, runs: int = RUNS) -> Made:
    """What the method says, for so many seeds."""
    method = Method("tested", target, drafter, verifier, LatentSampler(target.chain))  # type: ignore[arg-type]
    batch = start(method, asked(runs))
    for _ in decode(method, batch):
        pass
    passes = sum(row.target_passes for row in batch.stats.values())
    return Made(torch.stack(batch.outputs()), runs * LENGTH / passes)


def residuals(latents: Tensor, chain: Line) -> Tensor:
    """What is left of latents `[runs, LENGTH, C]` once their law is taken out: independent standard normals."""
    before = torch.cat([torch.zeros_like(latents[:, :1]), latents[:, :-1]], 1).double()
    heat = torch.tensor(HEATS).double().repeat(-(-len(latents) // len(HEATS)))[: len(latents), None]
    mean, deviation = chain.end(before, heat)
    return (latents.double() - mean) / deviation[..., None]
