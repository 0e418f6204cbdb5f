"""Target and drafters of latents of known distribution: the next latent is normal around a map of the last one.

result = generate_latents(MapTarget(LinearChain()), drafter, verifier)      # [runs, LENGTH, C]
joint_pvalue(standardised_residuals(result.latents, LinearChain()))         # of independent standard normals
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydraft.core.continuous.denoising import FixedNoiseChain, LatentSampler
from polydraft.core.continuous.drafters import LatentChainDrafter
from polydraft.core.continuous.target import LatentPrefill, empty_latents
from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.draft import Draft
from polydraft.core.drafters.network.state import DrafterNetwork
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.target.causal import PrefillOutput, PromptInputs, TargetOutput
from polydraft.core.target.state import BatchState

from ..tables import NoCache, TableFrontier

LENGTH, RUNS = 4, 25_000
LEVELS = (3.0, 1.6, 0.9, 0.5, 0.3)  # noise of the states of a chain
HEATS = (1.0, 0.6)  # temperatures of the rows in turn


@dataclass(frozen=True)
class LinearChain(FixedNoiseChain):
    """Chain whose means are linear in x, so that its end is normal; `shift` is what drafts do not know of the map."""

    latent_size: int = 2
    shift: float = 0.0
    levels: Sequence[float] = LEVELS

    @property
    def init_std(self) -> float:
        return (1 + self.levels[0] ** 2) ** 0.5

    @property
    def shrinks(self) -> list[float]:
        """Factor of x that remains after every step."""
        return [(after / before) ** 2 for before, after in zip(self.levels, self.levels[1:], strict=False)]

    @property
    def step_stds(self) -> list[float]:  # type: ignore[override]
        return [after * (1 - shrink) ** 0.5 for after, shrink in zip(self.levels[1:], self.shrinks, strict=True)]

    def condition(self, hidden: Tensor) -> Tensor:
        """Return the map `[..., C]`: every coordinate depends on all of the last latent."""
        turned = hidden + hidden.flip(-1) / 2
        return 1.5 * (turned + torch.arange(self.latent_size, device=hidden.device)).sin() + self.shift

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        return condition[:, 0] + self.shrinks[step] * (x - condition[:, 0])

    def end(self, before: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and std of the latent after `before` `[..., C]`, for temperatures `heat` `[...]`."""
        mean, variance = torch.zeros_like(before), torch.full_like(heat, self.init_std**2)
        for shrink, deviation in zip(self.shrinks, self.step_stds, strict=True):
            mean = self.condition(before) * (1 - shrink) + shrink * mean
            variance = shrink**2 * variance + (heat * deviation) ** 2
        return mean, variance.sqrt()


@dataclass(frozen=True)
class NonlinearChain(LinearChain):
    """Chain whose means are not linear in x, so that its end is not normal."""

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        denoised = condition[:, 0] + 2.0 * torch.tanh(3 * x)
        return denoised + self.shrinks[step] * (x - denoised)


@dataclass(frozen=True)
class NoiselessEnd(LinearChain):
    """Linear chain whose last step has no noise."""

    @property
    def step_stds(self) -> list[float]:  # type: ignore[override]
        return [*super().step_stds[:-1], 0.0]


