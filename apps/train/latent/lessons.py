"""What is taught about a latent: the head learns to denoise whatever it could be, and the backbone to know what begins.

What a latent could be is known with its chances (`posterior.py`), so the noisy latent is drawn from that law,
whichever way the scene went, and the head is taught the law's own posterior mean at that point instead of a single draw
of it: the same optimum with less noise in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from polydraft.apps.train.latent.data import LatentBatch
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.latent.head import LatentHead

DRAWS = 2  # noisy latents a token and step
SPREAD = 0.3  # of them drawn evenly from what may begin, or no more may (see `Lessons`)
URGENT = 6.0  # what a latent that surely begins something counts more (`urgency`)
OVER = 4.0  # what one where no more may begin counts more, of what begins
PLAIN = 0.4  # what a latent of bare background counts, where nothing else is possible nor tempting
TINY = 1e-9  # chances below it are none
HEADROOM = 0.8  # noise below the chain's last but one level that the head is taught


def divergence_of(logits: Tensor, chances: Tensor, choices: Tensor) -> Tensor:
    """KL in nats of every row: logits `[N, V]`; chances and choices `[N, K]`."""
    said = logits.log_softmax(-1).gather(1, choices)
    return -(torch.where(chances > 0, chances * said, 0) + torch.special.entr(chances)).sum(-1)


def divergence_begun(logits: Tensor, chances: Tensor, choices: Tensor) -> Tensor:
    """`divergence_of` given that something begins: the first choice, for nothing, is left out.

    Objects are few: at most cells the law says "nothing yet" and what would begin has next to no weight. Given that
    something does begin, the law of what it is can be taught at each of them.
    """
    begun = logits.scatter(1, choices[:, :1], -torch.inf)
    return divergence_of(begun, chances[:, 1:] / chances[:, 1:].sum(1, keepdim=True), choices[:, 1:])


@dataclass(frozen=True)
class Rows:
    """Tensors `[N, …]`, a row a token."""

    def some(self, rows: Tensor) -> Self:
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True)
class Lessons(Rows):
    """What a head is taught, a row a token: features `[N, D]`, could `[N, K, C]`, chances `[N, K]`; shares `[N, K]`,
    how often a noisy latent is drawn from each of them; weight `[N]`, what a token counts.

    A posterior mean holds wherever the noisy latent came from. So what may begin is drawn more often than it begins,
    and where nothing can any more, what began before is drawn too: it has to come to nothing. Without a caption, and
    before anything has begun, nobody can tell these apart, and latents are drawn as they come.
    """

    features: Tensor
    could: Tensor
    chances: Tensor
    shares: Tensor
    weight: Tensor

    @staticmethod
    def of(batch: LatentBatch, features: Tensor) -> Lessons:
        taught, over = batch.chances.any(-1), batch.over[..., None]
        could = torch.where(over[..., None], began(batch), batch.could)
        others = ((batch.chances > 0) | over).float()
        others[..., 0] = 0
        share = SPREAD * batch.told[:, None, None] * others.any(-1, keepdim=True)
        shares = (1 - share) * batch.chances + share * others / others.sum(-1, keepdim=True).clamp(min=1)
        nothing = batch.plain & ~(batch.over & batch.told[:, None])
        weight = torch.where(nothing, PLAIN, urgency(batch))[taught]
        return Lessons(features[taught], could[taught], batch.chances[taught], shares[taught], weight)

    @property
    def whole(self) -> Tensor:
        """`[N]` bool: tokens that are not bare background for sure, or since no more may begin."""
        return self.weight >= 1


@dataclass(frozen=True)
class Beginnings(Rows):
    """Where something may begin, or nothing could be: features `[N, D]`, and the law of what begins there, `[N, K]` of
    `chances` for `firsts` (`LatentBatch`), the first of them for nothing; weight `[N]`, what a latent counts.

    What spoils a picture is a thing where no more may come, or none where one must. In nats the first are few, since
    each of many latents is a little wrong, and of the second there are few; both count more.
    """

    features: Tensor
    firsts: Tensor
    chances: Tensor
    latents: Tensor
    weight: Tensor

    @staticmethod
    def of(batch: LatentBatch, features: Tensor) -> Beginnings:
        free = batch.chances.any(-1) & (batch.plain | (batch.chances[..., 0] < 1))
        weight = urgency(batch) + OVER * (batch.over & batch.told[:, None])
        chances, begun = batch.chances[free], batch.chances[free, 1:]
        latents = (begun / begun.sum(1, keepdim=True).clamp(min=TINY))[:, None] @ batch.could[free, 1:]
        return Beginnings(features[free], batch.firsts[free], chances, latents[:, 0], weight[free])

    def told(self, probe: Probe) -> Tensor:
        """`[3]`: how far what the probe says begins is from the law, KL in nats a latent, weighted; of what it is
        alone, where something may begin; and there, the squared error of the
        latent.

        Squared errors of latents hardly tell a chance of .95 from 1, which decides whether a thing comes at all.
        """
        with mixed():
            logits, latents = probe(self.features)
        logits, may = logits.float(), self.chances[:, 0] < 1
        whole = divergence_of(logits, self.chances, self.firsts) * self.weight
        what = divergence_begun(logits[may], self.chances[may], self.firsts[may])
        apart = (latents[may].float() - self.latents[may]).square().mean()
        return torch.stack([whole.mean(), what.sum() / len(whole), apart])


class Probe(nn.Module):
    """What features `[…, D]` tell of what begins by linear maps: scores `[…, N]` of all that may, the first for
    nothing; and the latent `[…, C]`.

    It helps to train the backbone and is left behind: what features have in this form the head need not untangle.
    """

    def __init__(self, width: int, classes: int, size: int) -> None:
        super().__init__()
        self.scores, self.latents = nn.Linear(width, classes), nn.Linear(width, size)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(features), self.latents(features)


def urgency(batch: LatentBatch) -> Tensor:
    """`[B, CELLS]`: what latents count by their chance that something begins.

    Only where the law is whole: where one of three objects is held, the law is right in the mean over scenes, and a
    weight that goes with it would have things begin too early.
    """
    return 1 + URGENT * batch.chances[..., 1:].sum(-1) * batch.whole


def began(batch: LatentBatch) -> Tensor:
    """`could`, but what follows the first of every token is what may begin somewhere in its picture, any of it."""
    found = batch.could.clone()
    for row, chances in enumerate(batch.chances[:, :, 1:] > 0):
        if chances.any():
            some = batch.could[row, :, 1:][chances]
            found[row, :, 1:] = some[torch.randint(len(some), chances.shape)]
    return found


def sigmas(levels: tuple[float, ...], tokens: int, draws: int) -> Tensor:
    """`[N, S, 1]`, even in the logarithm over the chain's levels, one in each of `draws` parts of them."""
    low, high = math.log(HEADROOM * levels[-2]), math.log(levels[0])
    part = (torch.arange(draws) + torch.rand(tokens, draws)) / draws
    return (low + (high - low) * part).exp()[..., None]


