"""Training targets of latents: the head learns to denoise, and the backbone to predict which object starts.

The candidates of a latent are known with their probabilities (`posterior.py`), so the noisy latent is sampled from that
distribution, whatever the scene has, and the head is trained on its posterior mean at that point instead of a single
sample: the same optimum with less noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from polydraft.apps.lab.recipes.latent.data import LatentBatch
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.latent.head import LatentHead

DRAWS = 2  # noisy latents per token and step
SPREAD = 0.3  # share of them sampled uniformly from objects that may start, or may no more (see `HeadExamples`)
URGENT = 6.0  # additional weight of a latent that certainly starts an object (`start_weights`)
OVER = 4.0  # additional weight, for the probe, of a latent where no object may start any more
PLAIN = 0.4  # weight of a latent that is background with certainty and not confusable
TINY = 1e-9  # smallest probability
HEADROOM = 0.8  # lowest noise of training, times the chain's last but one level


def candidate_kl(logits: Tensor, probs: Tensor, choices: Tensor) -> Tensor:
    """Return the KL in nats of every row: `logits` [N, V]; `probs` [N, K] are the probabilities of ids `choices`."""
    outputs = logits.log_softmax(-1).gather(1, choices)
    return -(torch.where(probs > 0, probs * outputs, 0) + torch.special.entr(probs)).sum(-1)


def start_kl(logits: Tensor, probs: Tensor, choices: Tensor) -> Tensor:
    """Return `candidate_kl` given that an object starts: the first choice, for none, is left out.

    Objects are few: at most cells the distribution is "none" and which object would start has next to no weight. Given
    that one starts, which one it is can be learned at each of these cells.
    """
    started = logits.scatter(1, choices[:, :1], -torch.inf)
    return candidate_kl(started, probs[:, 1:] / probs[:, 1:].sum(1, keepdim=True), choices[:, 1:])


@dataclass(frozen=True)
class TokenRows:
    """Tensors [N, …] with a row per token."""

    def select(self, rows: Tensor) -> Self:
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True)
class HeadExamples(TokenRows):
    """Training examples of a head, a row per token.

    A posterior mean is valid wherever the noisy latent came from. So objects that may start are sampled more often than
    they start, and where none may start any more, objects that started before are sampled too: their posterior mean is
    background. Without a caption, and before an object has started, these cases cannot be distinguished, and latents
    are sampled by their probabilities.
    """

    features: Tensor  # [N, D]
    candidates: Tensor  # [N, K, C]
    probs: Tensor  # [N, K]
    sampling_probs: Tensor  # [N, K] how often a noisy latent is sampled from each candidate
    weight: Tensor  # [N] in the loss

    @staticmethod
    def from_batch(batch: LatentBatch, features: Tensor) -> HeadExamples:
        mask, finished = batch.candidate_probs.any(-1), batch.is_finished[..., None]
        candidates = torch.where(finished[..., None], image_candidates(batch), batch.candidates)
        others = ((batch.candidate_probs > 0) | finished).float()
        others[..., 0] = 0
        share = SPREAD * batch.has_caption[:, None, None] * others.any(-1, keepdim=True)
        sampling = (1 - share) * batch.candidate_probs + share * others / others.sum(-1, keepdim=True).clamp(min=1)
        nothing = batch.is_background & ~(batch.is_finished & batch.has_caption[:, None])
        weight = torch.where(nothing, PLAIN, start_weights(batch))[mask]
        return HeadExamples(features[mask], candidates[mask], batch.candidate_probs[mask], sampling[mask], weight)

    @property
    def is_informative(self) -> Tensor:
        """Return [N] bool: tokens that are not background with certainty, or only since no object may start."""
        return self.weight >= 1


@dataclass(frozen=True)
class StartExamples(TokenRows):
    """Training examples of the probe: tokens where an object may start, or none may.

    An image is wrong if an object starts where none may, or none starts where one must. In nats the first error is
    small, since each of many latents is a little wrong, and the second is rare; both have larger weights.
    """

    features: Tensor  # [N, D]
    classes: Tensor  # [N, K] objects that may start, the first 0 for none
    probs: Tensor  # [N, K]
    latents: Tensor  # [N, C] mean latent given that an object starts
    weight: Tensor  # [N] in the loss

    @staticmethod
    def from_batch(batch: LatentBatch, features: Tensor) -> StartExamples:
        free = batch.candidate_probs.any(-1) & (batch.is_background | (batch.candidate_probs[..., 0] < 1))
        weight = start_weights(batch) + OVER * (batch.is_finished & batch.has_caption[:, None])
        probs, started = batch.candidate_probs[free], batch.candidate_probs[free, 1:]
        latents = (started / started.sum(1, keepdim=True).clamp(min=TINY))[:, None] @ batch.candidates[free, 1:]
        return StartExamples(features[free], batch.candidate_classes[free], probs, latents[:, 0], weight[free])

    def losses(self, probe: StartProbe) -> Tensor:
        """Return losses [3] of a probe.

        They are the weighted KL in nats per latent from the distribution of starts; the KL of which object starts,
        where one may; and there, the squared error of its latent. Squared errors of latents hardly distinguish a
        probability of .95 from 1, which decides whether an object appears at all.
        """
        with mixed_precision():
            logits, latents = probe(self.features)
        logits, may = logits.float(), self.probs[:, 0] < 1
        weighted_kl = candidate_kl(logits, self.probs, self.classes) * self.weight
        which_kl = start_kl(logits[may], self.probs[may], self.classes[may])
        squared_error = (latents[may].float() - self.latents[may]).square().mean()
        return torch.stack([weighted_kl.mean(), which_kl.sum() / len(weighted_kl), squared_error])


class StartProbe(nn.Module):
    """Linear probe of features [..., D]: scores [..., N] of objects that may start, the first for none, and a latent.

    It helps to train the backbone and is dropped afterwards: the head need not extract what features hold linearly.
    """

    def __init__(self, width: int, classes: int, size: int) -> None:
        super().__init__()
        self.scores: nn.Linear = nn.Linear(width, classes)
        self.latents: nn.Linear = nn.Linear(width, size)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(features), self.latents(features)


def start_weights(batch: LatentBatch) -> Tensor:
    """Return weights [B, CELLS] of latents by the probability that an object starts.

    Only exact distributions are weighted: where one of three objects is fixed, the distribution is right in the mean
    over scenes, and a weight that depends on it would make objects start too early.
    """
    return 1 + URGENT * batch.candidate_probs[..., 1:].sum(-1) * batch.is_exact


def image_candidates(batch: LatentBatch) -> Tensor:
    """Return the candidates with all but the first replaced by random objects that may start anywhere in the image."""
    found = batch.candidates.clone()
    for row, probs in enumerate(batch.candidate_probs[:, :, 1:] > 0):
        if probs.any():
            options = batch.candidates[row, :, 1:][probs]
            found[row, :, 1:] = options[torch.randint(len(options), probs.shape)]
    return found


def sample_noise_levels(levels: tuple[float, ...], tokens: int, draws: int) -> Tensor:
    """Return noise levels [N, S, 1], log-uniform over the chain's levels, one in each of `draws` strata."""
    low, high = math.log(HEADROOM * levels[-2]), math.log(levels[0])
    part = (torch.arange(draws) + torch.rand(tokens, draws)) / draws
    return (low + (high - low) * part).exp()[..., None]


