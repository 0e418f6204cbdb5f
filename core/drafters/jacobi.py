"""Jacobi decoding on the noise tape: the target drafts for itself, without training.

A window of guesses is scored in one pass; the tape says what the target would choose after each guess, and these
choices are the next pass's guesses. Decoding on the tape is a deterministic map and this iterates it towards its fixed
point (Song et al. 2021, "Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving"; for images Teng
et al. 2024, "Speculative Jacobi Decoding", arXiv 2410.01699, here with Gumbel coupling instead of its ratio test).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.tape import NoiseTape, uniform
from polydraft.core.target import Prompt
from polydraft.core.verdict import Verdict

INITIALISATIONS = ("random", "left", "above", "left-law")


@dataclass
class Window:
    """Guesses `[B, window]` for the positions after the root; the first `known[b]` come from the last pass.

    law: `[B, V]` log p behind the deepest known guess, what "left-law" draws from.
    """

    guesses: Tensor
    known: Tensor
    law: Tensor | None = None


@dataclass
class JacobiDrafter:
    """window: guesses a pass; init: what fills places no pass has guessed yet.

    random: any allowed id; left: the token before; above: the token one row up (`row` tokens back); left-law: drawn on
    the tape from the distribution of the place before.
    allowed: `[V]` bool, ids an initialisation may use.
    """

    window: int
    init: str
    allowed: Tensor
    row: int = 16

    def __post_init__(self) -> None:
        if self.init not in INITIALISATIONS:
            raise InvalidArgument(f"init={self.init!r} is unknown; it must be one of {', '.join(INITIALISATIONS)}.")
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")
        self.choices = self.allowed.nonzero().squeeze(-1)

    @property
    def reach(self) -> int:
        return self.window

    def begin(self, prompts: list[Prompt]) -> Window:
        empty = torch.zeros(len(prompts), self.window, dtype=torch.long, device=self.allowed.device)
        return Window(empty, torch.zeros(len(prompts), 1, dtype=torch.long, device=self.allowed.device))

    def draft(self, state: State, drafts: Window, sampler: Sampler, tape: NoiseTape) -> Draft:
        guesses = drafts.guesses
        places = torch.arange(self.window, device=guesses.device)
        fresh = places >= drafts.known
        t = torch.tensor(state.generated, device=guesses.device)[:, None] + places
        if self.init == "left-law" and drafts.law is not None:
            noise = tape.window(state.generated, self.window)
            filled = (drafts.law[:, None] + noise).argmax(-1)
        elif self.init == "above":
            filled = self.above(state, guesses, drafts.known, t)
        elif self.init == "random" or drafts.law is None:
            rows = torch.tensor(tape.seeds, device=guesses.device)[:, None]
            filled = self.choices[(uniform(rows, t) * len(self.choices)).long()]
        else:
            before = torch.cat([state.roots(), guesses], 1)
            filled = before.gather(1, drafts.known).expand_as(guesses)
        return Draft.of_chain(torch.where(fresh, self.permitted(filled), guesses))

    def above(self, state: State, guesses: Tensor, known: Tensor, t: Tensor) -> Tensor:
        """The token `row` places back: committed, guessed, or filled by this very rule; the first row repeats left."""
        starts = torch.tensor(state.starts, device=guesses.device)[:, None]
        root = torch.tensor(state.generated, device=guesses.device)[:, None]
        line = torch.cat([state.roots(), guesses], 1)
        last = line.gather(1, known)
        back = t - self.row
        committed = state.tokens.gather(1, (starts + back).clamp(min=0))
        guessed = guesses.gather(1, (back - root).clamp(min=0))
        within = back - root < known
        filled = torch.where(back < root, committed, torch.where(within, guessed, last))
        return torch.where(back >= 0, filled, last)

    def permitted(self, ids: Tensor) -> Tensor:
        """Ids the mask allows; anything else (a prompt word in the first column) becomes the first allowed one."""
        return torch.where(self.allowed[ids], ids, self.choices[0])

    def observe(self, state: State, drafts: Window, draft: Draft, law: Tensor, verdict: Verdict) -> None:
        """Shift by what was committed; every choice past it is the next guess of its own position."""
        counts = torch.tensor(verdict.counts, device=law.device)[:, None]
        places = torch.arange(self.window, device=law.device) + counts
        drafts.guesses = verdict.choices.gather(1, places.clamp(max=self.window))
        drafts.known = (self.window + 1 - counts).clamp(min=0)
        drafts.law = law[:, -1]

    def select(self, drafts: Window, rows: list[int]) -> Window:
        return Window(drafts.guesses[rows], drafts.known[rows], None if drafts.law is None else drafts.law[rows])

    def concat(self, drafts: list[Window]) -> Window:
        # a row that joins has no law yet: uniform logits draw from the tape alone
        vocab = len(self.allowed)
        laws = [d.law if d.law is not None else self.allowed.float().log().expand(len(d.known), vocab) for d in drafts]
        return Window(torch.cat([d.guesses for d in drafts]), torch.cat([d.known for d in drafts]), torch.cat(laws))
