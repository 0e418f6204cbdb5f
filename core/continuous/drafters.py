"""Drafters of latents: draft chains that a small network generates, and initial latents of Jacobi windows.

A network that drafts ids (`core.drafters.network.state`) also drafts latents: its hidden states condition a denoising
chain instead of giving logits. With shared noise a latent is sampled with the noise of its position, so that it is what
the target will sample where their means are close. Otherwise the denoising trajectory of every latent is part of the
draft, and the coupled verifier follows it.
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
from polydraft.core.drafters.base import Drafter, DraftOutcome, MissedTokens
from polydraft.core.drafters.jacobi.window import sample_ahead
from polydraft.core.drafters.network.state import DrafterCacheState, DrafterNetwork
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.noise import Noise
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class LatentChainDrafter(Drafter):
    """Drafter that generates a chain of `depth` latents per target pass, one after the other."""

    network: DrafterNetwork  # predicts the hidden states that condition the denoising chain
    sampler: LatentSampler  # samples draft latents given these hidden states
    depth: int  # number of draft latents
    follows_hidden_states = True

    def __post_init__(self) -> None:
        """Raise UnsupportedMethod if the drafter's denoising noise differs from the target's.

        Latents of both chains can be equal only if all their denoising steps have the same standard deviations.
        """
        owners: Any = (self.sampler, self.network.target)  # of the denoising chains to compare
        draft_noise, target_noise = (
            (chain.latent_size, chain.init_std, *chain.step_stds) for chain in (owner.chain for owner in owners)
        )
        if draft_noise != target_noise:
            raise UnsupportedMethod(
                "this drafter's chain has other noise than its target's, and its drafts would hardly ever be kept; use "
                "a drafter with the target's coordinates and levels of noise."
            )

    def begin(self, drafter_state: DrafterCacheState | None, prompts: PrefillOutput) -> DrafterCacheState:
        """Run the network over new prompts and append rows for them to the drafter's state (None: create it)."""
        cache, num_cached = self.network.prefill(None if drafter_state is None else drafter_state.cache, prompts)
        return DrafterCacheState.with_prompts(drafter_state, cache, num_cached, prompts)

    def observe(self, state: BatchState, drafter_state: DrafterCacheState, outcome: DraftOutcome) -> None:
        """Store the committed latents and the target's hidden states, which the next draft processes first."""
        drafter_state.observe(outcome)

    def catch_up(self, state: BatchState, drafter_state: DrafterCacheState, missed: MissedTokens) -> None:
        """Store the missed latents, which the next draft processes first."""
        drafter_state.catch_up(missed)

    def draft(self, state: BatchState, drafter_state: DrafterCacheState, sampler: Any, noise: Noise) -> Draft:
        """Return a chain of `depth` latents after every root, shorter where the network runs out of positions.

        Args:
            state (BatchState): Committed state of the target, B sequences.
            drafter_state (DrafterCacheState): KV cache of the network, and committed latents it has not processed.
            sampler (Any): The target's sampler; not used, since the drafter has its own.
            noise (Noise): Noise of the batch; with shared noise the draft needs no trajectories.
        """
        max_depth = self.network.depth_within_context(drafter_state)  # [B], or None if there is no limit
        if max_depth is not None and all_equal_without_sync(max_depth <= 0):
            return Draft.empty(drafter_state.new_tokens)  # the network has no positions left in any sequence
        # accepted latents that the network has not processed yet; cut to the longest row where that needs no sync
        num_new = max_without_sync(drafter_state.num_new, drafter_state.new_tokens.shape[1])
        new_tokens, new_hidden = drafter_state.new_tokens[:, :num_new], drafter_state.new_hidden_states[:, :, :num_new]
        # outputs after the last of these latents; `max_nodes`: KV entries to reserve for the draft
        outputs = self.network.forward_committed(state, drafter_state, new_tokens, new_hidden, max_nodes=self.depth)
        # [B, 1] zeros: in a chain the parent of a node is the one node of the level before
        parent_index = torch.zeros_like(drafter_state.num_new)[:, None]
        latents: list[Tensor] = []
        trajectories: list[SampledTrajectory] = []
        for level in range(self.depth):
            if latents:
                outputs = self.network.forward_children(outputs, drafter_state, latents[-1], parent_index)
            # [B*R, 1, D] to [B, 1, R, D], R guidance branches
            hidden_states = outputs.hidden_states.unflatten(0, (len(state), -1)).transpose(1, 2)
            distribution = self.sampler(hidden_states, state.sampling_tensors)
            if noise.uses_shared_noise:
                positions = state.num_generated[:, None] + level  # [B, 1] of the draft latents of this level
                latents.append(distribution.sample(noise.at_positions(positions)))
            else:
                trajectories.append(distribution.sample_trajectory(distribution.draw_normals(noise)))
                latents.append(trajectories[-1].latents)
        q = None if noise.uses_shared_noise else SampledTrajectory.concatenate(trajectories)
        # latents beyond the network's positions are not part of the draft
        valid = None if max_depth is None else cached_arange(self.depth, max_depth.device) < max_depth[:, None]
        return Draft.from_chain(torch.cat(latents, 1), valid, drafter_passes=self.depth, q=q)


