"""Jacobi decoding with shared noise: the target drafts for itself, without training.

A window of guesses is scored in one pass; the shared noise determines what the target would choose after each guess,
and these choices are the next pass's guesses. Decoding with position-keyed noise is a deterministic map, and this
iterates it towards its fixed point (Song et al. 2021, "Accelerating Feedforward Computation via Parallel Nonlinear
Equation Solving"; for images Teng et al. 2024, "Speculative Jacobi Decoding", arXiv 2410.01699, here with Gumbel
coupling instead of its ratio test).

Positions that no pass has guessed yet are initialised: random: any allowed id; left: the token before; above: the token
one row up; left-law: drawn from the distribution of the position before (section 4.3 there: neighbours in an image are
similar). For models that generate a small preview first, preview: the preview's token at the same place, and left-law
within the preview.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, next_positions
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.draft import Draft, all_equal_without_sync
from polydraft.core.drafters.base import DraftOutcome, extend_state
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.noise import Noise, uniform_from_keys
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather, batch_where, is_in_mask, tokens_equal

INITIALISATIONS = ("random", "left", "above", "left-law")
PREVIEW = "preview"


@dataclass
class WindowInitializer:
    """Initializer of window positions, for token ids."""

    name: str  # one of INITIALISATIONS, or PREVIEW
    allowed: Tensor  # [V] bool, ids that may be drafted
    row_length: int = 16  # tokens per row of the image
    # [T] for every generated position the index of the generated token before it that shows the same place, -1 if none
    preview_index: Tensor | None = None

    def __post_init__(self) -> None:
        if self.name not in (*INITIALISATIONS, PREVIEW):
            meant = did_you_mean(self.name, INITIALISATIONS)
            raise InvalidArgument(
                f"init={self.name!r} is unknown{meant}; it must be one of {', '.join(INITIALISATIONS)}."
            )
        if self.name == PREVIEW and self.preview_index is None:
            raise InvalidArgument(
                "init=preview is for models that generate a preview before the image; use one of "
                f"{', '.join(INITIALISATIONS)}."
            )
        if self.preview_index is not None:
            self.preview_index = self.preview_index.to(self.allowed.device)
        self.allowed_ids = self.allowed.nonzero().squeeze(-1)
        self.uniform_log_probs = self.allowed.float().log().log_softmax(-1)

    def empty_window(self, prompts: PrefillOutput, window: int) -> tuple[Tensor, Tensor]:
        """Return unfilled guesses `[B, window]`, and logits `[B, V]` for rows that no pass has scored yet."""
        rows = len(prompts.branch_lens)
        return prompts.branch_lens.new_zeros(rows, window), self.uniform_log_probs.repeat(rows, 1)

    def fill_window(
        self, state: BatchState, guesses: Tensor, num_known: Tensor, last_logits: Tensor, sampler: Sampler, noise: Noise
    ) -> Tensor:
        """Return an initial token id for every position of the window.

        Args:
            state (BatchState): Committed state of the target.
            guesses (Tensor): [B, W] guesses of the last pass.
            num_known (Tensor): [B, 1] how many of them a pass has made; they come first.
            last_logits (Tensor): [B, V] logits after the last known guess, or after the root if there is none.
            sampler (Sampler): Sampler of the target.
            noise (Noise): Noise of the batch.

        Returns:
            Tensor: [B, W] token ids.
        """
        positions = self.positions(state, guesses)
        if self.name == "above":
            return self.replace_disallowed(self.copy_tokens(state, guesses, num_known, positions - self.row_length))
        if self.name == "random":
            return self.random_ids(noise, positions)
        if self.name in ("left-law", PREVIEW):
            filled = sample_ahead(last_logits, sampler, state, guesses.shape[1], noise)
        else:
            filled = torch.cat([state.root_tokens(), guesses], 1).gather(1, num_known).expand_as(guesses)
        filled = self.replace_disallowed(filled)
        if not all_equal_without_sync(has_generated(state)):  # before the first pass there is no distribution
            filled = torch.where(has_generated(state), filled, self.random_ids(noise, positions))
        if self.name != PREVIEW:
            return filled
        source = self.preview_source(positions)
        copied = self.replace_disallowed(self.copy_tokens(state, guesses, num_known, source))
        return torch.where(source < 0, filled, copied)

    def log_probs(self, state: BatchState, filled: Tensor, last_logits: Tensor) -> Tensor:
        """Return log probabilities `[B, W, V]` from which `fill_window` drew `filled` `[B, W]`; copies are one-hot."""
        uniform = self.uniform_log_probs.expand(*filled.shape, -1)
        if self.name == "random":
            return uniform
        one_hot = torch.zeros_like(uniform).scatter_(-1, filled[..., None], 1.0).log()
        if self.name == "above":
            return one_hot
        later = one_hot if self.name == "left" else last_logits.log_softmax(-1)[:, None].expand_as(uniform)
        log_probs = torch.where(has_generated(state)[..., None], later, uniform)
        if self.name != PREVIEW:
            return log_probs
        return torch.where(self.preview_source(self.positions(state, filled))[..., None] < 0, log_probs, one_hot)

    def random_ids(self, noise: Noise, positions: Tensor) -> Tensor:
        """Return random allowed ids, `[B, W]`, a function of seed and position."""
        return self.allowed_ids[(uniform_from_keys(noise.seeds[:, None], positions) * len(self.allowed_ids)).long()]

    def positions(self, state: BatchState, guesses: Tensor) -> Tensor:
        """Return the position of each guess among the generated tokens, `[B, W]`."""
        return next_positions(state.num_generated, guesses.shape[1])

    def preview_source(self, positions: Tensor) -> Tensor:
        """Return `preview_index` of positions; those past the end count as the last."""
        assert self.preview_index is not None
        return self.preview_index[positions.clamp(max=len(self.preview_index) - 1)]

    def copy_tokens(self, state: BatchState, guesses: Tensor, num_known: Tensor, source: Tensor) -> Tensor:
        """Return the tokens at generated positions `source` `[B, W]`, committed or guessed.

        Positions that are neither get the last token that is known.
        """
        num_generated = state.num_generated[:, None]
        last = torch.cat([state.root_tokens(), guesses], 1).gather(1, num_known)
        committed = state.tokens.gather(1, (state.prompt_lens[:, None] + source).clamp(0, state.tokens.shape[1] - 1))
        guessed = guesses.gather(1, (source - num_generated).clamp(min=0))
        is_known = source - num_generated < num_known
        tokens = torch.where(source < num_generated, committed, torch.where(is_known, guessed, last))
        return torch.where(source >= 0, tokens, last)

    def replace_disallowed(self, ids: Tensor) -> Tensor:
        """Replace ids that may not be drafted (prompt tokens above the first row) by the first allowed one."""
        return torch.where(is_in_mask(ids, self.allowed), ids, self.allowed_ids[0])


def has_generated(state: BatchState) -> Tensor:
    """Return a mask `[B, 1]` of rows that have generated a token."""
    return state.num_generated[:, None] > 0


class WindowFiller(Protocol):
    """Initializer of window positions that no pass has guessed yet, for tokens of any kind."""

    def empty_window(self, prompts: PrefillOutput, window: int) -> tuple[Tensor, Tensor]:
        """Return unfilled guesses `[B, window, …]`, and outputs `[B, …]` for rows that no pass has scored yet."""

    def fill_window(
        self, state: BatchState, guesses: Tensor, num_known: Tensor, last_logits: Tensor, sampler: Any, noise: Noise
    ) -> Tensor:
        """Return an initial token for every position of the window, `[B, W, …]`; see `WindowInitializer`."""


def sample_ahead(processed_outputs: Tensor, sampler: Any, state: BatchState, width: int, noise: Noise) -> Tensor:
    """Sample the next `width` positions from one distribution, each with the noise of its position.

    Args:
        processed_outputs (Tensor): [B, …] processed logits, or hidden states of latents.
        sampler (Any): Sampler of the tokens' kind.
        state (BatchState): Committed state of the target.
        width (int): Number of positions.
        noise (Noise): Noise of the batch.

    Returns:
        Tensor: [B, width, …] tokens.
    """
    expanded = processed_outputs[:, None].expand(-1, width, *processed_outputs.shape[1:])
    tokens: Tensor = sampler.from_processed(expanded, state.sampling_tensors).sample(
        noise.draft_positions(state.num_generated, width)
    )
    return tokens


Initializer = TypeVar("Initializer", bound=WindowFiller)


@dataclass
class WindowDrafter(Generic[Initializer]):
    """Base class of Jacobi drafters."""

    window: int  # guesses a pass
    initializer: Initializer  # fills positions that no pass has guessed yet

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")


@dataclass
class JacobiState(BatchedState):
    """Jacobi window of every row. Where tokens are latents, hidden states take the place of logits."""

    guesses: Tensor  # [B, window, …] guesses for the positions after the root
    num_known: Tensor  # [B, 1] how many of them the last pass made; they come first
    restart: Tensor  # [B, 1] bool, rows that discard their window
    restart_token: Tensor  # [B, …] first token that a restart in the last draft would have guessed
    last_logits: Tensor  # [B, …] processed logits after the last known guess, from which "left-law" draws
    accepted_logits: Tensor  # [B, …] processed logits at the end of the accepted path, from which a restart draws


@dataclass
class JacobiDrafter(WindowDrafter[WindowFiller]):
    """Jacobi decoding with shared noise."""

    # Discard the window where its first guess was wrong and a fresh one would have been right. Guesses after a wrong
    # one keep each other alive for many passes (a rejected object on a plain background).
    restart: bool = True

    def begin(self, drafter_state: JacobiState | None, prompts: PrefillOutput) -> JacobiState:
        num_known = torch.zeros_like(prompts.branch_lens[:, :1])
        guesses, logits = self.initializer.empty_window(prompts, self.window)
        new = JacobiState(guesses, num_known, num_known.bool(), guesses[:, 0], logits, logits.clone())
        return extend_state(drafter_state, new)

    def draft(self, state: BatchState, drafter_state: JacobiState, sampler: Sampler, noise: Noise) -> Draft:
        num_known, guesses = drafter_state.num_known, drafter_state.guesses
        index = torch.arange(self.window, device=num_known.device)
        initial = self.initializer.fill_window(
            state, guesses, num_known, drafter_state.last_logits, sampler, noise
        )  # fmt: skip
        tokens = batch_where(index >= num_known, initial, guesses)
        if self.restart:
            fresh = sample_ahead(drafter_state.accepted_logits, sampler, state, self.window, noise)
            tokens = batch_where(drafter_state.restart.expand(-1, self.window), fresh, tokens)
            drafter_state.restart_token = fresh[:, 0]
        return Draft.from_chain(tokens)

    def observe(self, state: BatchState, drafter_state: JacobiState, outcome: DraftOutcome) -> None:
        """Shift the window by what was committed; the target's tokens after it are the next guesses."""
        logits, result = outcome.distribution.processed_outputs, outcome.verification
        index = torch.arange(self.window, device=logits.device) + result.num_committed[:, None]
        has_failed = (result.num_accepted[:, None] == 0) & (drafter_state.num_known > 0)
        would_match = tokens_equal(drafter_state.restart_token[:, None], result.target_tokens[:, :1])
        drafter_state.restart = has_failed & would_match
        drafter_state.guesses = batch_gather(result.target_tokens, index.clamp(max=self.window))
        drafter_state.num_known = (self.window + 1 - result.num_committed[:, None]).clamp(min=0)
        drafter_state.last_logits = logits[:, -1]
        drafter_state.accepted_logits = logits[torch.arange(len(logits), device=logits.device), result.num_accepted]
