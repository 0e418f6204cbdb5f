"""An independent small LM as drafter: it reads ids alone.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); ranked with the shared noise, its
candidates agree with the target as often as q does (arXiv 2408.07978). Where ids of a prompt stand for something that
only the target can see (a picture), they are dropped: the drafter reads the text as if nothing had stood between
(Gagrani et al. 2024, "On Speculative Decoding for Multimodal Large Language Models", arXiv 2404.08856).
"""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.grow import GrowingDrafter
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.target import CausalTarget, Prefill


class LMDrafter(GrowingDrafter):
    """model: a causal decoder over the target's vocabulary. dropped: `[V]` bool, ids of prompts it does not read."""

    def __init__(
        self, model: PreTrainedModel, target: CausalTarget, plan: Plan, rank: Rank, dropped: Tensor | None = None
    ) -> None:
        self.own = CausalTarget(model, capacity=target.capacity, guidance_scale=target.guidance_scale, narrowest=1)
        super().__init__(self.own.network, target, plan, rank)
        self.dropped = dropped

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return tokens

    def head(self, features: Tensor) -> Tensor:
        return self.own.head(features)

    def prompt(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[Tensor, Tensor]:
        if self.dropped is None:
            return ids, lengths - 1
        dropped = self.dropped[ids]
        order = dropped.int().argsort(dim=1, stable=True)  # what is read comes first, in its order
        beyond = dropped.cumsum(1).gather(1, lengths.view(-1, 1) - 1)
        return ids.gather(1, order), lengths - 1 - beyond.view_as(lengths)