def posterior_mean(x: Tensor, sigma: Tensor, could: Tensor, chances: Tensor) -> Tensor:
    """The mean of y given `x` = y + sigma * e, `[N, S, C]`, where y is one of `could` `[N, K, C]` with `chances`."""
    apart = (x[:, :, None] - could[:, None]).square().sum(-1)
    return (chances.log()[:, None] - apart / (2 * sigma.square())).softmax(-1) @ could


def noisy(head: LatentHead, lessons: Lessons, draws: int = DRAWS) -> tuple[Tensor, Tensor, Tensor]:
    """`draws` noisy latents a token `[N, S, C]`, their noise levels `[N, S, 1]` and the posterior means there."""
    modes = torch.multinomial(lessons.shares, draws, replacement=True)
    clean = lessons.could.gather(1, modes[..., None].expand(-1, -1, head.size))
    sigma = sigmas(head.config.levels, *modes.shape)
    x = clean + sigma * torch.randn(clean.shape)
    return x, sigma, posterior_mean(x, sigma, lessons.could, lessons.chances)


def denoising(head: LatentHead, lessons: Lessons) -> Tensor:
    """`[2]`: squared error of the network's output in its own units (EDM's weighting), weighted, and without plain."""
    x, sigma, wanted = noisy(head, lessons)
    with mixed():
        said = head.denoise(x, sigma, head.condition(lessons.features)[:, None])
    error = (said.float() - wanted).square().mean(-1) * (1 + 1 / sigma.square().squeeze(-1))
    each = error.mean(-1)
    return torch.stack([(each * lessons.weight).sum() / lessons.weight.sum(), each[lessons.whole].mean()])
