"""Speculative Jacobi decoding as published: guesses keep the distribution they were drawn from, for a ratio test.

Every pass draws the guesses after the accepted run anew (Teng et al. 2024, arXiv 2410.01699, section 4.1), or keeps
each with probability min(1, p/q) and otherwise draws from the residual of p over q, a maximal coupling of two passes.
A guess that is kept is then a draw from p, so p is the distribution it is tested with next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome, extend_state
from polydraft.core.drafters.jacobi.window import WindowDrafter, WindowInitializer
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather
from polydraft.core.verifiers.rules import RatioRule, gather_last, residual_distribution, sample_with_gumbel

REFRESHES = ("independent", "maximal")


@dataclass
class SJDState(BatchedState):
    """Guesses of the last pass for the positions after the root, with their distributions."""

    ids: Tensor  # [B, W] guesses, -1 at the last known position, for which there was no guess
    num_known: Tensor  # [B, 1] positions that the last pass scored; they come first
    proposal_log_probs: Tensor  # [B, W, V] distributions that the guesses were drawn from
    target_log_probs: Tensor  # [B, W, V] target distributions of the last pass at these positions
    last_log_probs: Tensor  # [B, V] target distribution after the last guess


@dataclass
class SJDDrafter(WindowDrafter[WindowInitializer]):
    """Speculative Jacobi decoding: guesses are drawn from target distributions of the last pass and ratio-tested."""

    refresh: str = "independent"  # how guesses that were not reached follow their new distributions, see REFRESHES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh not in REFRESHES:
            meant = did_you_mean(self.refresh, REFRESHES)
            raise InvalidArgument(
                f"refresh={self.refresh!r} is unknown{meant}; it must be one of {', '.join(REFRESHES)}."
            )

    def begin(self, drafter_state: SJDState | None, prompts: PrefillOutput) -> SJDState:
        rows = len(prompts.branch_lens)
        zeros = torch.zeros(rows, 1, dtype=torch.long, device=prompts.branch_lens.device)
        uniform = self.initializer.uniform_log_probs.repeat(rows, self.window, 1)
        new = SJDState(zeros.repeat(1, self.window) - 1, zeros, uniform, uniform.clone(), uniform[:, 0].clone())
        return extend_state(drafter_state, new)

    def draft(self, state: BatchState, drafter_state: SJDState, sampler: Sampler, noise: Noise) -> Draft:
        """Return refreshed guesses, then initial ones where no pass has scored."""
        guesses, last_log_probs = self.refresh_guesses(drafter_state, noise), drafter_state.last_log_probs
        num_known = drafter_state.num_known
        is_new = torch.arange(self.window, device=guesses.device) >= num_known
        filled = self.initializer.fill_window(state, guesses, num_known, last_log_probs, sampler, noise)
        ids = torch.where(is_new, filled, guesses)
        initial_log_probs = self.initializer.log_probs(state, filled, last_log_probs)
        log_probs = torch.where(is_new[..., None], initial_log_probs, drafter_state.target_log_probs)
        if not noise.any_sampled:
            return Draft.from_chain(ids)
        is_valid = gather_last(log_probs, ids) > -torch.inf  # False after a position whose target logits are not finite
        return Draft.from_chain(ids, is_valid, q=torch.nn.functional.pad(log_probs, (0, 0, 0, 1)))

    def refresh_guesses(self, drafter_state: SJDState, noise: Noise) -> Tensor:
        """Return a draw from the new distribution of every position, `[B, W]`, coupled with the old guess or not."""
        p, q = drafter_state.target_log_probs.softmax(-1), drafter_state.proposal_log_probs.softmax(-1)
        greedy = noise.greedy[:, None]
        if self.refresh == "independent":
            return sample_with_gumbel(p, noise.fresh_gumbel(self.window), greedy)
        has_guess = drafter_state.ids >= 0
        old = drafter_state.ids.clamp(min=0)
        kept = has_guess & (noise.fresh_uniforms(self.window) < gather_last(p, old) / gather_last(q, old)) & ~greedy
        residual = torch.where(has_guess[..., None], residual_distribution(RatioRule(), None, p, q, old), p)
        residual = torch.where(greedy[..., None], p, residual)
        return torch.where(kept, old, sample_with_gumbel(residual, noise.fresh_gumbel(self.window), greedy))

    def observe(self, state: BatchState, drafter_state: SJDState, outcome: DraftOutcome) -> None:
        """Shift the window by what was committed, and take over the target distributions after it."""
        draft, log_probs = outcome.draft, outcome.distribution.log_probs
        counts = outcome.verification.num_committed[:, None]
        index = torch.arange(self.window, device=log_probs.device) + counts
        inside = index.clamp(max=self.window - 1)
        drafter_state.ids = torch.where(index < self.window, draft.tokens.gather(1, inside), -1)
        if draft.q is not None:
            drafter_state.proposal_log_probs = batch_gather(draft.q, inside)
        drafter_state.target_log_probs = batch_gather(log_probs, index.clamp(max=self.window))
        drafter_state.num_known = (self.window + 1 - counts).clamp(min=0)
        drafter_state.last_log_probs = log_probs[:, -1]
