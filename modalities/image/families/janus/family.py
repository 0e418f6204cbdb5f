"""Janus and Janus-Pro (deepseek-community/Janus-Pro-1B, -7B): 384x384 in 24x24 codes.

A prompt is `<bos><|User|>: caption\\n\\n<|Assistant|>:<begin_of_image>`; guidance leads away from the same with every
id but the first and the last replaced by <pad>, which is attended to. Codes have embeddings and a head of their own, so
the loop's ids are codes. The settings are those of deepseek-ai/Janus, generation_inference.py (temperature 1, guidance
5, all codes); transformers' `generate` keeps the likeliest 50 by default, and cannot do without guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.image.family import GuidanceBranches, ImageFamily, ImageFamilyParts
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import load_pretrained

BOI = "<begin_of_image>"


class Janus(ImageFamily):
    """Folder of transformers' `JanusForConditionalGeneration`."""

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        config = self.model.config
        self.vocab_size: int = config.vq_config.num_embeddings
        self.pixels_per_code: int = 2 ** (len(config.vq_config.channel_multiplier) - 1)
        side = isqrt(config.vision_config.num_image_tokens)
        self.grid: tuple[int, int] = side, side
        if side**2 != config.vision_config.num_image_tokens or side != self.decoder.quantize.quant_state_dims[0]:
            raise WeightsError(
                f"{self.card.name} generates {config.vision_config.num_image_tokens} codes and its decoder reads "
                f"{self.decoder.quantize.quant_state_dims[0] ** 2}; its parts are of several models, download it again."
            )
        self.prompt_tokenizer: Any = PromptTokenizer(parts.card.target, parts.card.name, self.prompt_vocab_size)
        self.boi: Any
        self.pad: int
        self.boi, self.pad = self.prompt_tokenizer.id(BOI), self.find_special_token_id("pad")
        self.bos: int = self.find_special_token_id("bos")

    def find_special_token_id(self, name: str) -> int:
        """Return the id of a special token, from the tokenizer or a configuration.

        Raises:
            WeightsError: none of them names it.
        """
        for source in (self.prompt_tokenizer.tokenizer, self.model.generation_config, self.config):
            if (token_id := getattr(source, f"{name}_token_id", None)) is not None:
                return int(token_id)
        raise WeightsError(f"{self.card.name} says nowhere which id its {name} token is; download it again.")

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import JanusForConditionalGeneration

        model: Any = load_pretrained(JanusForConditionalGeneration, card.target, device, dtype, device_map)
        for name in ("vision_model", "aligner"):  # they read images
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
    def lm_head(self) -> nn.Linear:
        projection: nn.Linear = self.model.model.generation_head.vision_head
        return projection

    def project_hidden_states(self, features: Tensor) -> Tensor:
        head = self.model.model.generation_head
        head_inputs: Tensor = head.activation_fn(head.proj_out(features))
        return head_inputs

    def embed_generated(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.prepare_embeddings_for_image_generation(ids)
        return embeddings

    @property
    def codebook_embeddings(self) -> Tensor:
        """Return normalised embeddings, as the decoder looks codes up."""
        return nn.functional.normalize(self.decoder.quantize.embedding.weight.float(), dim=-1)

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        embeddings = self.prompt_tokenizer.ids(
            f"<|User|>: {self.prompt_tokenizer.plain(caption)}\n\n<|Assistant|>:{BOI}"
        )
        ids = (self.bos, *embeddings) if embeddings[0] != self.bos else tuple(embeddings)
        return GuidanceBranches((ids, tuple(id_ if id_ in (self.bos, self.boi) else self.pad for id_ in ids)))

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        pixels: Tensor = self.decoder.decode(codes.flatten(1))
        return pixels
