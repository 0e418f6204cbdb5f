"""Distillation over the part of the vocabulary that a drafter may draft.

    loss = partial(kl_loss, restrict_logits(target, token_ids))

Losses then compare the distributions of target and student given that the token is in the part. On sequences of the
target whose other tokens are excluded from the loss, a position counts in the mean by the target's probability of the
part. With large vocabularies most of the time of a step goes into logits, so that more steps fit into the same time.
"""

from __future__ import annotations

from copy import copy
from functools import partial

from torch import Tensor

from polydraft.core.target.causal import CausalTarget


def restrict_logits(target: CausalTarget, token_ids: Tensor) -> CausalTarget:
    """Return a view of a target that computes the logits of some token ids alone.

    Args:
        target (CausalTarget): Target to distil from; it is not changed.
        token_ids (Tensor): [K] token ids.
    """
    view, head = copy(target), target.restrict_lm_head(token_ids)
    view.compute_logits = partial(target.compute_logits, lm_head=head)  # type: ignore[method-assign]
    return view
