"""How heads and block drafters learn what comes next but one, next but two, …

    distil(partial(divergence, target), MedusaHeads(target.config), source, minutes=10, folder=out)
    distil(partial(overlap, target), BlockNetwork(target.config), source, minutes=10, folder=out)

Both learn the target's own law of every place, on sequences the target wrote (Cai et al. 2024, Medusa, arXiv
2401.10774, section 2.2). Farther places are harder and are reached more rarely: they count less.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.parallel import Foreseer
from polydraft.core.training.distill import Examples

FADE = 0.8  # a farther place counts less
CROSS = 0.1  # of the divergence beside the total variation, in `overlap`
STARTS = 64  # drafts a sequence and step: every place of every draft costs a law over the vocabulary


def laws(
    target: PreTrainedModel, student: Foreseer, examples: Examples, most: int = STARTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Log p and log q `[M, V]` of drafts from at most `most` entries, and the place `[M]` of each; see `Foreseer`."""
    ids, judged = examples.ids, examples.judged
    with torch.no_grad():
        true = target.base_model(input_ids=ids).last_hidden_state
        embeddings = target.get_input_embeddings()(ids)[:, 1:].float()
    # where a root can be: its own law, or the first token's, is judged
    possible = judged[:, 1:].any(0).nonzero().squeeze(-1)
    starts = possible[torch.randperm(len(possible), device=ids.device)[:most]].sort().values
    columns = starts[:, None] + torch.arange(1, student.places + 1, device=ids.device)  # `[S, K]`
    inside = columns.clamp(max=ids.shape[1] - 1)
    counted = judged[:, starts + 1][..., None] & judged[:, inside] & (columns == inside)
    head = target.get_output_embeddings()
    with torch.no_grad():
        p = head(true[:, inside][counted]).float().log_softmax(-1)
    with torch.autocast(ids.device.type, torch.bfloat16):
        guessed = student.everywhere(true[:, :-1].float(), embeddings, starts)[counted]
        q = head(guessed.to(true.dtype)).float().log_softmax(-1)
    return p, q, torch.arange(student.places, device=ids.device).expand_as(counted)[counted]


def divergence(target: PreTrainedModel, student: Foreseer, examples: Examples) -> Tensor:
    """Mean KL(target || student) in nats, place k counting FADE^k: the loss of heads."""
    p, q, place = laws(target, student, examples)
    return faded(kl(p, q), place)


def overlap(target: PreTrainedModel, student: Foreseer, examples: Examples) -> Tensor:
    """0.1 KL + 0.9 total variation, faded alike: the loss of block drafters (SpeechSpec)."""
    p, q, place = laws(target, student, examples)
    variation = (p.exp() - q.exp()).abs().sum(-1) / 2
    return faded(CROSS * kl(p, q) + (1 - CROSS) * variation, place)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """`[M]`; cross-entropy less what no student can change."""
    return F.kl_div(q, p, log_target=True, reduction="none").sum(-1)


def faded(loss: Tensor, place: Tensor) -> Tensor:
    weight = FADE ** place.float()
    return (weight * loss).sum() / weight.sum()
