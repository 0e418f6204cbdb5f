"""Latent pictures as rows of tokens and back: a token is a square of `patch` by `patch` latents, channels outermost.

    tokens = patchify(latents, patch=2)      # [B, 16, 64, 64] -> [B, 1024, 64]
    latents = unpatchify(tokens, (32, 32), patch=2)

Tokens are in raster order: rows from the top, each from the left.
"""

from __future__ import annotations

from torch import Tensor


def patchify(latents: Tensor, patch: int) -> Tensor:
    """Latents `[B, C, H, W]` as tokens `[B, H/p · W/p, C · p · p]`."""
    squares = latents.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [B, C, h, p, w, q]
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(tokens: Tensor, grid: tuple[int, int], patch: int) -> Tensor:
    """Tokens `[B, h · w, C · p · p]` of a grid (h, w) as latents `[B, C, h · p, w · p]`."""
    squares = tokens.unflatten(2, (-1, patch, patch)).unflatten(1, grid)  # [B, h, w, C, p, q]
    return squares.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
