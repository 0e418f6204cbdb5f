"""Distillation over the part of the vocabulary that a drafter may draft.

    loss = partial(kl_loss, restrict_logits(target, token_ids))

Losses then compare the distributions of target and student given that the token is in the part. On sequences of the
target whose other tokens are excluded from the loss, a position counts in the mean by the target's probability of the
part. With large vocabularies most of the time of a step goes into logits, so that more steps fit into the same time.
"""

from __future__ import annotations

from copy import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.model.linear import dense_weight
from polydraft.core.model.precision import is_bf16_faster
from polydraft.core.target.causal import CausalTarget


class TrainingHead(nn.Module):
    """LM head in the dtype whose large products are fastest, for hidden states of any dtype.

    Args:
        head (nn.Linear): LM head in the dtype of the target.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        weight = dense_weight(head)
        dtype = weight.dtype if is_bf16_faster(weight.device) else torch.float32
        self.register_buffer("weight", weight.to(dtype))
        self.register_buffer("bias", None if head.bias is None else head.bias.detach().to(dtype))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the logits `[..., K]` of hidden states `[..., D]`."""
        return F.linear(hidden_states.to(self.weight.dtype), self.weight, self.bias)


def restrict_logits(target: CausalTarget, token_ids: Tensor) -> CausalTarget:
    """Return a view of a target that computes the logits of some token ids alone.

    Args:
        target (CausalTarget): Target to distil from; it is not changed.
        token_ids (Tensor): [K] token ids.
    """
    view, head = copy(target), TrainingHead(target.restrict_lm_head(token_ids))
    view.compute_logits = partial(target.compute_logits, lm_head=head)  # type: ignore[method-assign]
    return view
