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
from torch import Tensor, nn

from polydraft.core.model.precision import is_bf16_faster
from polydraft.core.target.causal import CausalTarget


class TrainingHead(nn.Module):
    """LM head in the dtype whose large products are fastest, for hidden states of any dtype.

    Args:
        head (nn.Module): LM head in the dtype of the target.
        device (torch.device): Its device.
    """

    def __init__(self, head: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.dtype = torch.float32 if not is_bf16_faster(device) else next(head.parameters()).dtype
        self.head = head.to(self.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the logits `[..., K]` of hidden states `[..., D]`."""
        logits: Tensor = self.head(hidden_states.to(self.dtype))
        return logits


def restrict_logits(target: CausalTarget, token_ids: Tensor) -> CausalTarget:
    """Return a view of a target that computes the logits of some token ids alone.

    Args:
        target (CausalTarget): Target to distil from; it is not changed.
        token_ids (Tensor): [K] token ids.
    """
    view, head = copy(target), TrainingHead(target.restrict_lm_head(token_ids), target.device)
    view.compute_logits = partial(target.compute_logits, lm_head=head)  # type: ignore[method-assign]
    return view
