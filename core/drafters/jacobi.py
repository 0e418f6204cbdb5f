"""Jacobi decoding on the noise tape: the target drafts for itself, without training.

A window of guesses is scored in one pass; the tape says what the target would choose after each guess, and these
choices are the next pass's guesses. Decoding on the tape is a deterministic map and this iterates it towards its fixed
point (Song et al. 2021, "Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving"; for images Teng
et al. 2024, "Speculative Jacobi Decoding", arXiv 2410.01699, here with Gumbel coupling instead of its ratio test).

Places that no pass has guessed yet are filled: random: any allowed id; left: the token before; above: the token one row
up; left-law: drawn from the distribution of the place before (section 4.3 there: neighbours in a picture are alike).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Outcome, joined
from polydraft.core.errors import InvalidArgument
from polydraft.core.noise import Noise, uniform
from polydraft.core.rows import Rows
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.target import Prefill

INITIALISATIONS = ("random", "left", "above", "left-law")


@dataclass
class Initial:
    """allowed: `[V]` bool, ids it may use; row: tokens a row of the picture."""

    name: str
    allowed: Tensor
    row: int = 16

    def __post_init__(self) -> None:
        if self.name not in INITIALISATIONS:
            raise InvalidArgument(f"init={self.name!r} is unknown; it must be one of {', '.join(INITIALISATIONS)}.")
        self.choices = self.allowed.nonzero().squeeze(-1)
        self.flat = self.allowed.float().log().log_softmax(-1)  # log of the uniform law over allowed ids

    def fill(self, state: State, guesses: Tensor, known: Tensor, edge: Tensor, noise: Noise) -> Tensor:
        """Ids `[B, W]` for every place; guesses `[B, W]` hold in the first `known` `[B, 1]`.

        edge: `[B, V]` scores behind the deepest guess; rows without any (known is 0) have had no pass yet.
        """
        t = state.generated[:, None] + torch.arange(guesses.shape[1], device=guesses.device)
        if self.name == "above":
            return self.permitted(self.above(state, guesses, known, t))
        first = self.choices[(uniform(noise.seeds[:, None], t) * len(self.choices)).long()]
        if self.name == "random":
            return first
        if self.name == "left-law":
            filled = (edge[:, None] + noise.window(t)).argmax(-1)
        else:
            filled = torch.cat([state.roots(), guesses], 1).gather(1, known).expand_as(guesses)
        return torch.where(known > 0, self.permitted(filled), first)

    def law(self, filled: Tensor, known: Tensor, edge: Tensor) -> Tensor:
        """Log of the law that `fill` drew `filled` `[B, W]` from, `[B, W, V]`: one-hot for copies."""
        flat = self.flat.expand(*filled.shape, -1)
        if self.name == "random":
            return flat
        copied = torch.zeros_like(flat).scatter_(-1, filled[..., None], 1.0).log()
        if self.name == "above":
            return copied
        own = edge.log_softmax(-1)[:, None].expand_as(flat) if self.name == "left-law" else copied
        return torch.where(known[..., None] > 0, own, flat)

    def above(self, state: State, guesses: Tensor, known: Tensor, t: Tensor) -> Tensor:
        """The token `row` places back: committed, guessed, or filled by this very rule; the first row repeats left."""
        root = state.generated[:, None]
        last = torch.cat([state.roots(), guesses], 1).gather(1, known)
        back = t - self.row
        committed = state.tokens.gather(1, (state.starts[:, None] + back).clamp(0, state.tokens.shape[1] - 1))
        guessed = guesses.gather(1, (back - root).clamp(min=0))
        within = back - root < known
        filled = torch.where(back < root, committed, torch.where(within, guessed, last))
        return torch.where(back >= 0, filled, last)

    def permitted(self, ids: Tensor) -> Tensor:
        """Ids the mask allows; anything else (a prompt word in the first column) becomes the first allowed one."""
        return torch.where(self.allowed[ids], ids, self.choices[0])


@dataclass
class WindowDrafter:
    """What Jacobi drafters share. window: guesses a pass; initial: what fills places no pass has guessed yet."""

    window: int
    initial: Initial

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")


@dataclass
class Window(Rows):
    """Guesses `[B, window]` for the positions after the root; the first `known` `[B, 1]` come from the last pass.

    edge: `[B, V]` scores behind the deepest known guess, what "left-law" draws from. ahead: `[B, V]` scores at the end
    of the accepted path, what a restart draws from; again: `[B]` the first token it would have guessed last time;
    restart: `[B, 1]` bool, rows that forget their window.
    """

    guesses: Tensor
    known: Tensor
    restart: Tensor
    again: Tensor
    edge: Tensor
    ahead: Tensor


@dataclass
class JacobiDrafter(WindowDrafter):
    """restart: forget the window where its first guess was wrong and a fresh one would have been right.

    Guesses behind a wrong one keep each other alive for many passes (an object that was rejected, on a plain
    background).
    """

    restart: bool = True

    def begin(self, own: Window | None, seen: Prefill) -> Window:
        rows = len(seen.lengths)
        known = torch.zeros(rows, 1, dtype=torch.long, device=seen.lengths.device)
        flat = self.initial.flat.repeat(rows, 1)
        new = Window(known.repeat(1, self.window), known, known.bool(), known[:, 0] - 1, flat, flat.clone())
        return joined(own, new)

    def draft(self, state: State, own: Window, sampler: Sampler, noise: Noise) -> Draft:
        places = torch.arange(self.window, device=own.known.device)
        fill = self.initial.fill(state, own.guesses, own.known, own.edge, noise)
        filled = torch.where(places >= own.known, fill, own.guesses)
        if self.restart:
            again = (own.ahead[:, None] + noise.window(state.generated[:, None] + places)).argmax(-1)
            filled = torch.where(own.restart, again, filled)
            own.again = torch.where(own.known[:, 0] > 0, again[:, 0], -1)
        return Draft.of_chain(filled)

    def observe(self, state: State, own: Window, outcome: Outcome) -> None:
        """Shift by what was committed; every choice past it is the next guess of its own position."""
        scores, verdict = outcome.law.scores, outcome.verdict
        places = torch.arange(self.window, device=scores.device) + verdict.counts[:, None]
        own.guesses = verdict.choices.gather(1, places.clamp(max=self.window))
        own.known = (self.window + 1 - verdict.counts[:, None]).clamp(min=0)
        own.edge = scores[:, -1]
        own.ahead = scores[torch.arange(len(scores), device=scores.device), verdict.accepted]
        own.restart = ((verdict.accepted == 0) & (own.again == verdict.choices[:, 0]))[:, None]
