"""Speculative Jacobi decoding as published: guesses keep the distribution they were drawn from, for a ratio test.

Every pass draws the guesses after the accepted ones anew (Teng et al. 2024, arXiv 2410.01699, section 4.1), or keeps
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
from polydraft.core.drafters.base import DraftOutcome, append_drafter_rows
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

    ids: Tensor  # [B, W] guesses, -1 where there was none (the last scored position)
    num_scored: Tensor  # [B, 1] number of window positions that the last pass scored; they come first
    proposal_log_probs: Tensor  # [B, W, V] log q, distributions that the guesses were drawn from
    target_log_probs: Tensor  # [B, W, V] log p, target distributions of the last pass at these positions
    last_log_probs: Tensor  # [B, V] target distribution after the last guess of the last draft


@dataclass
class SJDDrafter(WindowDrafter[WindowInitializer]):
    """Speculative Jacobi decoding: guesses are drawn from target distributions of the last pass and ratio-tested."""

    # How guesses after a rejected one follow their new distributions: "independent" draws all anew, "maximal" keeps as
    # many as a maximal coupling of old and new distribution can.
    refresh: str = "independent"

    def __post_init__(self) -> None:
        """Check the window and `refresh`."""
        super().__post_init__()
        if self.refresh not in REFRESHES:
            meant = did_you_mean(self.refresh, REFRESHES)
            raise InvalidArgument(
                f"refresh={self.refresh!r} is unknown{meant}; it must be one of {', '.join(REFRESHES)}."
            )

    def begin(self, drafter_state: SJDState | None, prompts: PrefillOutput) -> SJDState:
        """Append sequences without guesses to the state, and return it."""
        batch_size = len(prompts.branch_lens)
        zeros = torch.zeros(batch_size, 1, dtype=torch.long, device=prompts.branch_lens.device)
        uniform = self.initializer.uniform_log_probs.repeat(batch_size, self.window, 1)  # over allowed ids
        new = SJDState(
            ids=zeros.repeat(1, self.window) - 1, num_scored=zeros, proposal_log_probs=uniform,
            target_log_probs=uniform.clone(), last_log_probs=uniform[:, 0].clone(),
        )  # fmt: skip
        return append_drafter_rows(drafter_state, new)

    def draft(self, state: BatchState, drafter_state: SJDState, sampler: Sampler, noise: Noise) -> Draft:
        """Return a chain of W guesses, drawn anew where the last pass scored their position, else initial ones.

        `Draft.q` are the log probabilities that the guesses were drawn from, `[B, W + 1, V]`.
        """
        guesses, last_log_probs = self.refresh_guesses(drafter_state, noise), drafter_state.last_log_probs
        num_scored = drafter_state.num_scored
        is_new = torch.arange(self.window, device=guesses.device) >= num_scored
        filled = self.initializer.fill_window(state, guesses, num_scored, last_log_probs, sampler, noise)
        ids = torch.where(is_new, filled, guesses)
        initial_log_probs = self.initializer.log_probs(state, filled, last_log_probs)
        log_probs = torch.where(is_new[..., None], initial_log_probs, drafter_state.target_log_probs)
        if not noise.any_sampled:  # if all rows are greedy, verification compares ids and needs no q
            return Draft.from_chain(ids)
        is_valid = gather_last(log_probs, ids) > -torch.inf  # False where the target's logits were not finite
        # q has an entry for the children of every tree index; zeros are added for the last node, which has none
        return Draft.from_chain(ids, is_valid, q=torch.nn.functional.pad(log_probs, (0, 0, 0, 1)))

    def refresh_guesses(self, drafter_state: SJDState, noise: Noise) -> Tensor:
        """Return a draw from the latest target distribution p of every window position, `[B, W]`.

        With `refresh="independent"` all are drawn anew. With "maximal" a guess from the older distribution q is kept
        with probability min(1, p/q), and otherwise replaced by a draw from the residual norm([p - q]_+), the positive
        part of p - q, normalised. Either way the result is distributed as p. Greedy rows take the argmax of p.
        """
        # both [B, W, V]
        p, q = drafter_state.target_log_probs.softmax(-1), drafter_state.proposal_log_probs.softmax(-1)
        greedy = noise.greedy[:, None]
        if self.refresh == "independent":
            return sample_with_gumbel(p, noise.fresh_gumbel(self.window), greedy)
        has_guess = drafter_state.ids >= 0  # -1: the last scored position had no guess, and is drawn from p
        old_ids = drafter_state.ids.clamp(min=0)
        acceptance = gather_last(p, old_ids) / gather_last(q, old_ids)
        is_kept = has_guess & (noise.fresh_uniforms(self.window) < acceptance) & ~greedy
        # The depth in the draft does not matter: the acceptance probability of `RatioRule`, min(1, p/q), is the same at
        # every depth, so any tensor of the right shape will do.
        after_rejection = residual_distribution(RatioRule(), exact_only=None, p=p, q=q, depth=old_ids)
        probs = torch.where(has_guess[..., None], after_rejection, p)
        probs = torch.where(greedy[..., None], p, probs)
        return torch.where(is_kept, old_ids, sample_with_gumbel(probs, noise.fresh_gumbel(self.window), greedy))

    def observe(self, state: BatchState, drafter_state: SJDState, outcome: DraftOutcome) -> None:
        """Shift the window by the number of committed tokens, and store the target distributions at its positions.

        Node i of the draft was a guess for position i of the old window, which tree index i scored (0 is the root).
        """
        draft, log_probs = outcome.draft, outcome.distribution.log_probs  # [B, W + 1, V] by tree index
        num_committed = outcome.verification.num_committed[:, None]
        index = torch.arange(self.window, device=log_probs.device) + num_committed  # [B, W] new -> old position
        draft_index = index.clamp(max=self.window - 1)
        # old position W was scored by the last node but had no guess, -1; entries past it are copies that are not read,
        # since `num_scored` excludes them
        drafter_state.ids = torch.where(index < self.window, draft.tokens.gather(1, draft_index), -1)
        if draft.q is not None:  # None if all rows are greedy; they do not read it
            drafter_state.proposal_log_probs = batch_gather(draft.q, draft_index)
        drafter_state.target_log_probs = batch_gather(log_probs, index.clamp(max=self.window))
        drafter_state.num_scored = (self.window + 1 - num_committed).clamp(min=0)
        drafter_state.last_log_probs = log_probs[:, -1]
