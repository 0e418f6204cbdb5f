"""How an EAGLE head learns to continue its target's features.

    distil(partial(continuation, target), EagleNetwork(target.config), source, minutes=10, folder=out)

Smooth L1 on features and KL on the target's law (Li et al. 2024, EAGLE, arXiv 2401.15077, section 4.2), here with the
law in the lead. While drafting, the head reads its own predictions, so it is trained on them too: every further turn
reads the features that the turn before predicted (Zhang et al. 2024, HASS, arXiv 2408.15766, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.drafters.network.base import in_front
from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.core.model.precision import mixed
from polydraft.core.target import CausalTarget
from polydraft.core.training.examples import Examples, read

TURNS = 3
FADE = 0.8  # a later turn counts less
FEATURES = 0.1  # weight of the feature loss beside the law's


def turns(target: CausalTarget, student: EagleNetwork, examples: Examples) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Turn by turn log p, log q `[M, V]` at the judged positions, and the feature loss; endless."""
    with torch.no_grad():
        features, embeddings = read(target, examples)
        # entry i reads feature i and embedding i + 1, and predicts feature i + 1
        true, embeddings, following = features[:, :-1].float(), embeddings[:, 1:].float(), features[:, 1:]
        judged = examples.judged[:, 1:]
        pictured = None if examples.unread is None else examples.unread[examples.ids[:, 1:]]
        if pictured is not None and student.pictures == "dropped":
            true, embeddings, following, judged = in_front(~pictured, true, embeddings, following, judged)
        wanted = following[judged]
        p = target.head(wanted).float().log_softmax(-1)
    known = true
    while True:
        with mixed(examples.ids.device):
            entries = student.entries(embeddings, known, pictured)
            predicted = student.layer(inputs_embeds=entries).last_hidden_state
            q = target.head(predicted[judged].to(features.dtype)).float().log_softmax(-1)
        yield p, q, F.smooth_l1_loss(predicted[judged].float(), wanted.float())
        # the next turn reads what this one predicted, where there is something to predict
        known = torch.where(judged[:, :-1, None], predicted[:, :-1].float(), true[:, 1:])
        known = torch.cat([true[:, :1], known], 1)


def continuation(target: CausalTarget, student: EagleNetwork, examples: Examples) -> Tensor:
    """Mean loss over turns; the law's part is KL(target || student) in nats over the judged positions."""
    total, weights = torch.zeros((), device=examples.ids.device), 0.0
    for turn, (p, q, features) in enumerate(islice(turns(target, student, examples), TURNS)):
        loss = F.kl_div(q, p, log_target=True, reduction="batchmean") + FEATURES * features
        total, weights = total + FADE**turn * loss, weights + FADE**turn
    return total / weights


def laws(target: CausalTarget, student: EagleNetwork, examples: Examples) -> tuple[Tensor, Tensor]:
    """Log p and log q of the first turn."""
    p, q, _ = next(turns(target, student, examples))
    return p, q
