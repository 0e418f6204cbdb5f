"""Texture statistics of generated and rendered images: power spectra, and a Fréchet distance of patches.

    octave_power(generated).mean(0) / octave_power(rendered).mean(0)      # 1 in every octave where texture is right
    TextureStatistics.fit(rendered, backgrounds).distance(generated, backgrounds)

Images with a washed-out background lack power in the upper octaves; images that repeat a tile have their power in few
frequencies; one background for all images varies too little. The distance is sensitive to all three. Its scale is the
distance of two sets of rendered scenes. (Heusel et al. 2017, "GANs trained by a two time-scale update rule", with a
fixed feature in place of a network's.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
OCTAVES = ((1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64))  # cycles per image, from and to
WINDOW, STEP = 64, 32  # pixels of a patch, and from one to the next
NUM_OCTAVES = 4  # octaves of a patch: from 2 to 32 cycles
MIN_POWER = 1e-6  # power below which nothing is visible


def luminance(pictures: Tensor) -> Tensor:
    """Return the luminance [..., H, W] in 0..1 of images [..., 3, H, W] in -1..1."""
    return torch.tensordot(pictures.movedim(-3, -1) * 0.5 + 0.5, pictures.new_tensor(LUMA), 1)


def power_spectrum(fields: Tensor) -> Tensor:
    """Return the power [..., S, S // 2 + 1] by frequency of square fields [..., S, S], windowed towards their edges."""
    side = fields.shape[-1]
    fade = torch.hann_window(side, periodic=False, dtype=fields.dtype, device=fields.device)
    centred = (fields - fields.mean((-2, -1), keepdim=True)) * fade[:, None] * fade
    return torch.fft.rfft2(centred, norm="forward").abs().square()


def octave_masks(side: int, octaves: Sequence[tuple[int, int]]) -> Tensor:
    """Return masks [O, side, side // 2 + 1] bool of the frequencies of every octave."""
    down, across = torch.fft.fftfreq(side)[:, None] * side, torch.fft.rfftfreq(side) * side
    radius = torch.sqrt(down.square() + across.square())
    return torch.stack([(radius >= low) & (radius < high) for low, high in octaves])


def octave_power(pictures: Tensor) -> Tensor:
    """Return the mean luminance power [B, 6] in every octave of images [B, 3, 128, 128] in -1..1."""
    within = octave_masks(pictures.shape[-1], OCTAVES).to(pictures)
    return torch.einsum("byx,oyx->bo", power_spectrum(luminance(pictures.float())), within) / within.sum((1, 2))


def patch_features(pictures: Tensor) -> Tensor:
    """Return patch features [B, 9, 14] of images [B, 3, 128, 128] in -1..1.

    They are mean and deviation of colours and, per octave, log power and its spectral flatness.
    """
    patches = pictures.float().unfold(2, WINDOW, STEP).unfold(3, WINDOW, STEP).flatten(2, 3).transpose(1, 2)
    colours = patches.mean((-2, -1)), patches.std((-2, -1)).clamp(min=1e-3).log()
    features = power_spectrum(luminance(patches)) + MIN_POWER
    within = octave_masks(WINDOW, [(2 << octave, 4 << octave) for octave in range(NUM_OCTAVES)]).to(features)
    size = within.sum((1, 2))
    total = (torch.einsum("bpyx,oyx->bpo", features, within) / size).log()
    flat = torch.einsum("bpyx,oyx->bpo", features.log(), within) / size - total
    return torch.cat([*colours, total, flat], -1)


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """Return the Fréchet distance of two samples [N, D], taken as normally distributed (Dowson and Landau 1982)."""
    one, other = first.double(), second.double()
    covariances = torch.cov(one.T), torch.cov(other.T)
    values, vectors = torch.linalg.eigh(covariances[0])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ covariances[1] @ root).clamp(min=0).sqrt().sum()
    mean_distance = (one.mean(0) - other.mean(0)).square().sum()
    spread = covariances[0].trace() + covariances[1].trace() - 2 * shared
    return max(0.0, float(mean_distance + spread))  # rounding may make it negative for equal sets


@dataclass(frozen=True)
class TextureStatistics:
    """Patch features of rendered scenes, standardised by background."""

    means: dict[str, Tensor]  # [14] by background
    spreads: dict[str, Tensor]  # [14] by background
    cloud: Tensor  # [N, 14] standardised features

    @staticmethod
    def fit(pictures: Tensor, backgrounds: Sequence[str]) -> TextureStatistics:
        """Collect statistics of rendered images [B, 3, 128, 128] and the background of each."""
        features = patch_features(pictures)
        masks = {name: [background == name for background in backgrounds] for name in set(backgrounds)}
        by_background = {name: features[mask].flatten(0, 1) for name, mask in masks.items()}
        means = {name: part.mean(0) for name, part in by_background.items()}
        spreads = {name: part.std(0).clamp(min=0.05) for name, part in by_background.items()}
        bare = TextureStatistics(means, spreads, torch.empty(0))
        return TextureStatistics(means, spreads, bare.standardised_features(pictures, backgrounds))

    def standardised_features(self, pictures: Tensor, backgrounds: Sequence[str]) -> Tensor:
        """Return features [N, 14] of all patches, standardised by background so that none hides another's faults."""
        parts = zip(patch_features(pictures), backgrounds, strict=True)
        return torch.cat([(patch - self.means[name]) / self.spreads[name] for patch, name in parts])

    def distance(self, pictures: Tensor, backgrounds: Sequence[str]) -> float:
        """Return the Fréchet distance of patches to other images; 0 for the fitted images."""
        return frechet_distance(self.cloud, self.standardised_features(pictures, backgrounds))
