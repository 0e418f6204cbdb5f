"""Images of ImageNet's classes by MAR, from the folder that `polydraft convert mar` makes.

    pipe = load("mar-base", codec="kl16", method="early-exit")
    pipe("golden retriever", seed=7, iterations=64).image.save("dog.png")

A prompt is a class, by name or number. Plain and drafted generation end every token's chain on a step with noise, which
the published sampler does not (see `SetChain`): so drafts can be accepted, and all methods sample one distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.conformance import EXACT_UP_TO_TIES
from polydraft.modalities.image.families import autoencoder
from polydraft.modalities.image.families.mar.classes import class_index
from polydraft.modalities.image.families.mar.config import read_config
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.masking import MaskingSchedule, generation_order
from polydraft.modalities.image.families.mar.network import MAR, UNCONDITIONAL
from polydraft.modalities.image.families.mar.sampler import SetSampler
from polydraft.modalities.image.families.mar.target import MARTarget
from polydraft.modalities.image.latent.base import LatentTokenPipeline
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.model_card import ModelCard

if TYPE_CHECKING:
    from polydraft.modalities.image.families.mar.config import MARConfig


class MARPipeline(LatentTokenPipeline):
    """Pipeline of MAR, which generates an image in sets of tokens."""

    target_model: MAR  # type: ignore[assignment]

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        if card.device_map is not None:
            raise InvalidArgument(f"device_map is not possible for {card.name}; leave it out, and name one device.")
        self.config: MARConfig = read_config(card.target)
        self.vae: Any = autoencoder.load_autoencoder(card.codec, device, dtype)
        if self.vae.config["latent_channels"] != self.config.channels:
            raise WeightsError(
                f"the autoencoder in {card.codec} has {self.vae.config['latent_channels']} channels and {card.name} "
                f"generates {self.config.channels}; convert kl16.ckpt of github.com/LTH14/mar."
            )
        self.masking: MaskingSchedule = MaskingSchedule.for_length(
            self.config.num_tokens, min(card.defaults["iterations"], self.config.num_tokens)
        )
        self._others: dict[int, Self] = {}
        super().__init__(card, method=method, device=device, dtype=dtype)

    def load_target_model(self, folder: Path) -> Any:
        return MAR.from_folder(folder, self.device, self.dtype)

    def load_drafter_network(self, kind: str, folder: Path) -> Any:
        return MAR.from_folder(folder, self.device, self.dtype)

    def max_positions(self) -> int:
        return 1 + len(self.masking)

    @property
    def is_tested_architecture(self) -> bool:
        return True

    def effective_guarantee(self, guarantee: str, target: Any) -> str:
        """Return `guarantee` without bitwise identity: sums round differently in other batches."""
        return EXACT_UP_TO_TIES if guarantee == "identical" else guarantee

    def bitwise_equal_thread_counts(self, target: Any, counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(counts)  # no bits are guaranteed

    def build_target(self, guided: bool) -> Any:
        return MARTarget(self.target_model, self.sampler, guided=guided)

    @cached_property
    def sampler(self) -> SetSampler:
        steps = self.defaults["steps"]
        return SetSampler(SetChain(self.target_model.net, self.masking.max_set_size, steps), self.masking)

    def with_iterations(self, iterations: int | None) -> Self:
        """Return a pipeline of as many sets, which is the number of target passes without drafts.

        Raises:
            InvalidArgument: there are more iterations than tokens.
        """
        if iterations is None or iterations == len(self.masking):
            return self
        if iterations not in self._others:
            other = copy(self)
            other.masking = MaskingSchedule.for_length(self.config.num_tokens, iterations)
            other._targets, other._methods, other.context_len = {}, {}, 1 + iterations
            other._tuners, other._sizes, other._pass_times = {}, {}, {}
            vars(other).pop("sampler", None)
            self._others[iterations] = other
        return self._others[iterations]

    def options_at_equal_cost(self, result: ImageResult) -> dict[str, Any]:
        if result.stats.guarantee != "lossy":
            return {}
        return {"method": "ar", "iterations": max(row.target_passes for row in result.row_stats)}

    @property
    def token_mask(self) -> Tensor:
        """`[1, V]` bool: no id is generated."""
        return torch.zeros(1, self.config.classes, dtype=torch.bool, device=self.device)

    @property
    def latent_dim(self) -> int:
        return self.config.token_dim

    @property
    def grid(self) -> tuple[int, int]:
        return self.config.side, self.config.side

    @property
    def token_side(self) -> int:
        halvings: int = len(self.vae.config["block_out_channels"]) - 1
        return self.config.patch * 2**halvings

    @property
    def num_new_tokens(self) -> int:
        return len(self.masking)

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        return str(class_index(text, self.config.classes)), []

    def encode_branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (int(caption),), (UNCONDITIONAL,)

    def sample_prompts(self) -> list[PromptInputs]:
        return self.build_prompts(["0"])

    def locate_tokens(self, prompt: PromptInputs, num_previous: int, committed: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the indices that the seed's order gives the committed sets, and their tokens."""
        indices = self.masking.token_indices(generation_order(prompt.seed, self.masking.num_tokens))[
            num_previous : num_previous + len(committed)
        ].flatten()
        is_real = indices < self.masking.num_tokens
        return indices[is_real], self.to_result_tokens(committed)[is_real]

    def decode_pixels(self, tokens: Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> Tensor:
        return autoencoder.decode_latents(self.vae, self.target_model.latents(tokens.nan_to_num(0)))