def posterior_mean(x: Tensor, sigma: Tensor, candidates: Tensor, probs: Tensor) -> Tensor:
    """Return the mean of y given x = y + sigma * e, [N, S, C], y being one of `candidates` [N, K, C] with `probs`."""
    squared_error = (x[:, :, None] - candidates[:, None]).square().sum(-1)
    return (probs.log()[:, None] - squared_error / (2 * sigma.square())).softmax(-1) @ candidates


def sample_noisy_latents(head: LatentHead, examples: HeadExamples, draws: int = DRAWS) -> tuple[Tensor, Tensor, Tensor]:
    """Return `draws` noisy latents per token [N, S, C], their noise levels [N, S, 1] and the posterior means."""
    modes = torch.multinomial(examples.sampling_probs, draws, replacement=True)
    clean = examples.candidates.gather(1, modes[..., None].expand(-1, -1, head.latent_size))
    sigma = sample_noise_levels(head.config.levels, *modes.shape)
    x = clean + sigma * torch.randn(clean.shape)
    return x, sigma, posterior_mean(x, sigma, examples.candidates, examples.probs)


def denoising_losses(head: LatentHead, examples: HeadExamples) -> Tensor:
    """Return [2]: the weighted squared error of the network's output (EDM's weighting), and that without background."""
    x, sigma, means = sample_noisy_latents(head, examples)
    with mixed_precision():
        outputs = head.denoise(x, sigma, head.condition(examples.features)[:, None])
    error = (outputs.float() - means).square().mean(-1) * (1 + 1 / sigma.square().squeeze(-1))
    each = error.mean(-1)
    return torch.stack([(each * examples.weight).sum() / examples.weight.sum(), each[examples.is_informative].mean()])
