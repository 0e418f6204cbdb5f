"""Base classes of image pipelines of latents, whatever the backbone, the head and the autoencoder are."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydraft.core.continuous.denoising import LatentSampler
from polydraft.core.continuous.target import DenoisingHead, LatentTarget, check_latent_sampling
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities.image.base import TextToImagePipeline


class LatentTokenPipeline(TextToImagePipeline):
    """Pipeline whose image tokens are latents."""

    @property
    @abstractmethod
    def latent_dim(self) -> int:
        """Return the number of values of a latent."""

    def sampling_params(self, **requested: Any) -> SamplingParams:
        params = super().sampling_params(**requested)
        check_latent_sampling(params)
        return params

    @property
    def codebook(self) -> None:
        return None

    def empty_tokens(self, num_images: int) -> Tensor:
        return torch.full((num_images, self.image_tokens, self.latent_dim), torch.nan)

    def to_result_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        return torch.as_tensor(committed, dtype=torch.float32).view(-1, self.latent_dim)

    def missing_mask(self, tokens: Tensor) -> Tensor:
        return tokens.isnan().any(-1)


class LatentHeadPipeline(LatentTokenPipeline):
    """Pipeline whose latents are sampled by a head, given the backbone's hidden states."""

    head: DenoisingHead

    @property
    def latent_dim(self) -> int:
        return self.head.latent_size

    @property
    @abstractmethod
    def begin(self) -> int:
        """Return the id that every prompt ends with."""

    def build_target(self, guided: bool) -> CausalTarget:
        return LatentTarget(self.target_model, self.head, begin=self.begin, guided=guided, context=self.context_len)

    @cached_property
    def sampler(self) -> LatentSampler:
        return LatentSampler(self.head)

    @property
    def token_mask(self) -> Tensor:
        """`[1, V]` bool: no id is generated."""
        return torch.zeros(1, self.target_model.config.vocab_size, dtype=torch.bool, device=self.device)
