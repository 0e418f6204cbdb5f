"""A target whose tokens are latents: a causal backbone that reads them, and a head that draws the next one.

    target = LatentTarget(backbone, head, begin=boi, guided=True)

A prompt is ids, the last of which begins the latents. In place of latents it has nan: a token of nan is that last id.
So is an infinite one, or one so large that the backbone would overflow, which nobody says but a drafter: it must not
spread through keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.errors import InvalidArgument
from polydraft.core.latent.law import Chain
from polydraft.core.law.sampling import OFF, Sampling, Settings
from polydraft.core.model.cache import blocks
from polydraft.core.model.kernels import prepare
from polydraft.core.rows import places
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill, Prompt

LARGEST = 1e12  # squares of what is read must stay finite
IDS_ONLY = ("top_k", "top_p", "min_p", "repetition_penalty", "min_tokens", "repetition_aware")


class Head(Chain, Protocol):
    """A chain with weights, an `nn.Module`, which also says what the backbone reads for a latent."""

    def embed(self, latents: Tensor) -> Tensor:
        """`[..., C]` → `[..., D]`."""

    def eval(self) -> Any:
        """As of `nn.Module`."""


@dataclass(frozen=True)
class LatentPrefill(Prefill):
    """size: coordinates of a latent."""

    size: int = 0

    @property
    def roots(self) -> Tensor:
        """`[B, 1, C]`: nothing has been drawn."""
        return nothing(len(self.lengths), 1, self.size, self.lengths.device)


class LatentTarget(CausalTarget):
    """begin: the id that every prompt ends with. Latents are float32, whatever type the weights have."""

    def __init__(
        self, model: PreTrainedModel, head: Head, *, begin: int, guided: bool = False, context: int | None = None
    ) -> None:
        super().__init__(model, guided=guided, context=context)
        prepare(head.eval())  # linear layers, which is all that costs
        self.chain, self.begin = head, begin
        first = torch.tensor([begin], device=self.device)
        with torch.inference_mode():
            self.first = self.model.get_input_embeddings()(first)  # [1, D]

    def embed(self, tokens: Tensor) -> Tensor:
        """Latents `[..., C]`, or ids of prompts `[...]` → `[..., D]`."""
        if not tokens.is_floating_point():
            return super().embed(tokens)
        none = ~sane(tokens)[..., None]
        return torch.where(none, self.first, self.chain.embed(tokens.masked_fill(none, 0)))

    def inputs(self, state: State, tokens: Tensor) -> Tensor:
        return self.embed(tokens).repeat_interleave(self.branches, 0)

    def outputs(self, features: Tensor, settings: Settings, t: Tensor) -> Tensor:
        return features.transpose(1, 2)

    def some(self, count: int) -> Tensor:
        across = places(self.chain.size, self.device)
        return (places(count, self.device)[:, None] * 1.7 + across * 0.9).sin()

    def empty(self) -> State:
        state = super().empty()
        state.tokens = nothing(0, 0, self.chain.size, self.device)
        return state

    def refuse(self, prompts: list[Prompt]) -> None:
        for prompt in prompts:
            check(prompt.sampling)
        super().refuse(prompts)

    def written(self, ids: Tensor) -> Tensor:
        return nothing(len(ids), blocks(ids.shape[1]), self.chain.size, self.device)

    def read(self, state: State, prompts: list[Prompt], ids: Tensor, lengths: Tensor, rows: slice) -> Prefill:
        seen = super().read(state, prompts, ids, lengths, rows)
        return LatentPrefill(seen.ids, seen.lengths, seen.features, size=self.chain.size)


def check(sampling: Sampling) -> None:
    """Raise InvalidArgument for settings that mean nothing where latents are drawn."""
    if sampling.greedy:
        raise InvalidArgument(
            "temperature=0 is not possible: a latent has no likeliest value that could be picked; use a temperature "
            "above 0."
        )
    if asked := [name for name in IDS_ONLY if getattr(sampling, name) != getattr(OFF, name)]:
        raise InvalidArgument(
            f"{asked[0]} chooses among ids and this model draws latents; leave it out, or use temperature or "
            "guidance_scale."
        )


def sane(tokens: Tensor) -> Tensor:
    """`[…]` bool: which tokens `[…, C]` are latents that a model can read."""
    return (tokens.abs() < LARGEST).all(-1)


def nothing(rows: int, length: int, size: int, device: torch.device) -> Tensor:
    """Tokens `[rows, length, size]` of which none is a latent."""
    return torch.full((rows, length, size), torch.nan, device=device)
