"""Pictures of ImageNet's classes by MAR, from the folder that `polydraft convert mar` makes.

    pipe = load("mar-base", codec="kl16", method="early-exit")
    pipe("golden retriever", seed=7, iterations=64).image.save("dog.png")

A prompt is a class, by name or number. Plain and drafted drawing end every token's chain on a step with noise, which
the published sampler does not (see `SetChain`): so drafts can be kept, and every method has one law.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.model.proof import TIES_APART
from polydraft.core.target import Prompt
from polydraft.modalities.image.families import autoencoder
from polydraft.modalities.image.families.mar.classes import number
from polydraft.modalities.image.families.mar.config import read_config
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.law import SetSampler
from polydraft.modalities.image.families.mar.network import MAR, UNCONDITIONAL
from polydraft.modalities.image.families.mar.sets import Sets, order
from polydraft.modalities.image.families.mar.target import MARTarget
from polydraft.modalities.image.latent.base import LatentTokens
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import ModelCard


class MARPipeline(LatentTokens):
    """sets: what a picture is drawn in."""

    target_model: MAR  # type: ignore[assignment]

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        if card.device_map is not None:
            raise InvalidArgument(f"device_map is not possible for {card.name}; leave it out, and name one device.")
        self.config = read_config(card.target)
        self.vae = autoencoder.load(card.codec, device, dtype)
        if self.vae.config["latent_channels"] != self.config.channels:
            raise WeightsError(
                f"the autoencoder in {card.codec} has {self.vae.config['latent_channels']} channels and {card.name} "
                f"draws {self.config.channels}; convert kl16.ckpt of github.com/LTH14/mar."
            )
        self.sets = Sets.of(self.config.length, min(card.defaults["iterations"], self.config.length))
        self._others: dict[int, Self] = {}
        super().__init__(card, method=method, device=device, dtype=dtype)

    def read_target(self, folder: Path) -> Any:
        return MAR.from_folder(folder, self.device, self.dtype)

    def read_drafter(self, kind: str, folder: Path) -> Any:
        return MAR.from_folder(folder, self.device, self.dtype)

    def positions(self) -> int:
        return 1 + len(self.sets)

    @property
    def covered(self) -> bool:
        return True

    def label(self, guarantee: str, target: Any) -> str:
        """Sums round differently among other rows, and nothing here keeps their order."""
        return TIES_APART if guarantee == "identical" else guarantee

    def counts_alike(self, target: Any, counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(counts)  # nothing is promised of their bits

    def adapted(self, guided: bool) -> Any:
        return MARTarget(self.target_model, self.sampler, guided=guided)

    @cached_property
    def sampler(self) -> SetSampler:
        steps = self.defaults["steps"]
        return SetSampler(SetChain(self.target_model.net, self.sets.widest, steps), self.sets)

    def drawn_in(self, iterations: int | None) -> Self:
        """As many passes, if nothing is drafted. Raises InvalidArgument."""
        if iterations is None or iterations == len(self.sets):
            return self
        if iterations not in self._others:
            other = copy(self)
            other.sets = Sets.of(self.config.length, iterations)
            other._targets, other._methods, other.context = {}, {}, 1 + iterations
            other._tuners, other._sizes, other._pass_times = {}, {}, {}
            vars(other).pop("sampler", None)
            self._others[iterations] = other
        return self._others[iterations]

    def as_costly(self, result: ImageResult) -> dict[str, Any]:
        if result.stats.guarantee != "lossy":
            return {}
        return {"method": "ar", "iterations": max(row.target_passes for row in result.row_stats)}

    @property
    def mask(self) -> Tensor:
        """`[1, V]` bool: no id is generated."""
        return torch.zeros(1, self.config.classes, dtype=torch.bool, device=self.device)

    @property
    def coordinates(self) -> int:
        return self.config.size

    @property
    def grid(self) -> tuple[int, int]:
        return self.config.side, self.config.side

    @property
    def token_side(self) -> int:
        halvings: int = len(self.vae.config["block_out_channels"]) - 1
        return self.config.patch * 2**halvings

    @property
    def budget(self) -> int:
        return len(self.sets)

    def caption(self, text: str) -> tuple[str, list[str]]:
        return str(number(text, self.config.classes)), []

    def branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (int(caption),), (UNCONDITIONAL,)

    def sample_prompts(self) -> list[Prompt]:
        return self.prompts_to_ids(["0"])

    def placed(self, prompt: Prompt, had: int, committed: list[Any]) -> tuple[Tensor, Tensor]:
        """Where the order of the seed puts them."""
        places = self.sets.places(order(prompt.seed, self.sets.length))[had : had + len(committed)].flatten()
        real = places < self.sets.length
        return places[real], self.read_tokens(committed)[real]

    def pixels(self, tokens: Tensor, asked: Sequence[Asked] = ()) -> Tensor:
        return autoencoder.pixels(self.vae, self.target_model.latents(tokens.nan_to_num(0)))
