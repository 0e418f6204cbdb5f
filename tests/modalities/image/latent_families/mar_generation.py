"""MARs in the decoding loop: images of many seeds, drafted or not, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.decode import Batch, Method, StepResult, decode, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.image.families.mar.drafter import SetDrafter
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.masking import MaskingSchedule, generation_order, schedule_positions
from polydraft.modalities.image.families.mar.network import MAR
from polydraft.modalities.image.families.mar.sampler import SetSampler
from polydraft.modalities.image.families.mar.target import MARTarget


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of image generation."""

    iterations: int = 3  # sets
    steps: int = 4  # of a denoising chain
    scale: float = 1.8  # of guidance; 1 is none
    temperature: float = 1.0
    noisy_end: bool = True

    def target(self, model: MAR) -> MARTarget:
        sets = MaskingSchedule.for_length(model.config.num_tokens, self.iterations)
        sampler = SetSampler(SetChain(model.net, sets.max_set_size, self.steps, self.noisy_end), sets)
        return MARTarget(model, sampler, guided=self.scale != 1)

    def method(self, model: MAR, drafter: MAR | None = None, depth: int = 2, verifier: Any = None) -> Method:
        """Return plain decoding unless there is a drafter."""
        target = self.target(model)
        if drafter is None:
            return Method("ar", target, NoDrafter(), SharedNoiseVerifier(), target.sampler)  # type: ignore[arg-type]
        made = SetDrafter.from_model(drafter, target, depth)
        return Method("drafted", target, made, verifier or CoupledVerifier(), target.sampler)  # type: ignore[arg-type]

    def prompts(self, labels: list[int], seeds: list[int]) -> list[PromptInputs]:
        sampling = SamplingParams(self.temperature, guidance_scale=self.scale)
        return [
            PromptInputs(((label,),), self.iterations, seed, sampling_params=sampling)
            for label, seed in zip(labels, seeds, strict=True)
        ]


@dataclass(frozen=True)
class GeneratedSets:
    """Generated tokens and the steps of the loop."""

    tokens: Tensor  # [B, T, C] in image order
    steps: list[StepResult]  # of the loop
    batch: Batch


def draw(method: Method, prompts: list[PromptInputs]) -> GeneratedSets:
    target: Any = method.target
    batch = start_batch(method, prompts)
    steps = list(decode(method, batch))
    places = torch.stack(
        [target.masking.token_indices(generation_order(prompt.seed, target.masking.num_tokens)) for prompt in prompts]
    )
    sets = torch.stack(batch.outputs())
    tokens = sets.view(len(sets), -1, target.chain.token_dim)
    where = schedule_positions(places, target.masking.num_tokens)
    return GeneratedSets(tokens.gather(1, where[..., None].expand(-1, -1, tokens.shape[2])), steps, batch)
