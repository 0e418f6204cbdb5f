"""What fills places of a Jacobi window that no pass has guessed yet.

random: any allowed id; left: the token before; above: the token one row up; left-law: drawn from the distribution of
the place before (Teng et al. 2024, arXiv 2410.01699, section 4.3: neighbours in a picture are alike).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument
from polydraft.core.state import State
from polydraft.core.stream import Noise
from polydraft.core.tape import uniform

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

    @property
    def flat(self) -> Tensor:
        """`[V]`: log of the uniform law over allowed ids."""
        return self.allowed.float().log().log_softmax(-1)

    def fill(self, state: State, guesses: Tensor, known: Tensor, edge: Tensor | None, noise: Noise) -> Tensor:
        """Ids `[B, W]` for every place; guesses `[B, W]` hold in the first `known` `[B, 1]`.

        edge: `[B, V]` log p behind the deepest guess, None before the first pass.
        """
        t = torch.tensor(state.generated, device=guesses.device)[:, None]
        t = t + torch.arange(guesses.shape[1], device=guesses.device)
        if self.name == "left-law" and edge is not None:
            return self.permitted((edge[:, None] + noise.window(state.generated, guesses.shape[1])).argmax(-1))
        if self.name == "above":
            return self.permitted(self.above(state, guesses, known, t))
        if self.name == "random" or edge is None:
            seeds = torch.tensor(noise.seeds, device=guesses.device)[:, None]
            return self.choices[(uniform(seeds, t) * len(self.choices)).long()]
        return self.permitted(torch.cat([state.roots(), guesses], 1).gather(1, known).expand_as(guesses))

    def law(self, filled: Tensor, edge: Tensor | None) -> Tensor:
        """Log of the law that `fill` drew `filled` `[B, W]` from, `[B, W, V]`: one-hot for copies."""
        if self.name == "left-law" and edge is not None:
            return edge[:, None].expand(-1, filled.shape[1], -1)
        if self.name == "above" or (self.name == "left" and edge is not None):
            shape = (*filled.shape, len(self.allowed))
            return torch.zeros(shape, device=filled.device).scatter_(-1, filled[..., None], 1.0).log()
        return self.flat.expand(*filled.shape, -1)

    def above(self, state: State, guesses: Tensor, known: Tensor, t: Tensor) -> Tensor:
        """The token `row` places back: committed, guessed, or filled by this very rule; the first row repeats left."""
        starts = torch.tensor(state.starts, device=guesses.device)[:, None]
        root = torch.tensor(state.generated, device=guesses.device)[:, None]
        last = torch.cat([state.roots(), guesses], 1).gather(1, known)
        back = t - self.row
        committed = state.tokens.gather(1, (starts + back).clamp(min=0))
        guessed = guesses.gather(1, (back - root).clamp(min=0))
        within = back - root < known
        filled = torch.where(back < root, committed, torch.where(within, guessed, last))
        return torch.where(back >= 0, filled, last)

    def permitted(self, ids: Tensor) -> Tensor:
        """Ids the mask allows; anything else (a prompt word in the first column) becomes the first allowed one."""
        return torch.where(self.allowed[ids], ids, self.choices[0])
