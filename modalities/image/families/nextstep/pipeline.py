"""Text to image by NextStep-1.1 or NextStep-1, from the folder that their makers publish.

    pipe = load("NextStep-1.1", codec="nextstep-vae")
    pipe("a baby panda reading a book", seed=7, size="512x512").image.save("panda.png")

The same seed gives the same latents, drafted or not (`core.continuous`). Captions are free text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.folders.readers import read_pretrained
from polydraft.modalities.image.base import grid_of
from polydraft.modalities.image.families.nextstep.autoencoder import NextStepAutoencoder
from polydraft.modalities.image.families.nextstep.config import NextStepConfig, read_config
from polydraft.modalities.image.families.nextstep.head import NextStepHead
from polydraft.modalities.image.families.nextstep.model import NextStep
from polydraft.modalities.image.families.nextstep.prompt import AREA_TOKEN, prompt_ids
from polydraft.modalities.image.families.nextstep.schedule import PUBLISHED_SCHEDULES
from polydraft.modalities.image.latent.base import LatentHeadPipeline
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import read_weights

if TYPE_CHECKING:
    from polydraft.modalities.image.families.nextstep.schedule import FlowSchedule

log: logging.Logger = logging.getLogger("polydraft.models")
DEFAULT_SIZE = 512  # pixels per side, which the releases were trained on


class NextStepPipeline(LatentHeadPipeline):
    """Pipeline of NextStep."""

    head: NextStepHead
    negative_prompt = ""  # what the other guidance branch reads in the caption's place

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        if card.device_map is not None:
            raise InvalidArgument(f"device_map is not possible for {card.name}; leave it out, and name one device.")
        self.config: NextStepConfig = read_config(card.target)
        self.schedule: FlowSchedule = PUBLISHED_SCHEDULES[self.config.release]
        # The small parts come first, so that their errors are raised before 30 GB are read.
        self.tokenizer: Any = load_tokenizer(card.target, self.config)
        self.autoencoder: NextStepAutoencoder = NextStepAutoencoder.from_folder(card.codec, self.config, device, dtype)
        self._grid = (DEFAULT_SIZE // self.autoencoder.side,) * 2
        super().__init__(card, method=method, device=device, dtype=dtype)
        if not self.schedule.step_stds[-1]:
            log.warning(
                "note: %s samples nothing after the last step of a token, so that no draft of one is ever accepted; "
                "use NextStep-1.1, or method ar", card.name,
            )  # fmt: skip

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        model = NextStep.from_folder(folder, self.device, self.dtype, self.schedule)
        self.head = model.head
        return model.backbone.model

    def load_drafter_network(self, kind: str, folder: Path) -> Any:
        """Load a drafter: a small NextStep with the same sampling steps, or a network on the target's features."""
        if kind != "lm":
            return super().load_drafter_network(kind, folder)
        config = read_config(folder)
        if (config.token_dim, config.boi, config.backbone["vocab_size"]) != (
            self.config.token_dim, self.config.boi, self.config.backbone["vocab_size"],
        ):  # fmt: skip
            raise WeightsError(
                f"the drafter in {folder} has other ids or latents than {self.card.name}; use a small NextStep that "
                "was trained with its tokenizer and autoencoder."
            )
        model = NextStep.from_folder(folder, self.device, self.dtype, self.schedule)
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

    def with_size(self, size: str | None) -> Self:
        if size in (None, "auto", self.dimensions):
            return self
        grid = grid_of(str(size), self.token_side, self.context_len, self.card.name, self.dimensions)
        return self.copy_with(_grid=grid)

    def with_negative_prompt(self, negative_prompt: str | None) -> Self:
        if not negative_prompt:
            return self
        return self.copy_with(negative_prompt=negative_prompt)

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        control = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
        return text, [token for token in control if token in text]

    def encode_branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        conditional, unconditional = (
            tuple(prompt_ids(self.tokenizer, text, self.grid, self.begin)) for text in (caption, self.negative_prompt)
        )
        return conditional, unconditional

    def decode_pixels(self, tokens: Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> Tensor:
        return self.autoencoder.decode(self.head.tokens(tokens.nan_to_num(0)), self.grid)


def load_tokenizer(folder: Path, config: NextStepConfig) -> PreTrainedTokenizerFast:
    """Load the tokenizer in `folder`.

    Raises:
        WeightsError: it lacks the tokens that precede an image.
    """
    tokenizer: PreTrainedTokenizerFast = read_weights(
        "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
    )
    token_to_id = tokenizer.backend_tokenizer.token_to_id
    if token_to_id(AREA_TOKEN) is None or tokenizer.backend_tokenizer.id_to_token(config.boi) is None:
        raise WeightsError(
            f"the tokenizer in {folder} has no {AREA_TOKEN} or no id {config.boi}, which begins an image; it is of "
            "another model, download it again."
        )
    return tokenizer
