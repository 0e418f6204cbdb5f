"""Jacobi decoding on the noise tape: the target drafts for itself, without training.

A window of guesses is scored in one pass; the tape says what the target would choose after each guess, and these
choices are the next pass's guesses. Decoding on the tape is a deterministic map and this iterates it towards its fixed
point (Song et al. 2021, "Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving"; for images Teng
et al. 2024, "Speculative Jacobi Decoding", arXiv 2410.01699, here with Gumbel coupling instead of its ratio test).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

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

    edge: `[B, V]` log p behind the deepest known guess, what "left-law" draws from. ahead: `[B, V]` log p at the end of
    the accepted path, what a restart draws from; again: `[B]` the first token it would have guessed last time;
    restart: `[B, 1]` bool, rows that forget their window.
    """

    guesses: Tensor
    known: Tensor
    restart: Tensor
    again: Tensor
    edge: Tensor | None = None
    ahead: Tensor | None = None


@dataclass
class JacobiDrafter:
    """window: guesses a pass; init: what fills places no pass has guessed yet.

    random: any allowed id; left: the token before; above: the token one row up (`row` tokens back); left-law: drawn on
    the tape from the distribution of the place before.
    restart: forget the window where its first guess was wrong and a fresh one would have been right. Guesses behind a
    wrong one keep each other alive for many passes (an object that was rejected, on a plain background).
    allowed: `[V]` bool, ids an initialisation may use.
    """

    window: int
    init: str
    allowed: Tensor
    row: int = 16
    restart: bool = True

    def __post_init__(self) -> None:
        if self.init not in INITIALISATIONS:
            raise InvalidArgument(f"init={self.init!r} is unknown; it must be one of {', '.join(INITIALISATIONS)}.")
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")
        self.choices = self.allowed.nonzero().squeeze(-1)

    @property
    def reach(self) -> int:
        return self.window

    @property
    def nodes(self) -> int:
        return self.window

    def begin(self, prompts: list[Prompt]) -> Window:
        rows, device = len(prompts), self.allowed.device
        known = torch.zeros(rows, 1, dtype=torch.long, device=device)
        return Window(known.expand(-1, self.window), known, known.bool(), known[:, 0] - 1)

    def draft(self, state: State, drafts: Window, sampler: Sampler, tape: NoiseTape) -> Draft:
        filled = torch.where(self.fresh(drafts), self.permitted(self.fill(state, drafts, tape)), drafts.guesses)
        if self.restart and drafts.ahead is not None:
            again = self.permitted(self.drawn(state, drafts.ahead, tape))
            filled = torch.where(drafts.restart, again, filled)
            drafts.again = again[:, 0]
        return Draft.of_chain(filled)

    def fresh(self, drafts: Window) -> Tensor:
        """`[B, window]` bool: places no pass has guessed."""
        return torch.arange(self.window, device=drafts.guesses.device) >= drafts.known

    def fill(self, state: State, drafts: Window, tape: NoiseTape) -> Tensor:
        """`[B, window]`: what goes where nothing is known."""
        guesses = drafts.guesses
        t = torch.tensor(state.generated, device=guesses.device)[:, None]
        t = t + torch.arange(self.window, device=guesses.device)
        if self.init == "left-law" and drafts.edge is not None:
            return self.drawn(state, drafts.edge, tape)
        if self.init == "above":
            return self.above(state, guesses, drafts.known, t)
        if self.init == "random" or drafts.edge is None:
            rows = torch.tensor(tape.seeds, device=guesses.device)[:, None]
            return self.choices[(uniform(rows, t) * len(self.choices)).long()]
        return torch.cat([state.roots(), guesses], 1).gather(1, drafts.known).expand_as(guesses)

    def drawn(self, state: State, law: Tensor, tape: NoiseTape) -> Tensor:
        """`[B, window]`: one law `[B, V]` drawn from with every position's own noise."""
        return (law[:, None] + tape.window(state.generated, self.window)).argmax(-1)

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
        rows = torch.arange(len(state), device=law.device)
        accepted = torch.tensor(verdict.accepted, device=law.device)
        counts = torch.tensor(verdict.counts, device=law.device)[:, None]
        places = torch.arange(self.window, device=law.device) + counts
        drafts.guesses = verdict.choices.gather(1, places.clamp(max=self.window))
        drafts.known = (self.window + 1 - counts).clamp(min=0)
        drafts.edge, drafts.ahead = law[:, -1], law[rows, accepted]
        drafts.restart = ((accepted == 0) & (drafts.again == verdict.choices[:, 0]))[:, None]

    def select(self, drafts: Window, rows: list[int]) -> Window:
        return Window(*(None if part is None else part[rows] for part in vars(drafts).values()))  # type: ignore[arg-type]

    def concat(self, drafts: list[Window]) -> Window:
        # a row that joins has no law yet: uniform logits draw from the tape alone
        flat = self.allowed.float().log()

        def joined(name: str) -> Tensor:
            parts = [(getattr(d, name), len(d.known)) for d in drafts]
            return torch.cat([flat.expand(rows, -1) if part is None else part for part, rows in parts])

        return Window(*(joined(field.name) for field in fields(Window)))
