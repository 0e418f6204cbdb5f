"""Conversion of latent images to tokens, which are patches of `patch` by `patch` latents, and back.

    tokens = patchify(latents, patch=2)      # [B, 16, 64, 64] -> [B, 1024, 64]
    latents = unpatchify(tokens, (32, 32), patch=2)

Tokens are in raster order: rows from top to bottom, each from left to right.
"""

from __future__ import annotations

from torch import Tensor


def patchify(latents: Tensor, patch: int) -> Tensor:
    """Convert latents `[B, C, H, W]` to tokens `[B, H/p · W/p, C · p · p]`, channels outermost in a token."""
    patches = latents.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [B, C, h, p, w, q]
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(tokens: Tensor, grid: tuple[int, int], patch: int) -> Tensor:
    """Convert tokens `[B, h · w, C · p · p]` of a grid (h, w) to latents `[B, C, h · p, w · p]`."""
    patches = tokens.unflatten(2, (-1, patch, patch)).unflatten(1, grid)  # [B, h, w, C, p, q]
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
