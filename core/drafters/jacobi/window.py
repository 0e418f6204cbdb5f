"""Jacobi decoding with shared noise: the target drafts for itself, without training.

A window of guesses is scored in one pass; the shared noise determines what the target would choose after each guess,
and these choices are the next pass's guesses. Decoding with position-keyed noise is a deterministic map, and this
iterates it towards its fixed point (Song et al. 2021, "Accelerating Feedforward Computation via Parallel Nonlinear
Equation Solving"; for images Teng et al. 2024, "Speculative Jacobi Decoding", arXiv 2410.01699, here with Gumbel
coupling instead of its ratio test).

Positions that no pass has guessed yet get an initial guess: `random` is any allowed id; `left` is the token before;
`above` is the token one image row up; `left-law` is drawn from the distribution of the position before (section 4.3
there: neighbours in an image are similar). For models that generate a small preview image first, `preview` is the
preview's token for the same part of the image, and `left-law` within the preview.

Sequences of a batch share the time of a pass, so that fewer guesses of each pay for theirs: only the first of a window
are then drafted, a number that depends on the number of sequences alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import BatchedState, next_positions
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.draft import Draft, all_equal_without_sync
from polydraft.core.drafters.base import Drafter, DraftOutcome, MissedTokens, append_drafter_rows
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
    """Initial guesses of the positions of a Jacobi window that no pass has guessed yet, for token ids."""

    name: str  # one of INITIALISATIONS, or PREVIEW
    allowed: Tensor  # [V] bool, ids that may be drafted
    row_length: int = 16  # tokens per row of the image
    # [T] for every generated position the index of the preview's token for the same part of the image, -1 if none
    preview_index: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the name, and list the ids of `allowed` `[V]` (bool, ids that may be drafted) with their log probs."""
        # error messages do not offer "preview", which only some models have
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
        if self.preview_index is not None:  # [T] index of the preview's token for every generated position
            self.preview_index = self.preview_index.to(self.allowed.device)
        self.allowed_ids: Tensor = self.allowed.nonzero().squeeze(-1)  # [A], ascending
        # [V] uniform over the A allowed ids: the log of the mask is 0 for them and -inf for all others, and
        # log_softmax subtracts log A
        self.uniform_log_probs: Tensor = self.allowed.float().log().log_softmax(-1)

    def empty_window(self, prompts: PrefillOutput, window: int) -> tuple[Tensor, Tensor]:
        """Return guesses of zeros, `[B, window]`, and uniform logits `[B, V]`, for sequences without a pass so far."""
        batch_size = len(prompts.branch_lens)
        return prompts.branch_lens.new_zeros(batch_size, window), self.uniform_log_probs.repeat(batch_size, 1)

    def fill_window(
        self, state: BatchState, guesses: Tensor, num_scored: Tensor, last_logits: Tensor, sampler: Sampler,
        noise: Noise,
    ) -> Tensor:  # fmt: skip
        """Return an initial token id for every position of the window; the caller uses those without a guess.

        Args:
            state (BatchState): Committed state of the target.
            guesses (Tensor): [B, W] guesses of the last pass; only the first `num_scored` of a row are valid.
            num_scored (Tensor): [B, 1] number of window positions that the last pass scored; they come first.
            last_logits (Tensor): [B, V] processed logits of the last position that the last pass scored.
            sampler (Sampler): Sampler of the target.
            noise (Noise): Noise of the batch.

        Returns:
            Tensor: [B, W] token ids.
        """
        positions = self.positions(state, guesses)
        if self.name == "above":  # the token one image row, `row_length` tokens, earlier
            return self.replace_disallowed(self.copy_tokens(state, guesses, num_scored, positions - self.row_length))
        if self.name == "random":
            return self.random_ids(noise, positions)
        if self.name in ("left-law", PREVIEW):  # drawn from the distribution of the last scored position
            filled = sample_ahead(last_logits, sampler, state, guesses.shape[1], noise)
        else:  # "left": a copy of the last valid guess, or of the root (the last committed token) if there is none
            last_token = torch.cat([state.root_tokens(), guesses], 1).gather(1, num_scored)
            filled = last_token.expand_as(guesses)
        filled = self.replace_disallowed(filled)
        # before its first pass a sequence has only prompt tokens to copy and no distribution to draw from
        if not all_equal_without_sync(has_generated(state)):  # skipped only if all sequences are known to be past it
            filled = torch.where(has_generated(state), filled, self.random_ids(noise, positions))
        if self.name != PREVIEW:
            return filled
        # positions without a counterpart in the preview image (-1), such as the preview's, keep the "left-law" guess
        source = self.preview_source(positions)
        copied = self.replace_disallowed(self.copy_tokens(state, guesses, num_scored, source))
        return torch.where(source < 0, filled, copied)

    def log_probs(self, state: BatchState, filled: Tensor, last_logits: Tensor) -> Tensor:
        """Return the log of the distributions from which `fill_window` drew its initial guesses.

        Args:
            state (BatchState): Committed state of the target.
            filled (Tensor): [B, W] initial guesses; where they are copies the distribution is one-hot.
            last_logits (Tensor): [B, V] logits that were passed to `fill_window`.

        Returns:
            Tensor: [B, W, V].
        """
        uniform = self.uniform_log_probs.expand(*filled.shape, -1)
        if self.name == "random":
            return uniform
        # log of a one-hot distribution: 0 at the guess, -inf elsewhere
        one_hot = torch.zeros_like(uniform).scatter_(-1, filled[..., None], 1.0).log()
        if self.name == "above":
            return one_hot
        # "left" copies; "left-law" and "preview" draw from the distribution of the last scored position
        after_first_pass = one_hot if self.name == "left" else last_logits.log_softmax(-1)[:, None].expand_as(uniform)
        # before the first pass of a sequence, guesses are uniformly random
        log_probs = torch.where(has_generated(state)[..., None], after_first_pass, uniform)
        if self.name != PREVIEW:
            return log_probs
        # positions with a counterpart in the preview image (index 0 or more) are copies of it
        return torch.where(self.preview_source(self.positions(state, filled))[..., None] < 0, log_probs, one_hot)

    def random_ids(self, noise: Noise, positions: Tensor) -> Tensor:
        """Return uniformly random allowed ids, `[B, W]`, a function of the row's seed and `positions` `[B, W]`."""
        # a uniform in (0, 1) times the number of ids, rounded down, is an index into them
        return self.allowed_ids[(uniform_from_keys(noise.seeds[:, None], positions) * len(self.allowed_ids)).long()]

    def positions(self, state: BatchState, guesses: Tensor) -> Tensor:
        """Return the positions of `guesses` `[B, W]` among the generated tokens, `[B, W]`: those after the root."""
        return next_positions(state.num_generated, guesses.shape[1])

    def preview_source(self, positions: Tensor) -> Tensor:
        """Return for generated positions `[B, W]` the index of their token in the preview, `[B, W]`; -1 if none."""
        assert self.preview_index is not None  # `__post_init__` requires it for init="preview"
        # positions beyond the end of the table use its last entry
        return self.preview_index[positions.clamp(max=len(self.preview_index) - 1)]

    def copy_tokens(self, state: BatchState, guesses: Tensor, num_scored: Tensor, source: Tensor) -> Tensor:
        """Return the tokens at given generated positions, `[B, W]`, from the committed tokens or the guesses.

        For a position that is neither committed nor guessed, and for one before the first generated token, return the
        last valid guess, or the root (the last committed token) if no guess is valid.

        Args:
            state (BatchState): Committed state of the target.
            guesses (Tensor): [B, W] guesses for the positions after the root; the first `num_scored` are valid.
            num_scored (Tensor): [B, 1] number of valid guesses.
            source (Tensor): [B, W] generated positions to copy from; may be negative.
        """
        num_generated = state.num_generated[:, None]  # committed positions are below it, guesses start at it
        last = torch.cat([state.root_tokens(), guesses], 1).gather(1, num_scored)
        # clamps keep indices in range; entries where one took effect are not selected below
        committed = state.tokens.gather(1, (state.prompt_lens[:, None] + source).clamp(0, state.tokens.shape[1] - 1))
        guessed = guesses.gather(1, (source - num_generated).clamp(min=0))
        is_guessed = source - num_generated < num_scored
        tokens = torch.where(source < num_generated, committed, torch.where(is_guessed, guessed, last))
        return torch.where(source >= 0, tokens, last)

    def replace_disallowed(self, ids: Tensor) -> Tensor:
        """Replace those of `ids` `[B, W]` that may not be drafted (copied prompt tokens) by the first allowed id."""
        return torch.where(is_in_mask(ids, self.allowed), ids, self.allowed_ids[0])


