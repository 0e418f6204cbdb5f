"""What pipelines of pictures of latents share, whatever the backbone, the head and the autoencoder are."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydraft.core.latent.law import LatentSampler
from polydraft.core.latent.target import Head, LatentTarget, check
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import CausalTarget
from polydraft.modalities.image.base import PicturePipeline


class LatentTokens(PicturePipeline):
    """Tokens of pictures are latents, whatever draws them."""

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Numbers a latent."""

    def sampling(self, **asked: Any) -> Sampling:
        found = super().sampling(**asked)
        check(found)
        return found

    @property
    def codes(self) -> None:
        return None

    def blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.image_tokens, self.coordinates), torch.nan)

    def read_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        return torch.as_tensor(committed, dtype=torch.float32).view(-1, self.coordinates)

    def missing(self, tokens: Tensor) -> Tensor:
        return tokens.isnan().any(-1)


class LatentPictures(LatentTokens):
    """head: what draws a latent, given what the backbone says of its place."""

    head: Head

    @property
    def coordinates(self) -> int:
        return self.head.size

    @property
    @abstractmethod
    def begin(self) -> int:
        """The id that every prompt ends with."""

    def adapted(self, guided: bool) -> CausalTarget:
        return LatentTarget(self.target_model, self.head, begin=self.begin, guided=guided, context=self.context)

    @cached_property
    def sampler(self) -> LatentSampler:
        return LatentSampler(self.head)

    @property
    def mask(self) -> Tensor:
        """`[1, V]` bool: no id is generated."""
        return torch.zeros(1, self.target_model.config.vocab_size, dtype=torch.bool, device=self.device)
