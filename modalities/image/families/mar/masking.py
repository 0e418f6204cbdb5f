"""Order in which MAR generates tokens, and how strongly each set is guided; both are known before anything is sampled.

    masking = MaskingSchedule.for_length(length=256, iterations=64)    # 1 … 7 tokens, 256 in all
    indices = masking.token_indices(generation_order(seed, 256))       # [64, 7], 256 where a set has fewer
    scales = 1 + (2.9 - 1) * masking.progress

Set sizes follow a cosine (Chang et al. 2022, "MaskGIT", section 3.3), guidance grows with the generated share (Chang et
al. 2023, "Muse", section 2.7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


def set_sizes(length: int, iterations: int) -> list[int]:
    """Return the number of tokens of every iteration, at least one each.

    Raises:
        InvalidArgument: there are more iterations than tokens, or none.
    """
    if not 1 <= iterations <= length:
        raise InvalidArgument(f"{length} tokens cannot be sampled in {iterations} iterations; use 1 to {length}.")
    sizes, masked = [], length
    for iteration in range(1, iterations):
        masked_share = math.cos(math.pi / 2 * iteration / iterations)
        still_masked = max(1, min(masked - 1, math.floor(length * masked_share)))
        sizes.append(masked - still_masked)
        masked = still_masked
    sizes.append(masked)
    return sizes


@dataclass(frozen=True)
class MaskingSchedule:
    """Sizes of an image's sets, in the order they are generated."""

    sizes: tuple[int, ...]

    @staticmethod
    def for_length(length: int, iterations: int) -> MaskingSchedule:
        """Build the schedule of an image with `length` tokens.

        Raises:
            InvalidArgument: there are more iterations than tokens, or none.
        """
        return MaskingSchedule(tuple(set_sizes(length, iterations)))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of an image."""
        return sum(self.sizes)

    @property
    def max_set_size(self) -> int:
        """Return the size of the largest set."""
        return max(self.sizes)

    @cached_property
    def progress(self) -> Tensor:
        """Return `[sets]`, the share of tokens that is generated once the set is; guidance grows with it.

        The last set is guided as if one token were left, as published.
        """
        return torch.tensor(self.sizes).cumsum(0).clamp(max=self.num_tokens - 1) / self.num_tokens

    def token_indices(self, order: Tensor) -> Tensor:
        """Return `[sets, max_set_size]`, each set's indices in the order `[T]`; T where it has fewer."""
        sizes = torch.tensor(self.sizes)
        columns = torch.arange(self.max_set_size).expand(len(self), -1)
        indices = torch.full((len(self), self.max_set_size), self.num_tokens)
        indices[columns < sizes[:, None]] = order
        return indices


def generation_order(seed: int, length: int) -> Tensor:
    """Return `[length]`, the indices of tokens in the order they are generated."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def schedule_positions(indices: Tensor, length: int) -> Tensor:
    """Return `[…, T]`, each token's position among those of all sets, given `token_indices` `[…, sets, S]`."""
    return indices.flatten(-2).argsort(-1)[..., :length]
