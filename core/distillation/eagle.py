"""Distillation of EAGLE heads.

    distil(partial(hidden_state_and_kl_loss, target), EagleModel(target.config), source, minutes=10, folder=out)

Smooth L1 on hidden states and KL on the target distribution (Li et al. 2024, EAGLE, arXiv 2401.15077, section 4.2),
here with more weight on the distribution. While drafting, the head runs on its own predictions, so it is trained on
them too: every further pass takes the hidden states that the pass before predicted (Zhang et al. 2024, HASS, arXiv
2408.15766, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.drafters.network.base import move_to_front
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.model.precision import mixed_precision
from polydraft.core.target.causal import CausalTarget

NUM_UNROLLED_PASSES = 3  # passes of the head on its own predictions, as in drafts of this depth
PASS_DECAY = 0.8  # weight of a pass relative to the one before it
HIDDEN_STATE_WEIGHT = 0.1  # weight of the hidden-state loss; the KL loss has 1


def unrolled_predictions(
    target: CausalTarget, student: EagleModel, examples: Examples
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Run the head over whole sequences again and again, each time on the hidden states it predicted before.

    Args:
        target (CausalTarget): Target; it gets no gradient.
        student (EagleModel): EAGLE head in training.
        examples (Examples): Sequences, with M positions in the loss mask.

    Yields:
        tuple[Tensor, Tensor, Tensor]: after every pass log p of the target and log q of the student, [M, V] each, and
            the smooth L1 loss of the predicted hidden states, a scalar; endless.
    """
    with torch.no_grad():
        hidden_states, embeddings = run_target(target, examples)
        # Input i joins hidden state i and the embedding of token i + 1, and predicts hidden state i + 1. So labels,
        # embeddings and loss mask are shifted by one.
        target_states, labels = hidden_states[:, :-1].float(), hidden_states[:, 1:]
        embeddings, loss_mask = embeddings[:, 1:].float(), examples.loss_mask[:, 1:]
        placeholder_mask = examples.image_placeholder_mask
        image_mask = None if placeholder_mask is None else placeholder_mask[examples.ids[:, 1:]]
        if image_mask is not None and student.image_mode == "dropped":
            # this head processes no image placeholders: text positions come first, in order, placeholders last, where
            # they count as padding
            target_states, embeddings, labels, loss_mask = move_to_front(
                ~image_mask, target_states, embeddings, labels, loss_mask
            )
        labels = labels[loss_mask]
        log_p = target.compute_logits(labels).float().log_softmax(-1)
    inputs = target_states  # [B, L-1, D]
    while True:
        with mixed_precision(examples.ids.device):
            layer_inputs = student.layer_inputs(embeddings, inputs, image_mask)
            kwargs = examples.layer_kwargs(layer_inputs.dtype)
            predicted = student.layer(inputs_embeds=layer_inputs, **kwargs).last_hidden_state
            logits = target.compute_logits(predicted[loss_mask].to(hidden_states.dtype))
            log_q = logits.float().log_softmax(-1)
        yield log_p, log_q, F.smooth_l1_loss(predicted[loss_mask].float(), labels.float())
        # Input i + 1 of the next pass is output i of this one where that is in the loss mask, and elsewhere, as in the
        # prompt, the target's hidden state. Input 0, which nothing predicts, stays the target's.
        inputs = torch.where(loss_mask[:, :-1, None], predicted[:, :-1].float(), target_states[:, 1:])
        inputs = torch.cat([target_states[:, :1], inputs], 1)


def hidden_state_and_kl_loss(target: CausalTarget, student: EagleModel, examples: Examples) -> Tensor:
    """Return the loss of an EAGLE head, a scalar: KL(target || student) in nats plus a loss of its hidden states.

    It is a weighted mean over NUM_UNROLLED_PASSES passes, each on the predictions of the one before, as in a draft of
    that depth. Pass i has the weight PASS_DECAY^i, and in a pass the hidden-state loss has HIDDEN_STATE_WEIGHT.
    """
    total, total_weight = torch.zeros((), device=examples.ids.device), 0.0
    passes = islice(unrolled_predictions(target, student, examples), NUM_UNROLLED_PASSES)
    for pass_index, (log_p, log_q, hidden_loss) in enumerate(passes):
        loss = F.kl_div(log_q, log_p, log_target=True, reduction="batchmean") + HIDDEN_STATE_WEIGHT * hidden_loss
        weight = PASS_DECAY**pass_index
        total, total_weight = total + weight * loss, total_weight + weight
    return total / total_weight


def target_and_draft_log_probs(target: CausalTarget, student: EagleModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Return log p of the target and log q of the head's first pass at the M positions in the loss mask, `[M, V]`."""
    log_p, log_q, _ = next(unrolled_predictions(target, student, examples))
    return log_p, log_q
