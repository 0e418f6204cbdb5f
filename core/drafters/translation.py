"""A drafter whose words are not the target's: what it reads for an id, and which of its own ids says it.

    translation = Translation.by_name(target_words, own_words, spelt)
    logits = translation.heard(own_logits)                                # over the target's vocabulary

What only one of the two vocabularies has is never drafted; the target still says it when it wants to, so nothing
changes but the speed (Timor et al. 2025, arXiv 2502.05202, token-level intersection).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Translation:
    """read: `[V]`, what the drafter reads for each of the target's ids.

    said: `[V]`, which of its own ids says each; one past its last where none does.
    """

    read: Tensor
    said: Tensor

    @staticmethod
    def by_number(size: int, own: int) -> Translation:
        """For a family whose vocabulary is padded to several sizes: numbers mean the same as far as both go."""
        ids = torch.arange(size)
        return Translation(ids.where(ids < own, 0), ids.clamp(max=own))

    @staticmethod
    def by_name(
        words: Mapping[str, int], own_words: Mapping[str, int], size: int, own: int, spelt: Callable[[str], int]
    ) -> Translation:
        """For two tokenizers. size, own: ids they have; spelt: the drafter's id nearest to a word it lacks."""
        read, said = torch.zeros(size, dtype=torch.long), torch.full((size,), own)
        for word, number in words.items():
            if word in own_words and own_words[word] < own:
                read[number] = said[number] = own_words[word]
            else:
                read[number] = spelt(word)
        return Translation(read, said)

    def to(self, device: torch.device) -> Translation:
        return Translation(self.read.to(device), self.said.to(device))

    def heard(self, logits: Tensor) -> Tensor:
        """The drafter's logits `[..., own]` over the target's ids, `[..., V]`; -inf for what it cannot say."""
        return F.pad(logits, (0, 1), value=float("-inf"))[..., self.said]
