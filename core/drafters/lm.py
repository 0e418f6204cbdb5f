"""An independent small LM as drafter: it reads ids alone.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); ranked with the shared noise, its
candidates agree with the target as often as q does (arXiv 2408.07978). Where ids of a prompt stand for something that
only the target can see (a picture), they are dropped: the drafter reads the text as if nothing had stood between
(Gagrani et al. 2024, "On Speculative Decoding for Multimodal Large Language Models", arXiv 2404.08856).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.grow import GrowingDrafter
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.drafters.translation import Translation
from polydraft.core.drafters.unread import counted, in_front
from polydraft.core.target import CausalTarget, Prefill


class IndependentLM(NamedTuple):
    """A small causal decoder, and how its ids relate to the target's if they are others."""

    model: PreTrainedModel
    translation: Translation | None = None


class LMDrafter(GrowingDrafter):
    """dropped: `[V]` bool, ids of prompts that it does not read."""

    def __init__(
        self, model: PreTrainedModel, target: CausalTarget, plan: Plan, rank: Rank, dropped: Tensor | None = None,
        translation: Translation | None = None,
    ) -> None:  # fmt: skip
        self.own = CausalTarget(model, capacity=target.capacity, guidance_scale=target.guidance_scale, narrowest=1)
        super().__init__(self.own.network, target, plan, rank)
        self.dropped = dropped
        self.translation = translation

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.own_ids(tokens)

    def own_ids(self, ids: Tensor) -> Tensor:
        return ids if self.translation is None else self.translation.read[ids]

    def head(self, features: Tensor) -> Tensor:
        return self.own.head(features)

    def logits(self, said: Tensor, level: int, width: int) -> Tensor:
        own = super().logits(said, level, width)
        return own if self.translation is None else self.translation.heard(own)

    def prompt(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[Tensor, Tensor]:
        entries = lengths - 1
        if self.dropped is not None:
            dropped = self.dropped[ids]
            entries = entries - counted(dropped, lengths - 1)
            (ids,) = in_front(~dropped, ids)
        return self.own_ids(ids), entries