def has_generated(state: BatchState) -> Tensor:
    """Return `[B, 1]` bool, True for sequences with at least one generated token."""
    return state.num_generated[:, None] > 0


class WindowFiller(Protocol):
    """Initial guesses of window positions that no pass has guessed yet, for token ids or latents."""

    def empty_window(self, prompts: PrefillOutput, window: int) -> tuple[Tensor, Tensor]:
        """Return placeholders for sequences without a pass so far.

        Args:
            prompts (PrefillOutput): What the target computed for the prompts of the sequences.
            window (int): Number of guesses.

        Returns:
            tuple[Tensor, Tensor]: guesses [B, window, …], and target outputs [B, …] (logits, or hidden states).
        """

    def fill_window(
        self, state: BatchState, guesses: Tensor, num_scored: Tensor, last_logits: Tensor, sampler: Any, noise: Noise
    ) -> Tensor:
        """Return an initial token for every position of the window, `[B, W, …]`.

        Args:
            state (BatchState): Committed state of the target.
            guesses (Tensor): [B, W, …] guesses of the last pass; only the first `num_scored` of a row are valid.
            num_scored (Tensor): [B, 1] number of window positions that the last pass scored; they come first.
            last_logits (Tensor): [B, …] processed logits, or hidden states of latents, of the last position that the
                last pass scored.
            sampler (Any): Sampler of the target.
            noise (Noise): Noise of the batch.
        """


