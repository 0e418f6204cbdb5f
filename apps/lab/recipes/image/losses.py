"""Losses of a tokenizer of textured scenes beside small errors: weighted objects, texture power, and a patch critic.

A blade of grass cannot be known from its code, and squared error answers with their mean: a blur. So backgrounds are
trained to have the right power in every octave of every window (`octave_loss`), whatever its phase, though not from
stripes that repeat in every cell (`repeated_error`), and a patch critic detects what still looks decoded (Isola et al.
2017,
"Image-to-image translation with conditional adversarial networks"; hinge loss and a weight fitted to gradients as in
Esser et al. 2021, "Taming transformers", section 3.1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.lab.judging.texture_statistics import luminance, octave_masks, power_spectrum
from polydraft.modalities.world.scene import GRID

THINGS = 6.0  # weight of a pixel in an object's box; a background pixel has 1
WINDOW, STEP = 32, 16  # pixels whose power is compared
LOUD = 1e-6  # smallest visible power
DETAIL = 8.0  # scales the high-pass image to about 1
REPEATED = 50.0  # weight of the squared error that all cells have in common


def reconstruction_loss(decoded: Tensor, pixels: Tensor, weight: Tensor) -> Tensor:
    """Return the absolute and squared error of images [B, 3, H, W], weighted by [B, 1, H, W], and its repeated part."""
    error = decoded - pixels
    return (weight * (error.abs() + 4 * error.square())).mean() + REPEATED * repeated_error(error)


def repeated_error(error: Tensor) -> Tensor:
    """Return the mean square of the error [B, 3, H, W] that all cells of an image share.

    It is the cheapest way to add power, and is visible as stripes.
    """
    return error.unflatten(-1, (-1, GRID)).unflatten(2, (-1, GRID)).mean((2, 4)).square().mean()


def octave_loss(decoded: Tensor, pixels: Tensor) -> Tensor:
    """Return the mean difference of log power by octave and window; images [B, 3, H, W] in -1..1."""

    def loudness(pictures: Tensor) -> Tensor:
        windows = luminance(pictures.float()).unfold(1, WINDOW, STEP).unfold(2, WINDOW, STEP)
        within = octave_masks(WINDOW, [(1 << octave, 2 << octave) for octave in range(4)]).to(pictures.device).float()
        return (torch.einsum("bijyx,oyx->bijo", power_spectrum(windows), within) + LOUD).log()

    return (loudness(decoded) - loudness(pixels)).abs().mean()


class PatchCritic(nn.Module):
    """Patch critic: scores [B, H/8, W/8] of how rendered every 8x8 cell of [B, 3, H, W] looks, with its surroundings.

    Its input is high-pass filtered: with the colours, which both kinds have, it did not learn in a thousand steps what
    it learns so in thirty.
    """

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.layers: nn.Sequential = nn.Sequential(
            nn.PixelUnshuffle(4), nn.Conv2d(48, width, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GroupNorm(8, 2 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.GroupNorm(8, 2 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 1),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.layers(DETAIL * (pictures - F.avg_pool2d(pictures, 5, 1, 2, count_include_pad=False)))
        return scores[:, 0]

    def loss(self, rendered: Tensor, decoded: Tensor, ground: Tensor) -> Tensor:
        """Return the hinge loss, cells weighted by `ground`."""
        right, wrong = F.relu(1 - self(rendered)), F.relu(1 + self(decoded.detach()))
        return 0.5 * (weighted_mean(right, ground) + weighted_mean(wrong, ground))


class Adversary:
    """Critic with its optimizer, trained together with the decoder that it judges."""

    def __init__(self) -> None:
        self.critic: PatchCritic = PatchCritic()
        self.optimiser: torch.optim.AdamW = torch.optim.AdamW(self.critic.parameters(), lr=1e-3, betas=(0.5, 0.95))

    def train_critic(self, pixels: Tensor, decoded: Tensor, ground: Tensor) -> float:
        """Train the critic for a step; return the loss before it."""
        critic_loss = self.critic.loss(pixels, decoded, ground)
        self.optimiser.zero_grad()
        critic_loss.backward()
        self.optimiser.step()
        return critic_loss.item()

    def adversarial_loss(
        self, pixels: Tensor, decoded: Tensor, ground: Tensor, target_loss: Tensor, last: Tensor
    ) -> tuple[Tensor, float]:
        """Train the critic, and return the weighted adversarial loss and the critic's loss.

        Args:
            pixels (Tensor): [B, 3, H, W] rendered images.
            decoded (Tensor): [B, 3, H, W] decoded images.
            ground (Tensor): [B, H/8, W/8] weight of cells; objects are known from their codes and need no critic.
            target_loss (Tensor): loss that the adversarial one is balanced with.
            last (Tensor): weight of the decoder whose gradients are balanced.
        """
        critic_loss = self.train_critic(pixels, decoded, ground)
        self.critic.requires_grad_(False)
        adversarial = -weighted_mean(self.critic(decoded), ground)
        self.critic.requires_grad_(True)
        return adaptive_weight(target_loss, adversarial, last) * adversarial, critic_loss


def weighted_mean(scores: Tensor, ground: Tensor) -> Tensor:
    return (scores * ground).sum() / ground.sum().clamp(min=1)


def adaptive_weight(target_loss: Tensor, adversarial: Tensor, last: Tensor) -> Tensor:
    """Return the weight of `adversarial` that makes its gradient at `last` as large as that of `target_loss`."""
    pulls = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (target_loss, adversarial)]
    return (pulls[0] / (pulls[1] + 1e-4)).clamp(0, 100).detach()
