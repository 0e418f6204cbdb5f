"""How like rendered scenes drawn ones look, whatever stands in them: power spectra, and a Fréchet distance of patches.

    octaves(drawn).mean(0) / octaves(rendered).mean(0)               # 1 in every octave where texture is right
    Likeness.of(rendered, grounds).distance(drawn, grounds)

A picture with washed-out ground lacks power in the upper octaves; one that repeats a tile has its power in few
frequencies; one ground for all pictures varies too little. The distance sees all three. What is small shows only beside
the distance of two sets of rendered scenes. (Heusel et al. 2017, "GANs trained by a two time-scale update rule", with a
fixed feature in place of a network's.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
OCTAVES = ((1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64))  # cycles a picture, from and to
WINDOW, STEP = 64, 32  # pixels of a patch, and from one to the next
FINEST = 4  # octaves that a patch has: from 2 to 32 cycles a patch
QUIET = 1e-6  # power below which nothing is seen


def luma(pictures: Tensor) -> Tensor:
    """`[..., 3, H, W]` in -1..1 to brightness `[..., H, W]` in 0..1."""
    return torch.tensordot(pictures.movedim(-3, -1) * 0.5 + 0.5, pictures.new_tensor(LUMA), 1)


def power(fields: Tensor) -> Tensor:
    """Power by frequency `[..., S, S // 2 + 1]` of square fields `[..., S, S]`, faded out towards their edges."""
    side = fields.shape[-1]
    fade = torch.hann_window(side, periodic=False, dtype=fields.dtype, device=fields.device)
    centred = (fields - fields.mean((-2, -1), keepdim=True)) * fade[:, None] * fade
    return torch.fft.rfft2(centred, norm="forward").abs().square()


def bands(side: int, octaves: Sequence[tuple[int, int]]) -> Tensor:
    """`[O, side, side // 2 + 1]` bool: which frequencies belong to which octave."""
    down, across = torch.fft.fftfreq(side)[:, None] * side, torch.fft.rfftfreq(side) * side
    radius = torch.sqrt(down.square() + across.square())
    return torch.stack([(radius >= low) & (radius < high) for low, high in octaves])


def octaves(pictures: Tensor) -> Tensor:
    """Mean power of brightness in every octave, `[B, 6]`; pictures `[B, 3, 128, 128]` in -1..1."""
    within = bands(pictures.shape[-1], OCTAVES).to(pictures)
    return torch.einsum("byx,oyx->bo", power(luma(pictures.float())), within) / within.sum((1, 2))


def features(pictures: Tensor) -> Tensor:
    """`[B, 9, 14]` of patches, from pictures `[B, 3, 128, 128]` in -1..1: mean colour and its spread; of every octave
    the logarithm of power, and how much of it is in few frequencies."""
    patches = pictures.float().unfold(2, WINDOW, STEP).unfold(3, WINDOW, STEP).flatten(2, 3).transpose(1, 2)
    colours = patches.mean((-2, -1)), patches.std((-2, -1)).clamp(min=1e-3).log()
    found = power(luma(patches)) + QUIET
    within = bands(WINDOW, [(2 << octave, 4 << octave) for octave in range(FINEST)]).to(found)
    size = within.sum((1, 2))
    total = (torch.einsum("bpyx,oyx->bpo", found, within) / size).log()
    flat = torch.einsum("bpyx,oyx->bpo", found.log(), within) / size - total
    return torch.cat([*colours, total, flat], -1)


def frechet(first: Tensor, second: Tensor) -> float:
    """Fréchet distance of two clouds `[N, D]`, each taken as normally distributed (Dowson and Landau 1982)."""
    one, other = first.double(), second.double()
    covariances = torch.cov(one.T), torch.cov(other.T)
    values, vectors = torch.linalg.eigh(covariances[0])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ covariances[1] @ root).clamp(min=0).sqrt().sum()
    apart = (one.mean(0) - other.mean(0)).square().sum()
    spread = covariances[0].trace() + covariances[1].trace() - 2 * shared
    return max(0.0, float(apart + spread))  # of equal sets it is rounded to either side


@dataclass(frozen=True)
class Likeness:
    """Rendered scenes to compare with. means, spreads: of features by ground, `[14]`; cloud: theirs, `[N, 14]`."""

    means: dict[str, Tensor]
    spreads: dict[str, Tensor]
    cloud: Tensor

    @staticmethod
    def of(pictures: Tensor, grounds: Sequence[str]) -> Likeness:
        """Of rendered pictures `[B, 3, 128, 128]` and what each stands on."""
        found = features(pictures)
        by_ground = {name: found[[ground == name for ground in grounds]].flatten(0, 1) for name in set(grounds)}
        means = {name: part.mean(0) for name, part in by_ground.items()}
        spreads = {name: part.std(0).clamp(min=0.05) for name, part in by_ground.items()}
        bare = Likeness(means, spreads, torch.empty(0))
        return Likeness(means, spreads, bare.standardised(pictures, grounds))

    def standardised(self, pictures: Tensor, grounds: Sequence[str]) -> Tensor:
        """Features of all patches `[N, 14]`, less what is usual on their ground: no ground hides another's faults."""
        parts = zip(features(pictures), grounds, strict=True)
        return torch.cat([(patch - self.means[name]) / self.spreads[name] for patch, name in parts])

    def distance(self, pictures: Tensor, grounds: Sequence[str]) -> float:
        """How far other pictures are, as a Fréchet distance of patches; 0 for these themselves."""
        return frechet(self.cloud, self.standardised(pictures, grounds))
