"""How heads and block drafters learn what comes next but one, next but two, …

    distil(partial(divergence, target), MedusaHeads(target.config), source, minutes=10, folder=out)
    distil(partial(overlap, target), BlockNetwork(target.config), source, minutes=10, folder=out)
    loss + 0.3 * foresight(heads, model, features, ids, judged)    # while the target itself is trained

All learn the target's own law of every place, on sequences the target wrote (Cai et al. 2024, Medusa, arXiv
2401.10774, section 2.2). Farther places are harder and are reached more rarely: they count less. Heads that are trained
with their target also teach it to hold what they need (Gloeckle et al. 2024, arXiv 2404.19737).
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.model.precision import mixed
from polydraft.core.target import CausalTarget
from polydraft.core.training.examples import Examples, read

FADE = 0.8  # a farther place counts less
CROSS = 0.1  # of the divergence beside the total variation, in `overlap`
STARTS = 64  # drafts a sequence and step: every place of every draft costs a law over the vocabulary


class Student(Protocol):
    """A network of `places` guesses ahead; see `MultiTokenNetwork.everywhere`."""

    places: int

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor: ...


def drafts(judged: Tensor, places: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Entries `[S]` to draft behind, at most `most`, the columns `[S, K]` that are guessed, which count `[B, S, K]`."""
    # where a root can be: its own law, or the first token's, is judged
    possible = judged[:, 1:].any(0).nonzero().squeeze(-1)
    starts = possible[torch.randperm(len(possible), device=judged.device)[:most]].sort().values
    columns = starts[:, None] + torch.arange(1, places + 1, device=judged.device)
    inside = columns.clamp(max=judged.shape[1] - 1)
    return starts, inside, judged[:, starts + 1][..., None] & judged[:, inside] & (columns == inside)


def laws(
    target: CausalTarget, student: Student, examples: Examples, most: int = STARTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Log p and log q `[M, V]` of drafts from at most `most` entries, and the place `[M]` of each."""
    true, embeddings = read(target, examples)
    embeddings = embeddings[:, 1:].float()
    starts, columns, counted = drafts(examples.judged, student.places, most)
    with torch.no_grad():
        p = target.head(true[:, columns][counted]).float().log_softmax(-1)
    with mixed(true.device):
        guessed = student.everywhere(true[:, :-1].float(), embeddings, starts)[counted]
        q = target.head(guessed.to(true.dtype)).float().log_softmax(-1)
    return p, q, which(counted)


def which(counted: Tensor) -> Tensor:
    """The place `[M]` of everything that counts."""
    return torch.arange(counted.shape[-1], device=counted.device).expand_as(counted)[counted]


def foresight(
    student: Student, target: PreTrainedModel, features: Tensor, ids: Tensor, judged: Tensor, most: int = STARTS
) -> Tensor:
    """Mean nats of what really follows, faded, with gradients into the features `[B, L, D]` but not into embeddings."""
    embeddings = target.get_input_embeddings()(ids)[:, 1:].detach()
    starts, columns, counted = drafts(judged, student.places, most)
    counted = counted & (columns < ids.shape[1] - 1)
    guessed = student.everywhere(features[:, :-1], embeddings, starts)[counted]
    logits = F.linear(guessed, target.get_output_embeddings().weight.detach())
    labels = ids[:, (columns + 1).clamp(max=ids.shape[1] - 1)][counted]
    return faded(F.cross_entropy(logits.float(), labels, reduction="none"), which(counted))


def divergence(target: CausalTarget, student: Student, examples: Examples) -> Tensor:
    """Mean KL(target || student) in nats, place k counting FADE^k: the loss of heads."""
    p, q, place = laws(target, student, examples)
    return faded(kl(p, q), place)


def overlap(target: CausalTarget, student: Student, examples: Examples) -> Tensor:
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
