"""How an EAGLE head learns to continue its target's features.

    distil(partial(continuation, target), EagleNetwork(target.config), source, minutes=10, folder=out)

Smooth L1 on features and KL on the target's law (Li et al. 2024, EAGLE, arXiv 2401.15077, section 4.2), here with the law
in the lead. While drafting, the head reads its own predictions, so it is trained on them too: every further turn reads
the features that the turn before predicted (Zhang et al. 2024, HASS, arXiv 2408.15766, section 3.2).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.eagle import EagleNetwork
from polydraft.core.training.distill import Examples

TURNS = 3
FADE = 0.8  # a later turn counts less
FEATURES = 0.1  # weight of the feature loss beside the law's


def continuation(target: PreTrainedModel, student: EagleNetwork, examples: Examples) -> Tensor:
    """Mean loss over judged positions and turns; the law's part is KL(target || student) in nats."""
    with torch.no_grad():
        true = target.base_model(input_ids=examples.ids).last_hidden_state
        embeddings = target.get_input_embeddings()(examples.ids)
    # entry i reads feature i and embedding i + 1, and predicts feature i + 1
    judged = examples.judged[:, 1:]
    wanted = true[:, 1:][judged].float()
    head = target.get_output_embeddings()
    with torch.no_grad():
        law = head(true[:, 1:][judged]).float().log_softmax(-1)
    read = true[:, :-1].float()
    total, weights = torch.zeros((), device=true.device), 0.0
    for turn in range(TURNS):
        with torch.autocast(examples.ids.device.type, torch.bfloat16):
            inputs = student.fused(embeddings[:, 1:].float(), read)
            predicted = student.layer(inputs_embeds=inputs).last_hidden_state
            guess = head(predicted[judged].to(true.dtype))
        loss = F.kl_div(guess.float().log_softmax(-1), law, log_target=True, reduction="batchmean")
        loss = loss + FEATURES * F.smooth_l1_loss(predicted[judged].float(), wanted)
        total, weights = total + FADE**turn * loss, weights + FADE**turn
        # the next turn reads what this one predicted, where there is something to predict
        read = torch.where(judged[:, :-1, None], predicted[:, :-1].float(), true[:, 1:-1].float())
        read = torch.cat([true[:, :1].float(), read], 1)
    return total / weights
