"""Drafters of latents: chains of a small network's own latents, and what fills a Jacobi window.

A network drafter of ids (`core.drafters.network`) reads and continues; here its hidden states go into a chain instead
of a vocabulary. On the tape its chain draws the tape's noise, so that it says what the target will say wherever their
means are near; off it, how each latent came about goes with the draft, for the coupling to follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.draft import Draft, most
from polydraft.core.drafters.base import Outcome
from polydraft.core.drafters.network import NetworkDrafter
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.drafters.tree import TreeState
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.latent.law import Chain, LatentSampler, Walk
from polydraft.core.latent.target import Head, LatentTarget, nothing
from polydraft.core.noise import Noise
from polydraft.core.state import State
from polydraft.core.target import Prefill


@dataclass(frozen=True)
class Newest:
    """The one node that a chain goes on from: latents `[B, 1, C]`, under the only node before it."""

    newest: Tensor

    @property
    def above(self) -> Tensor:
        return torch.zeros(self.newest.shape[:2], dtype=torch.long, device=self.newest.device)


class LatentChainDrafter:
    """A chain of `depth` latents a pass.

    chain: what draws from the network's hidden states; looks: at how many steps its head is asked, 0 is all.
    """

    def __init__(self, network: NetworkDrafter, chain: Chain, depth: int, looks: int = 0) -> None:
        whose: Any = network.target
        own, wanted = ((one.size, one.start, *one.deviations) for one in (chain, whose.chain))
        if own != wanted:
            raise UnsupportedMethod(
                "this drafter's chain has other noise than its target's, and its drafts could not be verified; use a "
                "drafter with the target's coordinates and levels of noise."
            )
        self.network, self.sampler, self.depth, self.looks = network, LatentSampler(chain), depth, looks

    def begin(self, own: TreeState | None, seen: Prefill) -> TreeState:
        return self.network.begin(own, seen)

    def observe(self, state: State, own: TreeState, outcome: Outcome) -> None:
        self.network.observe(state, own, outcome)

    def draft(self, state: State, own: TreeState, sampler: Any, noise: Noise) -> Draft:
        new = most(own.counts, own.tokens.shape[1])
        said = self.network.read(state, own, own.tokens[:, :new], own.features[:, :, :new])
        drawn: list[Tensor] = []
        walks: list[Walk] = []
        for level in range(self.depth):
            if drawn:
                said = self.network.onward(said, own, Newest(drawn[-1]))  # type: ignore[arg-type]
            hidden = said.features.unflatten(0, (len(state), -1)).transpose(1, 2)
            law = self.sampler(hidden, state.settings)
            if noise.on_tape:
                drawn.append(law.drawn(noise.at(state.generated[:, None] + level), self.looks))
            else:
                walks.append(law.walked(law.normals(noise), self.looks))
                drawn.append(walks[-1].latents)
        q = None if noise.on_tape else Walk.behind_each_other(walks)
        return Draft.of_chain(torch.cat(drawn, 1), passes=self.depth, q=q)


class LatentLMDrafter(NetworkDrafter):
    """An independent small model with a head of its own, which reads the target's prompts and latents."""

    def __init__(self, model: PreTrainedModel, head: Head, target: LatentTarget, plan: Plan, rank: Rank) -> None:
        self.own = LatentTarget(model, head, begin=target.begin, guided=target.branches > 1)
        super().__init__(self.own.network, target, plan, rank)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.own.embed(tokens).repeat_interleave(features.shape[1], 0)

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        return seen.ids, seen.lengths - 1

    def head(self, features: Tensor) -> Tensor:
        raise NotImplementedError("latents have no logits")


@dataclass
class LeftLaw:
    """Fills a Jacobi window of latents: the law of the place before, with every place's own noise."""

    chain: Chain
    looks: int = 1

    def blank(self, seen: Prefill, window: int) -> tuple[Tensor, Tensor]:
        rows, branches, _, width = seen.features.shape
        return nothing(rows, window, self.chain.size, seen.features.device), seen.features.new_zeros(
            rows, branches, width
        )

    def fill(self, state: State, guesses: Tensor, known: Tensor, edge: Tensor, noise: Noise) -> Tensor:
        """edge: `[B, R, D]`, the hidden state behind the deepest guess."""
        t = state.generated[:, None] + torch.arange(guesses.shape[1], device=guesses.device)
        given = edge[:, None].expand(-1, guesses.shape[1], -1, -1)
        return LatentSampler(self.chain)(given, state.settings).drawn(noise.at(t), self.looks)
