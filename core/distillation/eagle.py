"""Distillation of EAGLE heads.

    distil(partial(hidden_state_and_kl_loss, target), EagleModel(target.config), source, minutes=10, folder=out)

Smooth L1 on hidden states and KL on the target distribution (Li et al. 2024, EAGLE, arXiv 2401.15077, section 4.2),
here with more weight on the distribution. While drafting, the head runs on its own predictions, so it is trained on
them too: every further turn takes the hidden states that the turn before predicted (Zhang et al. 2024, HASS, arXiv
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

NUM_TURNS = 3
TURN_DECAY = 0.8  # a later turn counts less
HIDDEN_STATE_WEIGHT = 0.1  # weight of the hidden-state loss; the KL loss has 1


def training_turns(
    target: CausalTarget, student: EagleModel, examples: Examples
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for every turn log p and log q `[M, V]` at the positions that count, and the hidden-state loss; endless."""
    with torch.no_grad():
        hidden_states, embeddings = run_target(target, examples)
        # entry i has hidden state i and embedding i + 1, and predicts hidden state i + 1
        true, labels = hidden_states[:, :-1].float(), hidden_states[:, 1:]
        embeddings, loss_mask = embeddings[:, 1:].float(), examples.loss_mask[:, 1:]
        placeholder_mask = examples.image_placeholder_mask
        image_mask = None if placeholder_mask is None else placeholder_mask[examples.ids[:, 1:]]
        if image_mask is not None and student.image_mode == "dropped":
            true, embeddings, labels, loss_mask = move_to_front(~image_mask, true, embeddings, labels, loss_mask)
        labels = labels[loss_mask]
        log_p = target.compute_logits(labels).float().log_softmax(-1)
    inputs = true
    while True:
        with mixed_precision(examples.ids.device):
            layer_inputs = student.layer_inputs(embeddings, inputs, image_mask)
            predicted = student.layer(inputs_embeds=layer_inputs).last_hidden_state
            logits = target.compute_logits(predicted[loss_mask].to(hidden_states.dtype))
            log_q = logits.float().log_softmax(-1)
        yield log_p, log_q, F.smooth_l1_loss(predicted[loss_mask].float(), labels.float())
        # the next turn takes what this one predicted, at positions where there is a prediction
        inputs = torch.where(loss_mask[:, :-1, None], predicted[:, :-1].float(), true[:, 1:])
        inputs = torch.cat([true[:, :1], inputs], 1)


def hidden_state_and_kl_loss(target: CausalTarget, student: EagleModel, examples: Examples) -> Tensor:
    """Return the mean loss over turns: KL(target || student) in nats, plus the weighted hidden-state loss."""
    total, weights = torch.zeros((), device=examples.ids.device), 0.0
    for turn, (log_p, log_q, hidden_loss) in enumerate(islice(training_turns(target, student, examples), NUM_TURNS)):
        loss = F.kl_div(log_q, log_p, log_target=True, reduction="batchmean") + HIDDEN_STATE_WEIGHT * hidden_loss
        total, weights = total + TURN_DECAY**turn * loss, weights + TURN_DECAY**turn
    return total / weights


def target_and_draft_log_probs(target: CausalTarget, student: EagleModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Return log p and log q of the first turn, `[M, V]` each."""
    log_p, log_q, _ = next(training_turns(target, student, examples))
    return log_p, log_q
