"""Scenes that are read several times: first as they are, then as the model itself drew them the time before.

A model that has only read scenes is wrong by more with every latent of its own that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.apps.train.latent.data import LatentBatch
from polydraft.apps.train.latent.draw import chain
from polydraft.apps.train.latent.lessons import Beginnings, Lessons, Probe, denoising
from polydraft.apps.train.latent.model import LatentModel, noised, understood
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.latent.head import LatentHead

POOL = 8  # batches that take turns
SETTLED = 0.999  # chance of a latent that those before it settle


class Rounds:
    """Scenes that are read `rounds` times each, from the second on with tokens that the model drew the time before.

    Its draws are read where they went the scene's way, since the scene is what it is taught (`drawn`): Bengio et al.
    2015, scheduled sampling (arXiv 1506.03099), all places at once.

    `POOL` batches take turns, and the rows of each are in different rounds: steps that follow each other share no
    scene, and every step has early and late rounds.
    """

    def __init__(
        self, model: LatentModel, probe: Probe, fresh: Callable[[int], LatentBatch], rows: int, rounds: int
    ) -> None:
        self.model, self.probe, self.fresh, self.rounds = model, probe, fresh, rounds
        self.step = 0
        batches = [fresh(rows) for _ in range(POOL)]
        self.pool = [Reading(batch, noised(model.head, batch), torch.arange(rows) % rounds) for batch in batches]

    def next(self) -> LatentBatch:
        """The next batch; rows that were read often enough are new scenes."""
        now, self.step = self.pool[self.step % POOL], self.step + 1
        done = (now.read == self.rounds).nonzero().flatten().tolist()
        if done:
            batch = self.fresh(len(done))
            now.batch = now.batch.replaced(done, batch)
            now.tokens[done], now.read[done] = noised(self.model.head, batch), 0
        return now.batch

    def losses(self, batch: LatentBatch) -> Tensor:
        """`[5]`: `denoising`, then what `Beginnings` tell; tokens of a batch not under way are the scenes'."""
        now = next((each for each in self.pool if each.batch is batch), None)
        tokens = noised(self.model.head, batch) if now is None else now.tokens
        features = understood(self.model, batch, tokens)
        if now is not None:
            now.read = now.read + 1
            now.tokens = drawn(self.model.head, batch, features.detach(), now.read < self.rounds)
        denoised = denoising(self.model.head, Lessons.of(batch, features))
        return torch.cat([denoised, Beginnings.of(batch, features).told(self.probe)])


@dataclass
class Reading:
    """A batch under way: tokens that are read next `[B, CELLS, C]`; read, how often each row was, `[B]`."""

    batch: LatentBatch
    tokens: Tensor
    read: Tensor


@torch.no_grad()
def drawn(head: LatentHead, batch: LatentBatch, features: Tensor, rows: Tensor | None = None) -> Tensor:
    """Tokens `[B, CELLS, C]`, drawn at features `[B, CELLS, D]` where they are to be what the scene has, else its own.

    So they are where those before settle them, and elsewhere if the draw is nearest to what the scene has, of all that
    could be: the chain's few steps leave some draws between two that could, and these have to be read as well. rows:
    `[B]` bool, which are drawn at all.
    """
    learnt, tokens = batch.chances.any(-1), noised(head, batch)
    learnt = learnt if rows is None else learnt & rows[:, None]
    with mixed():
        found = chain(head, head.condition(features[learnt])[None, None], torch.ones(1))[0]
    could, chances = batch.could[learnt], batch.chances[learnt]
    meant = nearest(could, chances, batch.latents[learnt])
    ours = (chances.amax(-1) > SETTLED) | (nearest(could, chances, found) == meant)
    tokens[learnt] = torch.where(ours[:, None], found, tokens[learnt])
    return tokens


def nearest(could: Tensor, chances: Tensor, latents: Tensor) -> Tensor:
    """`[N]`: which of `could` `[N, K, C]` that has a chance `[N, K]` is nearest to latents `[N, C]`."""
    apart = (could - latents[:, None]).square().sum(-1)
    return apart.masked_fill(chances <= 0, torch.inf).argmin(-1)
