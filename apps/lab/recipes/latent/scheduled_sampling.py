"""Scheduled sampling: scenes are read several times, first as they are, then as the model sampled them before.

A model trained on scenes alone accumulates errors with every latent of its own that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.apps.lab.recipes.latent.data import LatentBatch
from polydraft.apps.lab.recipes.latent.generate import sample_chain
from polydraft.apps.lab.recipes.latent.model import LatentModel, add_token_noise, compute_features
from polydraft.apps.lab.recipes.latent.training_targets import HeadExamples, StartExamples, StartProbe, denoising_losses
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.latent.head import LatentHead

POOL = 8  # batches that are used in turns
SETTLED = 0.999  # probability of a latent that those before it determine


class ScheduledSamplingPool:
    """Pool of scenes that are read `rounds` times each, from the second on with tokens that the model sampled before.

    Samples are read where they agree with the scene, since the scene is the target (`sample_near_scene`): Bengio et
    al. 2015, scheduled sampling (arXiv 1506.03099), all positions at once.

    `POOL` batches are used in turns, and the rows of each are in different rounds: consecutive steps share no scene,
    and every step has early and late rounds.
    """

    def __init__(
        self, model: LatentModel, probe: StartProbe, fresh: Callable[[int], LatentBatch], rows: int, rounds: int
    ) -> None:
        self.model: LatentModel = model
        self.probe: StartProbe = probe
        self.fresh: Callable[[int], LatentBatch] = fresh
        self.rounds: int = rounds
        self.step: int = 0
        batches = [fresh(rows) for _ in range(POOL)]
        self.pool: list[PooledBatch] = [
            PooledBatch(batch, add_token_noise(model.head, batch), torch.arange(rows) % rounds) for batch in batches
        ]

    def next_batch(self) -> LatentBatch:
        """Return the next batch; rows that were read `rounds` times are replaced by new scenes."""
        current, self.step = self.pool[self.step % POOL], self.step + 1
        done = (current.num_reads == self.rounds).nonzero().flatten().tolist()
        if done:
            batch = self.fresh(len(done))
            current.batch = current.batch.replace_rows(done, batch)
            current.tokens[done], current.num_reads[done] = add_token_noise(self.model.head, batch), 0
        return current.batch

    def losses(self, batch: LatentBatch) -> Tensor:
        """Return losses [5]: those of the head, then those of the probe; a batch outside the pool reads its scenes."""
        current = next((each for each in self.pool if each.batch is batch), None)
        tokens = add_token_noise(self.model.head, batch) if current is None else current.tokens
        features = compute_features(self.model, batch, tokens)
        if current is not None:
            current.num_reads = current.num_reads + 1
            current.tokens = sample_near_scene(
                self.model.head, batch, features.detach(), current.num_reads < self.rounds
            )
        denoised = denoising_losses(self.model.head, HeadExamples.from_batch(batch, features))
        return torch.cat([denoised, StartExamples.from_batch(batch, features).losses(self.probe)])


@dataclass
class PooledBatch:
    """Batch of the pool."""

    batch: LatentBatch
    tokens: Tensor  # [B, CELLS, C] that are read next
    num_reads: Tensor  # [B] how often each row was read


@torch.no_grad()
def sample_near_scene(head: LatentHead, batch: LatentBatch, features: Tensor, rows: Tensor | None = None) -> Tensor:
    """Sample tokens [B, CELLS, C] at features [B, CELLS, D], and replace those that differ from the scene by its own.

    A sample is kept where the latents before determine it, and elsewhere if of all candidates it is nearest to that of
    the scene: the chain's few steps leave some samples between two candidates, and these have to be read as well.

    Args:
        head (LatentHead): the head that samples.
        batch (LatentBatch): scenes and their candidates.
        features (Tensor): [B, CELLS, D] hidden states that condition the head.
        rows (Tensor | None): [B] bool, rows that are sampled at all; None for all.
    """
    is_trained, tokens = batch.candidate_probs.any(-1), add_token_noise(head, batch)
    is_trained = is_trained if rows is None else is_trained & rows[:, None]
    with mixed_precision():
        samples = sample_chain(head, head.condition(features[is_trained])[None, None], torch.ones(1))[0]
    candidates, probs = batch.candidates[is_trained], batch.candidate_probs[is_trained]
    scene_index = nearest_candidate(candidates, probs, batch.latents[is_trained])
    is_kept = (probs.amax(-1) > SETTLED) | (nearest_candidate(candidates, probs, samples) == scene_index)
    tokens[is_trained] = torch.where(is_kept[:, None], samples, tokens[is_trained])
    return tokens


def nearest_candidate(candidates: Tensor, probs: Tensor, latents: Tensor) -> Tensor:
    """Return the index [N] of the candidate [N, K, C] of positive probability nearest to latents [N, C]."""
    distances = (candidates - latents[:, None]).square().sum(-1)
    return distances.masked_fill(probs <= 0, torch.inf).argmin(-1)
