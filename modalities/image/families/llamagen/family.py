"""LlamaGen: images of a caption, encoded by flan-t5-xl, or of one of 1000 classes of ImageNet, given by its number.

A caption is cleaned twice as PixArt's are (diffusers has that, and needs beautifulsoup4 and ftfy for it; without them
it is put in lower case) and may have 120 tokens; published code truncates longer ones. Published prompts are padded on
the left up to 120 positions, which are masked; here they have no padding, since a prompt's positions are all alike.
Guidance leads away from the last of 120 learned features, as many as the caption has, or from the class that is none.
Makers: temperature 1; guidance 7.5 and the best 1000 codes for captions, 4 and the best 2000 for classes
(autoregressive/sample/sample_t2i.py, sample_c2i.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.errors import InvalidArgument, PromptError, WeightsError
from polydraft.core.folders.readers import read_model
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.families.llamagen.config import LlamaGenConfig
from polydraft.modalities.image.families.llamagen.network import load_model
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.image.family import GuidanceBranches, ImageFamily, ImageFamilyParts
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weight_paths import refuse_pickles
from polydraft.modalities.weights import load_pretrained, read_weights

log: logging.Logger = logging.getLogger("polydraft.models")


class LlamaGen(ImageFamily):
    """Folder made by `polydraft convert llamagen`, with a subfolder vq that decodes codes."""

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.llamagen_config: LlamaGenConfig = LlamaGenConfig.read(parts.card.path)
        self.grid: tuple[int, int] = self.llamagen_config.side, self.llamagen_config.side
        self.decoder: Any = self.load_decoder(parts.card.path / "vq")
        self.pixels_per_code: int = 2 ** (len(self.decoder.config.channel_multiplier) - 1)
        if len(self.raw_codebook) != self.vocab_size:
            raise WeightsError(
                f"{self.card.name} generates {self.vocab_size} different codes and its vq knows "
                f"{len(self.raw_codebook)}; convert both of one release again."
            )

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        if device_map is not None:
            raise InvalidArgument(f"device_map is not possible for {card.name}; leave it out, and name one device.")
        return load_model(card.target, device, dtype)

    def load_decoder(self, folder: Path) -> Any:
        """Load the image tokenizer without its encoder."""
        from transformers import JanusVQVAE

        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"{folder.parent} has no vq; convert what makes pixels of its codes with "
                f"`polydraft convert llamagen-vq vq_ds16_t2i.pt --out {quote(str(folder))}` "
                "(vq_ds16_c2i.pt for classes)."
            )
        decoder: Any = load_pretrained(JanusVQVAE, folder, self.device, self.model.dtype)
        decoder.encoder = torch.nn.Identity()
        decoder.quantize.quant_state_dims = list(self.grid)
        return decoder

    @property
    def raw_codebook(self) -> Tensor:
        weight: Tensor = self.decoder.quantize.embedding.weight
        return weight

    @property
    def codebook_embeddings(self) -> Tensor:
        """Return normalised embeddings, as the decoder looks codes up."""
        return F.normalize(self.raw_codebook.float(), dim=-1)

    def rotary_positions(self, positions: Tensor) -> Tensor:
        return positions

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        pixels: Tensor = self.decoder.decode(codes.flatten(1))
        return pixels


class ClassConditionalLlamaGen(LlamaGen):
    """LlamaGen of classes, whose prompt ids are classes."""

    uses_prompt_embeddings = True  # branches end with different ids

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.prompt_vocab_size: int = self.llamagen_config.classes + 1

    def embed_prompt(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.cls_embedding(ids)
        return embeddings

    def embed_generated(self, ids: Tensor) -> Tensor:
        return super().embed_prompt(ids)

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        label = text.strip()
        if not (label.isascii() and label.isdigit() and int(label) < self.llamagen_config.classes):
            raise PromptError(
                f"{self.card.name} generates classes and not {text!r:.40}; give the number of one, from 0 to "
                f"{self.llamagen_config.classes - 1}."
            )
        return label, []

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        return GuidanceBranches(((int(caption),), (self.llamagen_config.classes,)))


class CaptionConditionalLlamaGen(LlamaGen):
    """LlamaGen of captions; it reads flan-t5's features of them, and no embeddings of prompt ids."""

    uses_prompt_embeddings: ClassVar[bool] = True
    has_token_only_prompts: ClassVar[bool] = False

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        folder = parts.card.path / "text"
        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"{parts.card.path} has no text; put google/flan-t5-xl (Apache-2.0) into its subfolder text."
            )
        self.text_encoder: Any = self.load_text_encoder(folder)
        self.prompt_vocab_size: int = self.text_encoder.config.vocab_size
        self.prompt_tokenizer: Any = PromptTokenizer(folder, parts.card.name, self.prompt_vocab_size)
        if self.text_encoder.config.d_model != self.llamagen_config.caption:
            raise WeightsError(
                f"{self.card.name} reads {self.llamagen_config.caption} features of a word and the model in "
                f"{folder} has {self.text_encoder.config.d_model}; put google/flan-t5-xl there."
            )

    def load_text_encoder(self, folder: Path) -> Any:
        """Load the encoder of a T5; other tensors in its files are ignored."""
        from transformers import T5EncoderModel

        refuse_pickles(folder)

        def load_encoder() -> Any:
            loaded: Any = read_model(
                "text encoder", T5EncoderModel, folder, dtype=self.model.dtype, output_loading_info=True
            )
            model, report = loaded
            if report["missing_keys"]:
                raise ValueError(f"{len(report['missing_keys'])} tensors are missing")
            return model.to(self.device).eval().requires_grad_(False)

        return read_weights("text encoder", folder, load_encoder)

    def embed_prompt(self, ids: Tensor) -> Tensor:
        """Return the learned features of an empty caption, whatever the ids; captions bring their own."""
        empty = self.model.cls_embedding.uncond_embedding
        embeddings: Tensor = self.model.cls_embedding(empty[ids % len(empty)])
        return embeddings

    def embed_generated(self, ids: Tensor) -> Tensor:
        return super().embed_prompt(ids)

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        ids = self.prompt_tokenizer.ids(self.clean_caption(self.prompt_tokenizer.plain(caption)), framed=True)
        max_tokens = self.llamagen_config.prompt
        if len(ids) > max_tokens:
            name = self.card.name
            raise PromptError(
                f"the prompt has {len(ids)} tokens and {name} reads at most {max_tokens}; shorten the prompt."
            )
        features = self.text_encoder(input_ids=torch.tensor([ids], device=self.device)).last_hidden_state[0]
        empty_ids = tuple(range(max_tokens - len(ids), max_tokens))
        empty_features = self.embed_prompt(torch.tensor(empty_ids, device=self.device))
        return GuidanceBranches((tuple(ids), empty_ids), (self.model.cls_embedding(features), empty_features))

    def clean_caption(self, caption: str) -> str:
        """Clean a caption as PixArt does, if the packages for it are installed."""
        if self.caption_cleaner is None:
            return caption.lower().strip()
        for _ in range(2):
            caption = self.caption_cleaner._clean_caption(self.caption_cleaner, caption)
        return caption

    @cached_property
    def caption_cleaner(self) -> Any:
        """Return the class that cleans captions; None if its packages are missing."""
        from diffusers import PixArtAlphaPipeline
        from diffusers.utils.import_utils import is_bs4_available, is_ftfy_available

        if is_bs4_available() and is_ftfy_available():
            return PixArtAlphaPipeline
        log.warning(
            "note: captions for %s are only put in lower case; install beautifulsoup4 and ftfy to clean them as its "
            "makers do", self.card.name,
        )  # fmt: skip
        return None
