"""Janus and Janus-Pro (deepseek-community/Janus-Pro-1B, -7B): 384x384 in 24x24 codes.

A prompt is `<bos><|User|>: caption\\n\\n<|Assistant|>:<begin_of_image>`; guidance leads away from the same with every
id but the first and the last replaced by <pad>, which is attended to. Codes have embeddings and a head of their own, so
the loop's ids are codes. What its makers do is in deepseek-ai/Janus, generation_inference.py (temperature 1, guidance
5, all codes); transformers' `generate` keeps the likeliest 50 where nothing is said, and cannot do without guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.text import Words
from polydraft.modalities.image.family import Branches, Parts, PictureFamily
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import DeviceMap, ModelCard, pretrained

BOI = "<begin_of_image>"


class Janus(PictureFamily):
    """A folder of transformers' `JanusForConditionalGeneration`."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        whole = self.model.config
        self.size = whole.vq_config.num_embeddings
        self.side = 2 ** (len(whole.vq_config.channel_multiplier) - 1)
        across = isqrt(whole.vision_config.num_image_tokens)
        self.grid = across, across
        if across**2 != whole.vision_config.num_image_tokens or across != self.decoder.quantize.quant_state_dims[0]:
            raise WeightsError(
                f"{self.card.name} draws {whole.vision_config.num_image_tokens} codes and its decoder reads "
                f"{self.decoder.quantize.quant_state_dims[0] ** 2}; its parts are of several models, download it again."
            )
        self.text = Words(parts.card.target, parts.card.name, self.words)
        self.boi, self.pad = self.text.id(BOI), self.special("pad")
        self.bos = self.special("bos")

    def special(self, name: str) -> int:
        """An id that the configuration of text says, or else the tokenizer."""
        for place in (self.text.tokenizer, self.model.generation_config, self.config):
            if (found := getattr(place, f"{name}_token_id", None)) is not None:
                return int(found)
        raise WeightsError(f"{self.card.name} says nowhere which id its {name} token is; download it again.")

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import JanusForConditionalGeneration

        model: Any = pretrained(JanusForConditionalGeneration, card.target, device, dtype, device_map)
        for name in ("vision_model", "aligner"):  # they look at pictures
            setattr(model.model, name, nn.Identity())
        model.model.vqmodel.encoder = nn.Identity()
        model.lm_head = nn.Identity()
        return model

    @property
    def decoder(self) -> Any:
        return self.model.model.vqmodel

    @property
    def backbone(self) -> nn.Module:
        backbone: nn.Module = self.model.model.language_model
        return backbone

    @property
    def projection(self) -> nn.Linear:
        projection: nn.Linear = self.model.model.generation_head.vision_head
        return projection

    def states(self, features: Tensor) -> Tensor:
        head = self.model.model.generation_head
        states: Tensor = head.activation_fn(head.proj_out(features))
        return states

    def embed(self, ids: Tensor) -> Tensor:
        read: Tensor = self.model.prepare_embeddings_for_image_generation(ids)
        return read

    @property
    def vectors(self) -> Tensor:
        """As the decoder looks them up: of length one."""
        return nn.functional.normalize(self.decoder.quantize.embedding.weight.float(), dim=-1)

    def prompt(self, caption: str, negative: str) -> Branches:
        read = self.text.ids(f"<|User|>: {self.text.plain(caption)}\n\n<|Assistant|>:{BOI}")
        ids = (self.bos, *read) if read[0] != self.bos else tuple(read)
        return Branches((ids, tuple(id_ if id_ in (self.bos, self.boi) else self.pad for id_ in ids)))

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        drawn: Tensor = self.decoder.decode(codes.flatten(1))
        return drawn
