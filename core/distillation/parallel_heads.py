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

DEPTH_DECAY = 0.8  # weight of a depth relative to the one before it
KL_WEIGHT = 0.1  # weight of KL in `tv_and_kl_loss`; the rest is total variation
MAX_STARTS = 64  # drafts per sequence and training step, since each drafted position costs logits over the vocabulary


class MultiTokenStudent(Protocol):
    """Drafter network that predicts the hidden states of the next K positions in one forward pass."""

    num_positions: int  # K

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Return the K hidden states predicted after each of S starts, `[B, S, K, D]`.

        Args:
            hidden_states (Tensor): [B, L-1, D] last hidden states of the target.
            embeddings (Tensor): [B, L-1, D] embeddings of the tokens after them.
            starts (Tensor): [S] indices of `hidden_states` to draft after; start s predicts positions s + 1 … s + K.
        """


def sample_draft_starts(loss_mask: Tensor, num_positions: int, max_starts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose random positions to draft after, the same in all sequences of the batch.

    Args:
        loss_mask (Tensor): [B, L] bool, positions whose prediction of the next token enters the loss.
        num_positions (int): K, number of positions that are predicted after each start.
        max_starts (int): Largest number of starts.

    Returns:
        tuple[Tensor, Tensor, Tensor]: start positions [S], the positions [S, K] predicted after each of them, and a
            mask [B, S, K] of predictions that enter the loss.
    """
    # a start is possible where the first predicted position is in the loss mask of any sequence
    possible = loss_mask[:, 1:].any(0).nonzero().squeeze(-1)
    starts = possible[torch.randperm(len(possible), device=loss_mask.device)[:max_starts]].sort().values
    positions = starts[:, None] + torch.arange(1, num_positions + 1, device=loss_mask.device)
    clamped = positions.clamp(max=loss_mask.shape[1] - 1)  # positions past the end are not in the mask
    # a prediction counts if it and the first one of its start are in the loss mask of the sequence
    return starts, clamped, loss_mask[:, starts + 1][..., None] & loss_mask[:, clamped] & (positions == clamped)


def target_and_draft_log_probs(
    target: CausalTarget, student: MultiTokenStudent, examples: Examples, max_starts: int = MAX_STARTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities of target and student at the M drafted positions that enter the loss.

    Args:
        target (CausalTarget): Target; it gets no gradient.
        student (MultiTokenStudent): Heads or block drafter in training.
        examples (Examples): Sequences with their loss mask.
        max_starts (int): Largest number of positions to draft after, chosen at random.

    Returns:
        tuple[Tensor, Tensor, Tensor]: log p of the target and log q of the student, [M, V] each, and the depth [M] of
            every position in its draft, from 0.
    """
    hidden_states, embeddings = run_target(target, examples)
    embeddings = embeddings[:, 1:].float()  # of the token after each hidden state
    starts, positions, mask = sample_draft_starts(examples.loss_mask, student.num_positions, max_starts)
    with torch.no_grad():
        log_p = target.compute_logits(hidden_states[:, positions][mask]).float().log_softmax(-1)
    with mixed_precision(hidden_states.device):
        predicted = student.forward_all_starts(hidden_states[:, :-1].float(), embeddings, starts)[mask]
        log_q = target.compute_logits(predicted.to(hidden_states.dtype)).float().log_softmax(-1)
    return log_p, log_q, masked_depths(mask)


def masked_depths(mask: Tensor) -> Tensor:
    """Return the depth in its draft, from 0 to K - 1, of each of the M positions set in `mask` `[B, S, K]`, `[M]`."""
    return torch.arange(mask.shape[-1], device=mask.device).expand_as(mask)[mask]


def multi_token_cross_entropy(
    student: MultiTokenStudent, target: PreTrainedModel, hidden_states: Tensor, ids: Tensor, loss_mask: Tensor,
    max_starts: int = MAX_STARTS,
) -> Tensor:  # fmt: skip
    """Return the cross-entropy of the heads on the true tokens, for training a target together with its heads.

    Gradients reach the target's hidden states, but neither its embeddings nor its LM head.

    Args:
        student (MultiTokenStudent): The heads.
        target (PreTrainedModel): The target.
        hidden_states (Tensor): [B, L, D] last hidden states of the target.
        ids (Tensor): [B, L] token ids.
        loss_mask (Tensor): [B, L] bool, positions whose prediction of the next token enters the loss.
        max_starts (int): Largest number of positions to draft after, chosen at random.

    Returns:
        Tensor: mean in nats, in which depth d has the weight DEPTH_DECAY^d; a scalar.
    """
    embeddings = target.get_input_embeddings()(ids)[:, 1:].detach()
    starts, positions, mask = sample_draft_starts(loss_mask, student.num_positions, max_starts)
    mask = mask & (positions < ids.shape[1] - 1)  # the last position has no next token to predict
    predicted = student.forward_all_starts(hidden_states[:, :-1], embeddings, starts)[mask]
    logits = F.linear(predicted, target.get_output_embeddings().weight.detach())
    labels = ids[:, (positions + 1).clamp(max=ids.shape[1] - 1)][mask]  # clamped indices are not in the mask
    return decayed_mean(F.cross_entropy(logits.float(), labels, reduction="none"), masked_depths(mask))


def kl_loss(target: CausalTarget, student: MultiTokenStudent, examples: Examples) -> Tensor:
    """Return the loss of heads: mean KL(target || student) in nats, in which depth d has the weight DEPTH_DECAY^d."""
    log_p, log_q, depth = target_and_draft_log_probs(target, student, examples)
    return decayed_mean(kl_divergence(log_p, log_q), depth)


def tv_and_kl_loss(target: CausalTarget, student: MultiTokenStudent, examples: Examples) -> Tensor:
    """Return the loss of block drafters (SpeechSpec): 0.1 KL + 0.9 total variation, depth d weighing DEPTH_DECAY^d."""
    log_p, log_q, depth = target_and_draft_log_probs(target, student, examples)
    variation = (log_p.exp() - log_q.exp()).abs().sum(-1) / 2
    return decayed_mean(KL_WEIGHT * kl_divergence(log_p, log_q) + (1 - KL_WEIGHT) * variation, depth)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) in nats, `[M]`, for log probabilities `[M, V]`."""
    return F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)


def decayed_mean(loss: Tensor, depth: Tensor) -> Tensor:
    """Return the mean of `loss` `[M]` with weights DEPTH_DECAY^depth."""
    weight = DEPTH_DECAY ** depth.float()
    return (weight * loss).sum() / weight.sum()
