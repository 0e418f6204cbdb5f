"""MARs on the loop: pictures of many seeds, drafted or not, place by place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydraft.core.decode import Batch, Method, Step, decode, start
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.core.verify.tape import TapeVerifier
from polydraft.modalities.image.families.mar.drafter import SetDrafter
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.law import SetSampler
from polydraft.modalities.image.families.mar.network import MAR
from polydraft.modalities.image.families.mar.sets import Sets, order, standing
from polydraft.modalities.image.families.mar.target import MARTarget


@dataclass(frozen=True)
class Form:
    """How pictures are drawn. iterations: sets; steps: of a chain; scale: guidance, 1 is none."""

    iterations: int = 3
    steps: int = 4
    scale: float = 1.8
    temperature: float = 1.0
    noisy_end: bool = True

    def target(self, model: MAR) -> MARTarget:
        sets = Sets.of(model.config.length, self.iterations)
        sampler = SetSampler(SetChain(model.net, sets.widest, self.steps, self.noisy_end), sets)
        return MARTarget(model, sampler, guided=self.scale != 1)

    def method(self, model: MAR, drafter: MAR | None = None, depth: int = 2, verifier: Any = None) -> Method:
        """Plain drawing unless there is a drafter."""
        target = self.target(model)
        if drafter is None:
            return Method("ar", target, NoDrafter(), TapeVerifier(), target.sampler)  # type: ignore[arg-type]
        made = SetDrafter.of(drafter, target, depth)
        return Method("drafted", target, made, verifier or CoupledVerifier(), target.sampler)  # type: ignore[arg-type]

    def prompts(self, labels: list[int], seeds: list[int]) -> list[Prompt]:
        sampling = Sampling(self.temperature, guidance_scale=self.scale)
        return [
            Prompt(((label,),), self.iterations, seed, sampling=sampling)
            for label, seed in zip(labels, seeds, strict=True)
        ]


@dataclass(frozen=True)
class Drawn:
    """tokens: `[B, T, C]`, place by place. steps: of the loop."""

    tokens: Tensor
    steps: list[Step]
    batch: Batch


def draw(method: Method, prompts: list[Prompt]) -> Drawn:
    target: Any = method.target
    batch = start(method, prompts)
    steps = list(decode(method, batch))
    places = torch.stack([target.sets.places(order(prompt.seed, target.sets.length)) for prompt in prompts])
    sets = torch.stack(batch.outputs())
    tokens = sets.view(len(sets), -1, target.chain.token)
    where = standing(places, target.sets.length)
    return Drawn(tokens.gather(1, where[..., None].expand(-1, -1, tokens.shape[2])), steps, batch)
