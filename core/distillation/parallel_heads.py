"""Distillation of drafters that predict several tokens at once: heads and block drafters.

    distil(partial(kl_loss, target), MedusaHeads(target.config), source, minutes=10, folder=out)
    distil(partial(tv_and_kl_loss, target), BlockModel(target.config), source, minutes=10, folder=out)
    loss + 0.3 * multi_token_cross_entropy(heads, model, hidden_states, ids, loss_mask)   # the target is trained, too

All learn the target distribution at every depth, on sequences that the target generated (Cai et al. 2024, Medusa, arXiv
2401.10774, section 2.2). Deeper positions are harder and are reached less often, so they count less. Heads that are
trained with their target also teach it to hold what they need (Gloeckle et al. 2024, arXiv 2404.19737).
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.model.precision import mixed_precision
from polydraft.core.target.causal import CausalTarget

DEPTH_DECAY = 0.8  # a deeper position counts less
KL_WEIGHT = 0.1  # weight of KL in `tv_and_kl_loss`; the rest is total variation
MAX_STARTS = 64  # drafts per sequence and step, since every position of every draft costs logits over the vocabulary


class MultiTokenStudent(Protocol):
    """Model that predicts `num_positions` hidden states ahead; see `MultiTokenModel`."""

    num_positions: int

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor: ...


def sample_starts(loss_mask: Tensor, num_positions: int, max_starts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose random entries to draft after.

    Args:
        loss_mask (Tensor): [B, L] bool, positions whose next token counts.
        num_positions (int): K, number of positions that are predicted after each entry.
        max_starts (int): Largest number of entries.

    Returns:
        tuple[Tensor, Tensor, Tensor]: entries [S], columns [S, K] that are predicted, and a mask [B, S, K] of those
            that count.
    """
    # possible roots: positions whose own next token, or the one before it, counts
    possible = loss_mask[:, 1:].any(0).nonzero().squeeze(-1)
    starts = possible[torch.randperm(len(possible), device=loss_mask.device)[:max_starts]].sort().values
    columns = starts[:, None] + torch.arange(1, num_positions + 1, device=loss_mask.device)
    inside = columns.clamp(max=loss_mask.shape[1] - 1)
    return starts, inside, loss_mask[:, starts + 1][..., None] & loss_mask[:, inside] & (columns == inside)


def target_and_draft_log_probs(
    target: CausalTarget, student: MultiTokenStudent, examples: Examples, max_starts: int = MAX_STARTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p and log q `[M, V]` of drafts after at most `max_starts` entries, and the depth `[M]` of each."""
    hidden_states, embeddings = run_target(target, examples)
    embeddings = embeddings[:, 1:].float()
    starts, columns, mask = sample_starts(examples.loss_mask, student.num_positions, max_starts)
    with torch.no_grad():
        log_p = target.compute_logits(hidden_states[:, columns][mask]).float().log_softmax(-1)
    with mixed_precision(hidden_states.device):
        predicted = student.forward_all_starts(hidden_states[:, :-1].float(), embeddings, starts)[mask]
        log_q = target.compute_logits(predicted.to(hidden_states.dtype)).float().log_softmax(-1)
    return log_p, log_q, depth_of_entries(mask)


def depth_of_entries(mask: Tensor) -> Tensor:
    """Return the depth `[M]` of every set entry of `mask` `[B, S, K]`."""
    return torch.arange(mask.shape[-1], device=mask.device).expand_as(mask)[mask]


def multi_token_cross_entropy(
    student: MultiTokenStudent, target: PreTrainedModel, hidden_states: Tensor, ids: Tensor, loss_mask: Tensor,
    max_starts: int = MAX_STARTS,
) -> Tensor:  # fmt: skip
    """Return the decayed mean cross-entropy of the true tokens, to train a target together with its heads.

    Gradients reach the hidden states, but neither the embeddings nor the LM head.

    Args:
        student (MultiTokenStudent): The heads.
        target (PreTrainedModel): The target.
        hidden_states (Tensor): [B, L, D] last hidden states of the target.
        ids (Tensor): [B, L] token ids.
        loss_mask (Tensor): [B, L] bool, positions whose next token counts.
        max_starts (int): Drafts per sequence.

    Returns:
        Tensor: nats.
    """
    embeddings = target.get_input_embeddings()(ids)[:, 1:].detach()
    starts, columns, mask = sample_starts(loss_mask, student.num_positions, max_starts)
    mask = mask & (columns < ids.shape[1] - 1)
    predicted = student.forward_all_starts(hidden_states[:, :-1], embeddings, starts)[mask]
    logits = F.linear(predicted, target.get_output_embeddings().weight.detach())
    labels = ids[:, (columns + 1).clamp(max=ids.shape[1] - 1)][mask]
    return decayed_mean(F.cross_entropy(logits.float(), labels, reduction="none"), depth_of_entries(mask))


def kl_loss(target: CausalTarget, student: MultiTokenStudent, examples: Examples) -> Tensor:
    """Return the mean KL(target || student) in nats, depth d counting DEPTH_DECAY^d: the loss of heads."""
    log_p, log_q, depth = target_and_draft_log_probs(target, student, examples)
    return decayed_mean(kl_divergence(log_p, log_q), depth)


def tv_and_kl_loss(target: CausalTarget, student: MultiTokenStudent, examples: Examples) -> Tensor:
    """Return 0.1 KL + 0.9 total variation with the same decay: the loss of block drafters (SpeechSpec)."""
    log_p, log_q, depth = target_and_draft_log_probs(target, student, examples)
    variation = (log_p.exp() - log_q.exp()).abs().sum(-1) / 2
    return decayed_mean(KL_WEIGHT * kl_divergence(log_p, log_q) + (1 - KL_WEIGHT) * variation, depth)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) `[M]` of log probabilities `[M, V]`."""
    return F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)


def decayed_mean(loss: Tensor, depth: Tensor) -> Tensor:
    """Return the mean of `loss` `[M]` with weights DEPTH_DECAY^depth."""
    weight = DEPTH_DECAY ** depth.float()
    return (weight * loss).sum() / weight.sum()