def sample_ahead(processed_outputs: Tensor, sampler: Any, state: BatchState, width: int, noise: Noise) -> Tensor:
    """Sample the `width` positions after the root, all from one distribution, each with the noise of its position.

    The root is the last committed token.

    Args:
        processed_outputs (Tensor): [B, …] processed logits, or hidden states of latents, of one position per row.
        sampler (Any): Sampler for token ids or latents.
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


def window_of_batch(window: int, window_for_batch: Callable[[int], int] | None, num_sequences: int) -> int:
    """Return the number of guesses per sequence where `num_sequences` sequences share a pass, at most `window`."""
    return window if window_for_batch is None else min(window, window_for_batch(num_sequences))


def resize_window(values: Tensor, window: int) -> Tensor:
    """Return the first `window` positions of `values` `[B, W, …]`, with zeros in positions that it does not have."""
    if values.shape[1] >= window:
        return values[:, :window]
    return F.pad(values, (0, 0) * (values.ndim - 2) + (0, window - values.shape[1]))


Initializer = TypeVar("Initializer", bound=WindowFiller)


@dataclass
class WindowDrafter(Drafter, Generic[Initializer]):
    """Base class of Jacobi drafters."""

    window: int  # guesses per pass
    initializer: Initializer  # fills positions that no pass has guessed yet

    def __post_init__(self) -> None:
        """Check the window."""
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")


@dataclass
class JacobiState(BatchedState):
    """Jacobi window of every sequence. Where tokens are latents, hidden states take the place of logits."""

    # [B, W, …] guesses for the positions after the root; the first `num_scored` are valid. W is the number of guesses
    # in the last pass.
    guesses: Tensor
    num_scored: Tensor  # [B, 1] number of window positions that the last pass scored
    restart: Tensor  # [B, 1] bool, sequences whose next draft discards the window
    restart_token: Tensor  # [B, …] first token that a restart in the last draft would have guessed
    last_logits: Tensor  # [B, …] processed logits of the last position that the last pass scored, for "left-law"
    accepted_logits: Tensor  # [B, …] processed logits after the last accepted token, from which a restart draws

    def resize(self, window: int) -> None:
        """Drop guesses after the first `window`, or make room for as many."""
        if self.guesses.shape[1] != window:
            self.guesses, self.num_scored = resize_window(self.guesses, window), self.num_scored.clamp(max=window)


@dataclass
class JacobiDrafter(WindowDrafter[WindowFiller]):
    """Jacobi decoding with Gumbel noise that is keyed by position and so shared by drafter and target.

    The target's tokens at the positions after a rejected guess are the guesses of the next draft.
    """

    # Discard the window where its first guess was wrong and a fresh one would have been right. Otherwise guesses after
    # a wrong one confirm each other for many passes (a rejected object on a plain background).
    restart: bool = True
    window_for_batch: Callable[[int], int] | None = None  # number of sequences → guesses per pass; None: all
    follows_outputs = True

    def begin(self, drafter_state: JacobiState | None, prompts: PrefillOutput) -> JacobiState:
        """Append sequences with an empty window to the state, and return it; their first draft does not restart."""
        num_scored = torch.zeros_like(prompts.branch_lens[:, :1])
        guesses, logits = self.initializer.empty_window(prompts, self.window)
        new = JacobiState(
            guesses, num_scored, restart=num_scored.bool(), restart_token=guesses[:, 0], last_logits=logits,
            accepted_logits=logits.clone(),
        )  # fmt: skip
        return append_drafter_rows(drafter_state, new)

    def prepare(self, state: BatchState, drafter_state: JacobiState) -> None:
        """Make the window as long as suits the number of sequences, for which passes may be timed at first."""
        drafter_state.resize(window_of_batch(self.window, self.window_for_batch, len(state)))

    def draft(self, state: BatchState, drafter_state: JacobiState, sampler: Sampler, noise: Noise) -> Draft:
        """Return a chain of W tokens: the guesses of the last pass, then initial ones for the other positions.

        A sequence restarts if its old guesses are to be discarded (`drafter_state.restart`, decided by `observe`): all
        tokens are then fresh draws from the target distribution after the last accepted token.
        """
        num_scored, guesses = drafter_state.num_scored, drafter_state.guesses
        window = guesses.shape[1]
        if not window:
            return Draft.empty(state.tokens)
        index = torch.arange(window, device=num_scored.device)
        initial = self.initializer.fill_window(state, guesses, num_scored, drafter_state.last_logits, sampler, noise)
        tokens = batch_where(index >= num_scored, initial, guesses)
        if self.restart:
            fresh = sample_ahead(drafter_state.accepted_logits, sampler, state, window, noise)
            tokens = batch_where(drafter_state.restart.expand(-1, window), fresh, tokens)
            drafter_state.restart_token = fresh[:, 0]  # `observe` compares it with the target's token
        return Draft.from_chain(tokens)

    def observe(self, state: BatchState, drafter_state: JacobiState, outcome: DraftOutcome) -> None:
        """Take the target's tokens after the committed ones as the next guesses, and decide which windows restart.

        A window restarts (its guesses are discarded) if its first guess was wrong and the first token of a restart
        would have been right.
        """
        logits, result = outcome.distribution.processed_outputs, outcome.verification
        window = outcome.draft.size
        # [B, W] tree index (0 is the root, i + 1 guess i) that scored each position of the shifted window; past the
        # last it is clamped below, and the copied entry is not read, since `num_scored` excludes it
        index = torch.arange(window, device=logits.device) + result.num_committed[:, None]
        # no guess was accepted, although the first one came from an earlier pass and was no initial guess
        has_failed = (result.num_accepted[:, None] == 0) & (drafter_state.num_scored > 0)
        would_match = tokens_equal(drafter_state.restart_token[:, None], result.target_tokens[:, :1])
        drafter_state.restart = has_failed & would_match
        drafter_state.guesses = batch_gather(result.target_tokens, index.clamp(max=window))
        drafter_state.num_scored = (window + 1 - result.num_committed[:, None]).clamp(min=0)
        drafter_state.last_logits = logits[:, -1]  # scored at the last guess, the end of the chain
        # tree index num_accepted is the last accepted guess of the chain, or the root (0)
        drafter_state.accepted_logits = logits[torch.arange(len(logits), device=logits.device), result.num_accepted]

    def catch_up(self, state: BatchState, drafter_state: JacobiState, missed: MissedTokens) -> None:
        """Discard the window, whose guesses are for committed positions, and go on from the last distribution."""
        drafter_state.num_scored = torch.zeros_like(drafter_state.num_scored)
        drafter_state.restart = torch.zeros_like(drafter_state.restart)
        drafter_state.last_logits = drafter_state.accepted_logits = missed.outputs.to(drafter_state.last_logits.dtype)
