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
from polydraft.core.drafters.base import Judged
from polydraft.core.drafters.window import WindowDrafter
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.stream import Noise
from polydraft.core.target import Prefill, Prompt


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
class JacobiDrafter(WindowDrafter):
    """restart: forget the window where its first guess was wrong and a fresh one would have been right.

    Guesses behind a wrong one keep each other alive for many passes (an object that was rejected, on a plain
    background).
    """

    restart: bool = True

    def begin(self, prompts: list[Prompt], seen: Prefill) -> Window:
        known = torch.zeros(len(prompts), 1, dtype=torch.long, device=seen.features.device)
        return Window(known.expand(-1, self.window), known, known.bool(), known[:, 0] - 1)

    def draft(self, state: State, drafts: Window, sampler: Sampler, noise: Noise) -> Draft:
        fresh = torch.arange(self.window, device=drafts.known.device) >= drafts.known
        fill = self.initial.fill(state, drafts.guesses, drafts.known, drafts.edge, noise)
        filled = torch.where(fresh, fill, drafts.guesses)
        if self.restart and drafts.ahead is not None:
            again = (drafts.ahead[:, None] + noise.window(state.generated, self.window)).argmax(-1)
            filled = torch.where(drafts.restart, again, filled)
            drafts.again = again[:, 0]
        return Draft.of_chain(filled)

    def observe(self, state: State, drafts: Window, judged: Judged) -> None:
        """Shift by what was committed; every choice past it is the next guess of its own position."""
        law, verdict = judged.law, judged.verdict
        rows = torch.arange(len(state), device=law.device)
        accepted = torch.tensor(verdict.accepted, device=law.device)
        counts = torch.tensor(verdict.counts, device=law.device)[:, None]
        places = torch.arange(self.window, device=law.device) + counts
        drafts.guesses = verdict.choices.gather(1, places.clamp(max=self.window))
        drafts.known = (self.window + 1 - counts).clamp(min=0)
        drafts.edge, drafts.ahead = law[:, -1], law[rows, accepted]
        drafts.restart = ((accepted == 0) & (drafts.again == verdict.choices[:, 0]))[:, None]
