"""Text to image by NextStep-1.1 or NextStep-1, from the folder their makers publish.

    pipe = load("NextStep-1.1", codec="nextstep-vae")
    pipe("a baby panda reading a book", seed=7, size="512x512").image.save("panda.png")

The same seed draws the same latents, drafted or not (`core.latent`). Captions are free text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.folders.door import read_pretrained
from polydraft.modalities.image.base import grid_of
from polydraft.modalities.image.families.nextstep.autoencoder import NextStepAutoencoder
from polydraft.modalities.image.families.nextstep.config import NextStepConfig, read_config
from polydraft.modalities.image.families.nextstep.head import NextStepHead
from polydraft.modalities.image.families.nextstep.law import PUBLISHED
from polydraft.modalities.image.families.nextstep.model import NextStep
from polydraft.modalities.image.families.nextstep.prompt import AREA_TOKEN, prompt_ids
from polydraft.modalities.image.latent.base import LatentPictures
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import ModelCard, read_weights

log = logging.getLogger("polydraft.models")
USUAL = 512  # pixels a side that the releases were trained on


class NextStepPipeline(LatentPictures):
    """negative: what the other branch of guidance reads in the caption's place."""

    head: NextStepHead
    negative = ""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        if card.device_map is not None:
            raise InvalidArgument(f"device_map is not possible for {card.name}; leave it out, and name one device.")
        self.config = read_config(card.target)
        self.law = PUBLISHED[self.config.release]
        # the small parts first: what is wrong with them is said before 30 GB are read
        self.tokenizer = tokenizer(card.target, self.config)
        self.autoencoder = NextStepAutoencoder.from_folder(card.codec, self.config, device, dtype)
        self._grid = (USUAL // self.autoencoder.side,) * 2
        super().__init__(card, method=method, device=device, dtype=dtype)
        if not self.law.deviations[-1]:
            log.warning(
                "note: %s draws nothing after the last step of a token, so that no draft of one is ever kept; "
                "use NextStep-1.1, or method ar", card.name,
            )  # fmt: skip

    def read_target(self, folder: Path) -> PreTrainedModel:
        model = NextStep.from_folder(folder, self.device, self.dtype, self.law)
        self.head = model.head
        return model.backbone.model

    def read_drafter(self, kind: str, folder: Path) -> Any:
        """A small NextStep, whose head takes the same steps; or a network on the target's features."""
        if kind != "lm":
            return super().read_drafter(kind, folder)
        own = read_config(folder)
        if (own.size, own.boi, own.backbone["vocab_size"]) != (
            self.config.size, self.config.boi, self.config.backbone["vocab_size"],
        ):  # fmt: skip
            raise WeightsError(
                f"the drafter in {folder} has other ids or latents than {self.card.name}; use a small NextStep that "
                "was trained with its tokenizer and autoencoder."
            )
        model = NextStep.from_folder(folder, self.device, self.dtype, self.law)
        return model.backbone.model, model.head

    @property
    def begin(self) -> int:
        return self.config.boi

    @property
    def grid(self) -> tuple[int, int]:
        return self._grid

    @property
    def token_side(self) -> int:
        return self.autoencoder.side

    def sized(self, size: str | None) -> Self:
        if size in (None, "auto", self.dimensions):
            return self
        grid = grid_of(str(size), self.token_side, self.context, self.card.name, self.dimensions)
        return self.changed(_grid=grid)

    def led_from(self, negative_prompt: str | None) -> Self:
        if not negative_prompt:
            return self
        return self.changed(negative=negative_prompt)

    def caption(self, text: str) -> tuple[str, list[str]]:
        control = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
        return text, [token for token in control if token in text]

    def branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        asked, other = (
            tuple(prompt_ids(self.tokenizer, text, self.grid, self.begin)) for text in (caption, self.negative)
        )
        return asked, other

    def pixels(self, tokens: Tensor, asked: Sequence[Asked] = ()) -> Tensor:
        return self.autoencoder.decode(self.head.tokens(tokens.nan_to_num(0)), self.grid)


def tokenizer(folder: Path, config: NextStepConfig) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`. Raises WeightsError for one that does not know what precedes a picture."""
    made: PreTrainedTokenizerFast = read_weights(
        "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
    )
    known = made.backend_tokenizer.token_to_id
    if known(AREA_TOKEN) is None or made.backend_tokenizer.id_to_token(config.boi) is None:
        raise WeightsError(
            f"the tokenizer in {folder} has no {AREA_TOKEN} or no id {config.boi}, which begins a picture; it is of "
            "another model, download it again."
        )
    return made
