"""How an adapter learns to leave the target early.

    adapter = KangarooAdapter(target.config).behind(target.model)
    distil(partial(divergence, target), adapter, source, minutes=10, folder=out)

KL to the target's own law (Liu et al. 2024, Kangaroo, arXiv 2404.18911, section 3.1, uses the cross-entropy with it,
which is the same up to a constant).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.drafters.network.kangaroo import KangarooAdapter
from polydraft.core.model.precision import mixed
from polydraft.core.target import CausalTarget
from polydraft.core.training.examples import Examples, read


def laws(target: CausalTarget, student: KangarooAdapter, examples: Examples) -> tuple[Tensor, Tensor]:
    """Log p and log q `[M, V]` at the judged positions."""
    features, embeddings = read(target, examples)
    with torch.no_grad():
        p = target.head(features[examples.judged]).float().log_softmax(-1)
    with mixed(features.device):
        early = student.backbone(inputs_embeds=embeddings).last_hidden_state[examples.judged]
        q = target.head(early.to(features.dtype))
    return p, q.float().log_softmax(-1)


def divergence(target: CausalTarget, student: KangarooAdapter, examples: Examples) -> Tensor:
    """Mean KL(target || student) in nats over the judged positions."""
    p, q = laws(target, student, examples)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")
