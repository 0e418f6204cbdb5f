"""Distillation of early-exit adapters.

    adapter = KangarooAdapter(target.config).attach(target.model)
    distil(partial(kl_loss, target), adapter, source, minutes=10, folder=out)

KL to the target distribution (Liu et al. 2024, Kangaroo, arXiv 2404.18911, section 3.1, uses the cross-entropy with it,
which is the same up to a constant).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.drafters.network.early_exit import KangarooAdapter
from polydraft.core.model.precision import mixed_precision
from polydraft.core.target.causal import CausalTarget


def target_and_draft_log_probs(
    target: CausalTarget, student: KangarooAdapter, examples: Examples
) -> tuple[Tensor, Tensor]:
    """Return log probabilities of target and student at the M positions in the loss mask.

    Args:
        target (CausalTarget): Target, whose LM head the student uses; its own hidden states get no gradient.
        student (KangarooAdapter): The target's first layers with the adapter in training.
        examples (Examples): Sequences with their loss mask.

    Returns:
        tuple[Tensor, Tensor]: log p of the target and log q of the student, [M, V] each.
    """
    hidden_states, embeddings = run_target(target, examples)
    with torch.no_grad():
        p = target.compute_logits(hidden_states[examples.loss_mask]).float().log_softmax(-1)
    with mixed_precision(hidden_states.device, has_bf16_layers=hidden_states.dtype == torch.bfloat16):
        outputs = student.backbone(inputs_embeds=embeddings, **examples.layer_kwargs(embeddings.dtype))
        student_states = outputs.last_hidden_state[examples.loss_mask]
        q = target.compute_logits(student_states.to(hidden_states.dtype))
    return p, q.float().log_softmax(-1)


def kl_loss(target: CausalTarget, student: KangarooAdapter, examples: Examples) -> Tensor:
    """Return the mean KL(target || student) in nats over the positions in the loss mask, a scalar."""
    p, q = target_and_draft_log_probs(target, student, examples)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")
