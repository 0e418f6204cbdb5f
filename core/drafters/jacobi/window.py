"""Jacobi decoding on the noise tape: the target drafts for itself, without training.

A window of guesses is scored in one pass; the tape says what the target would choose after each guess, and these
choices are the next pass's guesses. Decoding on the tape is a deterministic map and this iterates it towards its fixed
point (Song et al. 2021, "Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving"; for images Teng
et al. 2024, "Speculative Jacobi Decoding", arXiv 2410.01699, here with Gumbel coupling instead of its ratio test).

Places that no pass has guessed yet are filled: random: any allowed id; left: the token before; above: the token one row
up; left-law: drawn from the distribution of the place before (section 4.3 there: neighbours in a picture are alike).
Of a model that draws a small preview first, preview: the preview's token at the same spot; left-law in the preview.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from polydraft.core.draft import Draft, agreed
from polydraft.core.drafters.base import Outcome, joined
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.noise import Noise, uniform
from polydraft.core.law.sampling import Sampler
from polydraft.core.rows import Rows, following
from polydraft.core.state import State
from polydraft.core.suggestions import did_you_mean
from polydraft.core.target import Prefill
from polydraft.core.tokens import among, either, same, take

INITIALISATIONS = ("random", "left", "above", "left-law")
PREVIEW = "preview"


@dataclass
class Initial:
    """What fills places of ids. allowed: `[V]` bool, ids it may use; row: tokens a row of the picture.

    origins: `[T]`, of what is generated, which token before shows the same spot of the picture, -1 where none does.
    """

    name: str
    allowed: Tensor
    row: int = 16
    origins: Tensor | None = None

    def __post_init__(self) -> None:
        if self.name not in (*INITIALISATIONS, PREVIEW):
            meant = did_you_mean(self.name, INITIALISATIONS)
            raise InvalidArgument(
                f"init={self.name!r} is unknown{meant}; it must be one of {', '.join(INITIALISATIONS)}."
            )
        if self.name == PREVIEW and self.origins is None:
            raise InvalidArgument(
                "init=preview is for models that draw a preview before the picture; use one of "
                f"{', '.join(INITIALISATIONS)}."
            )
        self.spots = None if self.origins is None else self.origins.to(self.allowed.device)
        self.choices = self.allowed.nonzero().squeeze(-1)
        self.flat = self.allowed.float().log().log_softmax(-1)  # log of the uniform law over allowed ids

    def blank(self, seen: Prefill, window: int) -> tuple[Tensor, Tensor]:
        """Guesses `[B, window]` that nothing has been put into, and scores `[B, V]` of rows without a pass."""
        rows = len(seen.lengths)
        return seen.lengths.new_zeros(rows, window), self.flat.repeat(rows, 1)

    def fill(
        self, state: State, guesses: Tensor, known: Tensor, edge: Tensor, sampler: Sampler, noise: Noise
    ) -> Tensor:
        """Ids `[B, W]` for every place; guesses `[B, W]` hold in the first `known` `[B, 1]`.

        edge: `[B, V]` scores behind the deepest guess, or behind the root where all of the last window was right.
        """
        t = self.positions(state, guesses)
        if self.name == "above":
            return self.permitted(self.copied(state, guesses, known, t - self.row))
        if self.name == "random":
            return self.anything(noise, t)
        if self.name in ("left-law", PREVIEW):
            filled = behind(edge, sampler, state, guesses.shape[1], noise)
        else:
            filled = torch.cat([state.roots(), guesses], 1).gather(1, known).expand_as(guesses)
        filled = self.permitted(filled)
        if not agreed(begun(state)):  # a first pass has nothing to go on from
            filled = torch.where(begun(state), filled, self.anything(noise, t))
        if self.name != PREVIEW:
            return filled
        origins = self.shown(t)
        return torch.where(origins < 0, filled, self.permitted(self.copied(state, guesses, known, origins)))

    def law(self, state: State, filled: Tensor, edge: Tensor) -> Tensor:
        """Log of the law that `fill` drew `filled` `[B, W]` from, `[B, W, V]`: one-hot for copies."""
        flat = self.flat.expand(*filled.shape, -1)
        if self.name == "random":
            return flat
        copied = torch.zeros_like(flat).scatter_(-1, filled[..., None], 1.0).log()
        if self.name == "above":
            return copied
        own = copied if self.name == "left" else edge.log_softmax(-1)[:, None].expand_as(flat)
        drawn = torch.where(begun(state)[..., None], own, flat)
        if self.name != PREVIEW:
            return drawn
        return torch.where(self.shown(self.positions(state, filled))[..., None] < 0, drawn, copied)

    def anything(self, noise: Noise, t: Tensor) -> Tensor:
        """`[B, W]`: any allowed ids."""
        return self.choices[(uniform(noise.seeds[:, None], t) * len(self.choices)).long()]

    def positions(self, state: State, guesses: Tensor) -> Tensor:
        """`[B, W]`: how many tokens stand before each guess."""
        return following(state.generated, guesses.shape[1])

    def shown(self, t: Tensor) -> Tensor:
        """`origins` of positions, those past the end like the last."""
        assert self.spots is not None
        return self.spots[t.clamp(max=len(self.spots) - 1)]

    def copied(self, state: State, guesses: Tensor, known: Tensor, back: Tensor) -> Tensor:
        """The tokens of places `back` `[B, W]`, committed or guessed; what is neither repeats the last that is."""
        root = state.generated[:, None]
        last = torch.cat([state.roots(), guesses], 1).gather(1, known)
        committed = state.tokens.gather(1, (state.starts[:, None] + back).clamp(0, state.tokens.shape[1] - 1))
        guessed = guesses.gather(1, (back - root).clamp(min=0))
        within = back - root < known
        filled = torch.where(back < root, committed, torch.where(within, guessed, last))
        return torch.where(back >= 0, filled, last)

    def permitted(self, ids: Tensor) -> Tensor:
        """Ids the mask allows; anything else (a prompt word in the first column) becomes the first allowed one."""
        return torch.where(among(ids, self.allowed), ids, self.choices[0])


def begun(state: State) -> Tensor:
    """`[B, 1]` bool: rows of which a pass has said something."""
    return state.generated[:, None] > 0


class Fills(Protocol):
    """Fills places of a window, see `Initial`."""

    def blank(self, seen: Prefill, window: int) -> tuple[Tensor, Tensor]:
        """Guesses `[B, window, …]` that nothing has been put into, and what laws of rows without a pass are made of."""

    def fill(self, state: State, guesses: Tensor, known: Tensor, edge: Tensor, sampler: Any, noise: Noise) -> Tensor:
        """Tokens `[B, W, …]` for every place; edge: `[B, …]`, what the law behind the deepest guess was made of."""


def behind(edge: Tensor, sampler: Any, state: State, width: int, noise: Noise) -> Tensor:
    """`[B, width, …]`: what the next places draw, each with its own noise, from the one law that `edge` `[B, …]` makes.

    sampler: of the tokens' kind.
    """
    law = sampler.again(edge[:, None].expand(-1, width, *edge.shape[1:]), state.settings)
    drawn: Tensor = law.drawn(noise.ahead(state.generated, width))
    return drawn


Filling = TypeVar("Filling", bound=Fills)


@dataclass
class WindowDrafter(Generic[Filling]):
    """What Jacobi drafters share. window: guesses a pass; initial: what fills places no pass has guessed yet."""

    window: int
    initial: Filling

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")


@dataclass
class Window(Rows):
    """Guesses `[B, window, …]` for the positions after the root; the first `known` `[B, 1]` come from the last pass.

    edge: `[B, …]`, what the law behind the deepest known guess was made of (scores, say), what "left-law" draws from.
    ahead: `[B, …]`, the same at the end of the accepted path, what a restart draws from; again: `[B, …]` the first
    token it would have guessed last time; restart: `[B, 1]` bool, rows that forget their window.
    """

    guesses: Tensor
    known: Tensor
    restart: Tensor
    again: Tensor
    edge: Tensor
    ahead: Tensor


@dataclass
class JacobiDrafter(WindowDrafter[Fills]):
    """restart: forget the window where its first guess was wrong and a fresh one would have been right.

    Guesses behind a wrong one keep each other alive for many passes (an object that was rejected, on a plain
    background).
    """

    restart: bool = True

    def begin(self, own: Window | None, seen: Prefill) -> Window:
        known = torch.zeros_like(seen.lengths[:, :1])
        guesses, edge = self.initial.blank(seen, self.window)
        return joined(own, Window(guesses, known, known.bool(), guesses[:, 0], edge, edge.clone()))

    def draft(self, state: State, own: Window, sampler: Sampler, noise: Noise) -> Draft:
        places = torch.arange(self.window, device=own.known.device)
        fill = self.initial.fill(state, own.guesses, own.known, own.edge, sampler, noise)
        filled = either(places >= own.known, fill, own.guesses)
        if self.restart:
            again = behind(own.ahead, sampler, state, self.window, noise)
            filled = either(own.restart.expand(-1, self.window), again, filled)
            own.again = again[:, 0]
        return Draft.of_chain(filled)

    def observe(self, state: State, own: Window, outcome: Outcome) -> None:
        """Shift by what was committed; every choice past it is the next guess of its own position."""
        given, verdict = outcome.law.given, outcome.verdict
        places = torch.arange(self.window, device=given.device) + verdict.counts[:, None]
        failed = (verdict.accepted[:, None] == 0) & (own.known > 0)
        own.restart = failed & same(own.again[:, None], verdict.choices[:, :1])
        own.guesses = take(verdict.choices, places.clamp(max=self.window))
        own.known = (self.window + 1 - verdict.counts[:, None]).clamp(min=0)
        own.edge = given[:, -1]
        own.ahead = given[torch.arange(len(given), device=given.device), verdict.accepted]
