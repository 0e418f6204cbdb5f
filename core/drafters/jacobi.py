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

    edge: `[B, V]` log p behind the deepest known guess, what "left-law" draws from; ahead: `[B, V]` log p at the end of
    the accepted path, what a restart draws from.
    """

    guesses: Tensor
    known: Tensor
    edge: Tensor | None = None
    ahead: Tensor | None = None


@dataclass
class JacobiDrafter:
    """window: guesses a pass; init: what fills places no pass has guessed yet.

    random: any allowed id; left: the token before; above: the token one row up (`row` tokens back); left-law: drawn on
    the tape from the distribution of the place before.
    restart: nodes of a second chain under the root, drawn on the tape from the last law that holds. Guesses behind a
    wrong one keep each other alive for many passes (an object that was rejected, on a plain background); the second
    chain is what a fresh start would guess.
    allowed: `[V]` bool, ids an initialisation may use.
    """

    window: int
    init: str
    allowed: Tensor
    row: int = 16
    restart: int = 0

    def __post_init__(self) -> None:
        if self.init not in INITIALISATIONS:
            raise InvalidArgument(f"init={self.init!r} is unknown; it must be one of {', '.join(INITIALISATIONS)}.")
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")
        self.restart = min(self.restart, self.window)
        self.choices = self.allowed.nonzero().squeeze(-1)
        places = torch.arange(self.window + 1, device=self.allowed.device)
        again = torch.where(places > 0, places + self.window, 0).clamp(max=self.window + self.restart)
        self.columns = torch.stack([places, again])  # of the window's chain and of the restart's
        self.lengths = torch.tensor([self.window, self.restart], device=self.allowed.device)

    @property
    def reach(self) -> int:
        return self.window

    @property
    def nodes(self) -> int:
        return self.window + self.restart

    def begin(self, prompts: list[Prompt]) -> Window:
        empty = torch.zeros(len(prompts), self.window, dtype=torch.long, device=self.allowed.device)
        return Window(empty, torch.zeros(len(prompts), 1, dtype=torch.long, device=self.allowed.device))

    def draft(self, state: State, drafts: Window, sampler: Sampler, tape: NoiseTape) -> Draft:
        filled = torch.where(self.fresh(drafts), self.permitted(self.fill(state, drafts, tape)), drafts.guesses)
        if not self.restart:
            return Draft.of_chain(filled)
        again = filled if drafts.ahead is None else self.permitted(self.drawn(state, drafts.ahead, tape))
        return Draft.of_chains([filled, again[:, : self.restart]])

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
        """Follow the chain that was accepted; every choice past it is the next guess of its own position."""
        rows = torch.arange(len(state), device=law.device)
        restarted = (verdict.path[:, 0] >= self.window).long()
        columns, length = self.columns[restarted], self.lengths[restarted]
        accepted = torch.tensor(verdict.accepted, device=law.device)
        counts = torch.tensor(verdict.counts, device=law.device)[:, None]
        places = torch.arange(self.window, device=law.device) + counts
        drafts.guesses = verdict.choices.gather(1, columns).gather(1, places.clamp(max=self.window))
        drafts.known = (length[:, None] + 1 - counts).clamp(min=0)
        drafts.edge = law[rows, columns[rows, length]]
        drafts.ahead = law[rows, columns[rows, accepted]]

    def select(self, drafts: Window, rows: list[int]) -> Window:
        laws = (None if law is None else law[rows] for law in (drafts.edge, drafts.ahead))
        return Window(drafts.guesses[rows], drafts.known[rows], *laws)

    def concat(self, drafts: list[Window]) -> Window:
        # a row that joins has no law yet: uniform logits draw from the tape alone
        def joined(name: str) -> Tensor:
            flat = self.allowed.float().log()
            laws = [(getattr(d, name), len(d.known)) for d in drafts]
            return torch.cat([flat.expand(rows, -1) if law is None else law for law, rows in laws])

        guesses, known = torch.cat([d.guesses for d in drafts]), torch.cat([d.known for d in drafts])
        return Window(guesses, known, joined("edge"), joined("ahead"))
