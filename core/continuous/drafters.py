"""Drafters of latents: chains of a small network's own latents, and initial latents of Jacobi windows.

A network that drafts ids (`core.drafters.network.state`) also drafts latents: its hidden states condition a denoising
chain instead of giving logits. With shared noise its chain draws with the noise of the position, so that it draws what
the target will draw where their means are close. Otherwise the trajectory of every latent is part of the draft, for the
coupling to follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.batched_state import cached_arange
from polydraft.core.continuous.denoising import LatentSampler, SampledTrajectory
from polydraft.core.continuous.target import DenoisingHead, LatentTarget, empty_latents
from polydraft.core.draft import Draft, all_equal_without_sync, max_without_sync
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.jacobi.window import sample_ahead
from polydraft.core.drafters.network.state import DrafterCacheState, DrafterNetwork
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.noise import Noise
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class LatentChainDrafter:
    """Drafter of chains of `depth` latents a pass; raises UnsupportedMethod if its noise is not the target's."""

    network: DrafterNetwork  # predicts the hidden states that condition the denoising chain
    sampler: LatentSampler
    depth: int

    def __post_init__(self) -> None:
        samplers: Any = (self.sampler, self.network.target)
        drafted, target = (
            (chain.size, chain.init_std, *chain.step_stds) for chain in (sampler.chain for sampler in samplers)
        )
        if drafted != target:
            raise UnsupportedMethod(
                "this drafter's chain has other noise than its target's, and its drafts would hardly ever be kept; use "
                "a drafter with the target's coordinates and levels of noise."
            )

    def begin(self, drafter_state: DrafterCacheState | None, prompts: PrefillOutput) -> DrafterCacheState:
        cache, num_cached = self.network.prefill(None if drafter_state is None else drafter_state.cache, prompts)
        return DrafterCacheState.with_prompts(drafter_state, cache, num_cached, prompts)

    def observe(self, state: BatchState, drafter_state: DrafterCacheState, outcome: DraftOutcome) -> None:
        drafter_state.observe(outcome)

    def draft(self, state: BatchState, drafter_state: DrafterCacheState, sampler: Any, noise: Noise) -> Draft:
        max_depth = self.network.depth_within_context(drafter_state)
        if max_depth is not None and all_equal_without_sync(max_depth <= 0):
            return Draft.empty(drafter_state.new_tokens)
        num_new = max_without_sync(drafter_state.num_new, drafter_state.new_tokens.shape[1])
        new_tokens, new_hidden = drafter_state.new_tokens[:, :num_new], drafter_state.new_hidden_states[:, :, :num_new]
        outputs = self.network.forward_committed(state, drafter_state, new_tokens, new_hidden, self.depth)
        parent_index = torch.zeros_like(drafter_state.num_new)[:, None]  # a chain has one frontier node
        latents: list[Tensor] = []
        trajectories: list[SampledTrajectory] = []
        for level in range(self.depth):
            if latents:
                outputs = self.network.forward_children(outputs, drafter_state, latents[-1], parent_index)
            hidden = outputs.hidden_states.unflatten(0, (len(state), -1)).transpose(1, 2)
            distribution = self.sampler(hidden, state.sampling_tensors)
            if noise.uses_shared_noise:
                positions = state.num_generated[:, None] + level
                latents.append(distribution.sample(noise.at_positions(positions)))
            else:
                trajectories.append(distribution.sample_trajectory(distribution.draw_normals(noise)))
                latents.append(trajectories[-1].latents)
        q = None if noise.uses_shared_noise else SampledTrajectory.concatenate(trajectories)
        valid = None if max_depth is None else cached_arange(self.depth, max_depth.device) < max_depth[:, None]
        return Draft.from_chain(torch.cat(latents, 1), valid, drafter_passes=self.depth, q=q)


class LatentLMDrafterNetwork(DrafterNetwork):
    """Independent small model with a head of its own over a KV cache, for the target's prompts and latents."""

    def __init__(self, model: PreTrainedModel, head: DenoisingHead, target: LatentTarget) -> None:
        use_cfg = target.num_branches > 1
        self.draft_target = LatentTarget(model, head, begin=target.begin, guided=use_cfg)
        if self.draft_target.num_token_ids < target.num_token_ids:
            raise UnsupportedMethod(
                f"this drafter reads prompts of {self.draft_target.num_token_ids} ids and its target writes "
                f"{target.num_token_ids}; use a drafter with the target's words."
            )
        super().__init__(self.draft_target.network, target)

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        return self.draft_target.embed(tokens).repeat_interleave(hidden_states.shape[1], 0)

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        return prompts.ids, prompts.branch_lens - 1


@dataclass
class PreviousLatentFiller:
    """Initializer of Jacobi windows of latents: every position draws from the distribution of the one before."""

    size: int  # number of coordinates of a latent
    head_steps: int = 1  # diffusion steps at which the head is evaluated

    def empty_window(self, prompts: PrefillOutput, window: int) -> tuple[Tensor, Tensor]:
        hidden_states = prompts.hidden_states
        rows, branches, _, width = hidden_states.shape
        latents = empty_latents(rows, window, self.size, hidden_states.device)
        return latents, hidden_states.new_zeros(rows, branches, width)

    def fill_window(
        self, state: BatchState, guesses: Tensor, num_known: Tensor, last_logits: Tensor, sampler: LatentSampler,
        noise: Noise,
    ) -> Tensor:  # fmt: skip
        """Return a latent for every position of the window, `[B, W, C]`.

        `last_logits` are the hidden states after the last known guess, `[B, R, D]`.
        """
        sparse_sampler = replace(sampler, head_steps=self.head_steps)
        return sample_ahead(last_logits, sparse_sampler, state, guesses.shape[1], noise)