@dataclass
class MapTarget:
    """Target whose hidden states are the last latents; before the first one they are zeros."""

    chain: LinearChain
    num_branches: int = 1
    vocab_size: int = 1
    context_len: int = 64

    device = torch.device("cpu")

    def hidden(self, tokens: Tensor) -> Tensor:
        return tokens.nan_to_num()

    def empty_state(self) -> BatchState:
        none = torch.zeros(0, dtype=torch.long)
        return BatchState(
            empty_latents(0, 16, self.chain.latent_size, self.device), none, none, none, none[:, None],
            SamplingTensors.from_params([], "cpu"), [], NoCache(),  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, state: BatchState, prompts: list[PromptInputs]) -> PrefillOutput:
        rows, size = len(prompts), self.chain.latent_size
        two = torch.full((rows,), 2)
        settings = SamplingTensors.from_params([prompt.sampling_params for prompt in prompts], "cpu")
        budget = torch.tensor([prompt.max_new_tokens for prompt in prompts])
        tokens = empty_latents(rows, 16, size, self.device)
        state.append_rows(BatchState(tokens, two, two * 0, budget, two[:, None], settings, [2] * rows, state.cache))
        return LatentPrefill(two[:, None].expand(-1, 2), two[:, None], torch.zeros(rows, 1, 2, size), latent_size=size)

    def score(self, state: BatchState, draft: Draft) -> TargetOutput:
        hidden = self.hidden(torch.cat([state.root_tokens(), draft.tokens], 1))
        return TargetOutput(hidden[:, :, None], hidden[:, None])

    def commit(self, state: BatchState, draft: Draft, result: Any) -> None:
        state.append(result.tokens, result.num_committed)


class MapDecoder:
    """Decoder whose hidden states are its inputs."""

    position_ids_fn = None
    context_len = 64

    def tree_frontier(self, cache: NoCache, cached: Tensor, nodes: int) -> TableFrontier:
        return TableFrontier(cached)

    def forward_level(self, cache: NoCache, inputs: Tensor, level: TableFrontier) -> Tensor:
        return inputs

    def create_cache(self, branches: int) -> NoCache:
        return NoCache()

    def prefill(self, cache: NoCache, inputs: Tensor, rows: slice) -> None:
        return None

    def forward_tree(self, cache: NoCache, inputs: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor) -> Tensor:
        return inputs


class MapDrafterNetwork(DrafterNetwork):
    def embed_inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.target.hidden(tokens)  # type: ignore[attr-defined]

    def prompt_inputs(self, seen: PrefillOutput) -> tuple[Tensor, Tensor]:
        return seen.ids, seen.branch_lens - 1


def chain_drafter(target: MapTarget, chain: LinearChain, depth: int = 3) -> LatentChainDrafter:
    """Return a drafter that applies `chain` to the target's own hidden states."""
    return LatentChainDrafter(MapDrafterNetwork(MapDecoder(), target), LatentSampler(chain), depth)  # type: ignore[arg-type]


def seeded_prompts(runs: int) -> list[PromptInputs]:
    """Return prompts with seeds 0, 1, … and temperatures in turn."""
    sampled = [SamplingParams(temperature=heat) for heat in HEATS]
    return [PromptInputs(((0, 0),), LENGTH, seed, sampling_params=sampled[seed % len(HEATS)]) for seed in range(runs)]


@dataclass(frozen=True)
class GeneratedLatents:
    """Generated latents of many runs."""

    latents: Tensor  # [runs, LENGTH, C]
    tau: float  # mean number of latents a pass


def generate_latents(target: MapTarget, drafter: Any, verifier: Any, runs: int = RUNS) -> GeneratedLatents:
    """Return the latents of `runs` seeds."""
    method = Method("tested", target, drafter, verifier, LatentSampler(target.chain))  # type: ignore[arg-type]
    batch = start_batch(method, seeded_prompts(runs))
    for _ in decode(method, batch):
        pass
    passes = sum(row.target_passes for row in batch.stats.values())
    return GeneratedLatents(torch.stack(batch.outputs()), runs * LENGTH / passes)


def standardised_residuals(latents: Tensor, chain: LinearChain) -> Tensor:
    """Return standardised latents `[runs, LENGTH, C]`, which are independent standard normals."""
    before = torch.cat([torch.zeros_like(latents[:, :1]), latents[:, :-1]], 1).double()
    heat = torch.tensor(HEATS).double().repeat(-(-len(latents) // len(HEATS)))[: len(latents), None]
    mean, deviation = chain.end(before, heat)
    return (latents.double() - mean) / deviation[..., None]
