"""Drafters of latents: chains of a small network's own latents, and what fills a Jacobi window.

A network that drafts ids (`core.drafters.reading`) reads and continues; here its hidden states go into a chain
instead of a vocabulary. On the tape its chain draws the tape's noise, so that it says what the target will say
wherever their means are near; off it, how each latent came about goes with the draft, for the coupling to follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.draft import Draft, agreed, most
from polydraft.core.drafters.base import Outcome
from polydraft.core.drafters.jacobi.window import behind
from polydraft.core.drafters.network.reading import NetworkReader, ReadState
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.latent.law import LatentSampler, Walk
from polydraft.core.latent.target import Head, LatentTarget, nothing
from polydraft.core.law.noise import Noise
from polydraft.core.rows import places
from polydraft.core.state import State
from polydraft.core.target import Prefill


@dataclass
class LatentChainDrafter:
    """A chain of `depth` latents a pass.

    reader: the network whose hidden states say what comes next. sampler: laws of what it says. Raises UnsupportedMethod
    for a chain of other noise than the target's.
    """

    reader: NetworkReader
    sampler: LatentSampler
    depth: int

    def __post_init__(self) -> None:
        chains: Any = (self.sampler, self.reader.target)
        own, wanted = ((one.size, one.start, *one.deviations) for one in (each.chain for each in chains))
        if own != wanted:
            raise UnsupportedMethod(
                "this drafter's chain has other noise than its target's, and its drafts would hardly ever be kept; use "
                "a drafter with the target's coordinates and levels of noise."
            )

    def begin(self, own: ReadState | None, seen: Prefill) -> ReadState:
        cache, cached = self.reader.remember(None if own is None else own.cache, seen)
        return ReadState.begun(own, cache, cached, seen)

    def observe(self, state: State, own: ReadState, outcome: Outcome) -> None:
        own.observe(outcome)

    def draft(self, state: State, own: ReadState, sampler: Any, noise: Noise) -> Draft:
        deepest = self.reader.depth_within_context(own)
        if deepest is not None and agreed(deepest <= 0):
            return Draft.empty(own.tokens)
        new = most(own.counts, own.tokens.shape[1])
        said = self.reader.read(state, own, own.tokens[:, :new], own.features[:, :, :new], self.depth)
        above = torch.zeros_like(own.counts)[:, None]  # the one node that a chain goes on from
        drawn: list[Tensor] = []
        walks: list[Walk] = []
        for level in range(self.depth):
            if drawn:
                said = self.reader.onward(said, own, drawn[-1], above)
            hidden = said.features.unflatten(0, (len(state), -1)).transpose(1, 2)
            law = self.sampler(hidden, state.settings)
            if noise.on_tape:
                drawn.append(law.drawn(noise.at(state.generated[:, None] + level)))
            else:
                walks.append(law.walked(law.normals(noise)))
                drawn.append(walks[-1].latents)
        q = None if noise.on_tape else Walk.behind_each_other(walks)
        known = None if deepest is None else places(self.depth, deepest.device) < deepest[:, None]
        return Draft.of_chain(torch.cat(drawn, 1), known, passes=self.depth, q=q)


class LatentLMReader(NetworkReader):
    """An independent small model with a head of its own, which reads the target's prompts and latents."""

    def __init__(self, model: PreTrainedModel, head: Head, target: LatentTarget) -> None:
        self.own = LatentTarget(model, head, begin=target.begin, guided=target.branches > 1)
        if self.own.held < target.held:
            raise UnsupportedMethod(
                f"this drafter reads prompts of {self.own.held} ids and its target writes {target.held}; use a drafter "
                "with the target's words."
            )
        super().__init__(self.own.network, target)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.own.embed(tokens).repeat_interleave(features.shape[1], 0)

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        return seen.ids, seen.lengths - 1


@dataclass
class LeftLaw:
    """Fills a Jacobi window of latents: the law of the place before, with every place's own noise.

    size: numbers a latent. looks: at how many steps of a chain the head is asked.
    """

    size: int
    looks: int = 1

    def blank(self, seen: Prefill, window: int) -> tuple[Tensor, Tensor]:
        rows, branches, _, width = seen.features.shape
        return nothing(rows, window, self.size, seen.features.device), seen.features.new_zeros(rows, branches, width)

    def fill(
        self, state: State, guesses: Tensor, known: Tensor, edge: Tensor, sampler: LatentSampler, noise: Noise
    ) -> Tensor:
        """edge: `[B, R, D]`, the hidden state behind the deepest guess."""
        return behind(edge, replace(sampler, looks=self.looks), state, guesses.shape[1], noise)
