"""An independent small LM as drafter: it reads ids alone.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); ranked with the shared noise, its
candidates agree with the target as often as q does (arXiv 2408.07978).
"""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.grow import GrowingDrafter
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.target import CausalTarget


class LMDrafter(GrowingDrafter):
    """model: a causal decoder over the target's vocabulary."""

    def __init__(self, model: PreTrainedModel, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        self.own = CausalTarget(model, capacity=target.capacity, guidance_scale=target.guidance_scale, narrowest=1)
        super().__init__(self.own.network, target, plan, rank)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return tokens

    def head(self, features: Tensor) -> Tensor:
        return self.own.head(features)

    def prompt(self, ids: Tensor, features: Tensor) -> tuple[Tensor, int]:
        return ids, 0