class LatentLMDrafterNetwork(DrafterNetwork):
    """Independent draft model of latents: a small backbone with its own embeddings and its own denoising head."""

    def __init__(self, model: PreTrainedModel, head: DenoisingHead, target: LatentTarget) -> None:
        use_cfg = target.num_branches > 1
        # wraps the draft model as a target of latents, which provides its backbone and its embeddings
        self.draft_target: LatentTarget = LatentTarget(model, head, begin=target.begin_id, guided=use_cfg)
        if self.draft_target.num_token_ids < target.num_token_ids:  # it could not embed all prompt ids
            raise UnsupportedMethod(
                f"this drafter reads prompts of {self.draft_target.num_token_ids} ids and its target writes "
                f"{target.num_token_ids}; use a drafter with the target's words."
            )
        super().__init__(self.draft_target.network, target)

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return embeddings `[B*R, N, D]` of latents `[B, N, C]` or ids `[B, N]`.

        Of the target's hidden states `[B, R, N, …]` only the number of guidance branches R is used.
        """
        return self.draft_target.embed(tokens).repeat_interleave(hidden_states.shape[1], 0)

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return prompt ids `[B*R, L]`, and the KV entries to keep `[B, R]`: all but the root, the last prompt id."""
        return prompts.ids, prompts.branch_lens - 1


@dataclass
class PreviousLatentFiller:
    """Initializer of Jacobi windows of latents: samples new positions from the distribution after the last guess."""

    size: int  # number of coordinates of a latent
    head_steps: int = 1  # diffusion steps at which the head is evaluated

    def empty_window(self, prompts: PrefillOutput, window: int) -> tuple[Tensor, Tensor]:
        """Return placeholders for sequences without a target pass so far.

        Returns:
            tuple[Tensor, Tensor]: guesses [B, window, C] of C coordinates, all NaN, and hidden states [B, R, D] of R
                guidance branches, all zero.
        """
        hidden_states = prompts.hidden_states
        batch_rows, branches, _, hidden_size = hidden_states.shape
        latents = empty_latents(batch_rows, window, self.size, hidden_states.device)
        return latents, hidden_states.new_zeros(batch_rows, branches, hidden_size)

    def fill_window(
        self, state: BatchState, guesses: Tensor, num_scored: Tensor, last_logits: Tensor, sampler: LatentSampler,
        noise: Noise,
    ) -> Tensor:  # fmt: skip
        """Return an initial latent for every position of the window, `[B, W, C]`, C coordinates each.

        All are sampled from the next-latent distribution after the last scored guess, each with the noise of its
        position. The caller uses them where no pass has made a guess.

        Args:
            state (BatchState): Committed state of the target.
            guesses (Tensor): [B, W, C] guesses of the last pass; only their number W is used.
            num_scored (Tensor): [B, 1] how many of them the last pass scored; not used.
            last_logits (Tensor): [B, R, D] hidden states of R guidance branches after the last scored guess.
            sampler (LatentSampler): The target's sampler.
            noise (Noise): Noise of the batch.
        """
        sparse_sampler = replace(sampler, head_steps=self.head_steps)  # initial guesses need not be exact
        return sample_ahead(last_logits, sparse_sampler, state, guesses.shape[1], noise)
