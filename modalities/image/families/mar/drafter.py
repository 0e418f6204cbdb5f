"""Drafter of MAR: a cheaper model that drafts sets one after the other, each knowing those before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from polydraft.core.continuous.denoising import SampledTrajectory
from polydraft.core.draft import Draft, max_without_sync
from polydraft.core.drafters.base import StatelessDrafter
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.noise import Noise
from polydraft.core.target.state import BatchState
from polydraft.modalities.image.families.mar.network import MAR
from polydraft.modalities.image.families.mar.sampler import SetSampler
from polydraft.modalities.image.families.mar.target import MARTarget, predict_hidden_states, with_drafted_sets


@dataclass
class SetDrafter(StatelessDrafter):
    """Drafter of `depth` sets per pass.

    Its denoising chains are coupled to the target's step by step, so it takes as many steps and saves only blocks.
    """

    model: MAR
    sampler: SetSampler
    branches: int
    depth: int

    @staticmethod
    def from_model(model: MAR, target: MARTarget, depth: int) -> SetDrafter:
        """Build the drafter of a model.

        Raises:
            UnsupportedMethod: the model has other tokens than the target.
        """
        token_shapes = [
            (each.config.side, each.config.token_dim, each.config.classes) for each in (target.model, model)
        ]
        if token_shapes[0] != token_shapes[1]:
            raise UnsupportedMethod(
                f"the drafter generates images of another kind than the target ({token_shapes[1]} and "
                f"{token_shapes[0]}: tokens a side, numbers a token, "
                "classes); use a MAR that was trained on the same tokens."
            )
        sampler = replace(target.sampler, chain=target.chain.with_network(model.net))
        return SetDrafter(model, sampler, target.num_branches, depth)

    def draft(self, state: BatchState, drafter_state: Any, sampler: Any, noise: Noise) -> Draft:
        """Draft up to the last set but one, which the target samples in any case."""
        num_left = max_without_sync(state.max_new_tokens - state.num_generated, self.depth + 1)
        tokens, walks = state.tokens[:, :0], []
        for offset in range(min(self.depth, num_left - 1)):
            t = state.num_generated[:, None] + offset
            hidden = predict_hidden_states(self.model, state, with_drafted_sets(state, tokens), t, self.branches)
            distribution = self.sampler.at(hidden, state.sampling_tensors, t)
            walks.append(distribution.sample_trajectory(distribution.draw_normals(noise)))
            tokens = torch.cat([tokens, walks[-1].latents], 1)
        if not walks:
            return Draft.empty(tokens)
        return Draft.from_chain(tokens, drafter_passes=len(walks), q=SampledTrajectory.concatenate(walks))


def truncated_model(target: MARTarget, layers: int) -> MAR:
    """Return the target with `layers` of its blocks, or all but one if it has no more."""
    return target.model.with_fewer_blocks(min(layers, max(1, target.model.config.depth - 1)))
