"""LlamaGen's pictures: of a caption, read by flan-t5-xl, or of one of 1000 classes of ImageNet, said by its number.

A caption is cleaned twice as PixArt's are (diffusers has that, and needs beautifulsoup4 and ftfy for it; without them
it is put in lower case) and may have 120 tokens; published code cuts longer ones. Published prompts are padded on the
left up to 120 places, which nothing attends to; here they have no padding, since a prompt's places are all alike.
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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.errors import InvalidArgument, PromptError, WeightsError
from polydraft.core.folders.door import read_model
from polydraft.modalities.hub import refuse_pickles
from polydraft.modalities.image.families.llamagen.config import LlamaGenConfig
from polydraft.modalities.image.families.llamagen.network import load
from polydraft.modalities.image.families.text import Words
from polydraft.modalities.image.family import Branches, Parts, PictureFamily
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import DeviceMap, ModelCard, pretrained, read_weights

log = logging.getLogger("polydraft.models")


class LlamaGen(PictureFamily):
    """A folder made by `polydraft convert llamagen`, with a subfolder vq that makes pixels of codes."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.shape = LlamaGenConfig.read(parts.card.path)
        self.grid = self.shape.side, self.shape.side
        self.decoder = self.read_decoder(parts.card.path / "vq")
        self.side = 2 ** (len(self.decoder.config.channel_multiplier) - 1)
        if len(self.codebook) != self.size:
            raise WeightsError(
                f"{self.card.name} draws {self.size} different codes and its vq knows {len(self.codebook)}; convert "
                "both of one release again."
            )

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        if device_map is not None:
            raise InvalidArgument(f"device_map is not possible for {card.name}; leave it out, and name one device.")
        return load(card.target, device, dtype)

    def read_decoder(self, folder: Path) -> Any:
        from transformers import JanusVQVAE

        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"{folder.parent} has no vq; convert what makes pixels of its codes with "
                f"`polydraft convert llamagen-vq vq_ds16_t2i.pt --out {quote(str(folder))}` "
                "(vq_ds16_c2i.pt for classes)."
            )
        decoder: Any = pretrained(JanusVQVAE, folder, self.device, self.model.dtype)
        decoder.encoder = torch.nn.Identity()
        decoder.quantize.quant_state_dims = list(self.grid)
        return decoder

    @property
    def codebook(self) -> Tensor:
        weight: Tensor = self.decoder.quantize.embedding.weight
        return weight

    @property
    def vectors(self) -> Tensor:
        """As the decoder looks them up: of length one."""
        return F.normalize(self.codebook.float(), dim=-1)

    def coordinates(self, places: Tensor) -> Tensor:
        return places

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        drawn: Tensor = self.decoder.decode(codes.flatten(1))
        return drawn


class OfClasses(LlamaGen):
    """Ids of prompts are classes."""

    embeds = True  # branches end with different ids

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.words = self.shape.classes + 1

    def read(self, ids: Tensor) -> Tensor:
        read: Tensor = self.model.cls_embedding(ids)
        return read

    def embed(self, ids: Tensor) -> Tensor:
        return super().read(ids)

    def caption(self, text: str) -> tuple[str, list[str]]:
        label = text.strip()
        if not (label.isascii() and label.isdigit() and int(label) < self.shape.classes):
            raise PromptError(
                f"{self.card.name} draws classes and not {text!r:.40}; give the number of one, from 0 to "
                f"{self.shape.classes - 1}."
            )
        return label, []

    def prompt(self, caption: str, negative: str) -> Branches:
        return Branches(((int(caption),), (self.shape.classes,)))


class OfCaptions(LlamaGen):
    """Ids of prompts are flan-t5's, and say nothing: what is read is its features of them."""

    embeds, worded = True, False

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        folder = parts.card.path / "text"
        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"{parts.card.path} has no text; put google/flan-t5-xl (Apache-2.0) into its subfolder text."
            )
        self.reader = self.read_reader(folder)
        self.words = self.reader.config.vocab_size
        self.text = Words(folder, parts.card.name, self.words)
        if self.reader.config.d_model != self.shape.caption:
            raise WeightsError(
                f"{self.card.name} reads {self.shape.caption} features of a word and the model in {folder} has "
                f"{self.reader.config.d_model}; put google/flan-t5-xl there."
            )

    def read_reader(self, folder: Path) -> Any:
        """The encoder of a T5; what else its files hold is let be."""
        from transformers import T5EncoderModel

        refuse_pickles(folder)

        def read() -> Any:
            loaded: Any = read_model(
                "text encoder", T5EncoderModel, folder, dtype=self.model.dtype, output_loading_info=True
            )
            model, report = loaded
            if report["missing_keys"]:
                raise ValueError(f"{len(report['missing_keys'])} tensors are missing")
            return model.to(self.device).eval().requires_grad_(False)

        return read_weights("text encoder", folder, read)

    def read(self, ids: Tensor) -> Tensor:
        """What is read of no caption, whatever the ids are; captions come with what is read of them."""
        empty = self.model.cls_embedding.uncond_embedding
        read: Tensor = self.model.cls_embedding(empty[ids % len(empty)])
        return read

    def embed(self, ids: Tensor) -> Tensor:
        return super().read(ids)

    def prompt(self, caption: str, negative: str) -> Branches:
        ids = self.text.ids(self.cleaned(self.text.plain(caption)), framed=True)
        most = self.shape.prompt
        if len(ids) > most:
            name = self.card.name
            raise PromptError(f"the prompt has {len(ids)} tokens and {name} reads at most {most}; shorten the prompt.")
        features = self.reader(input_ids=torch.tensor([ids], device=self.device)).last_hidden_state[0]
        none = tuple(range(most - len(ids), most))
        away = self.read(torch.tensor(none, device=self.device))
        return Branches((tuple(ids), none), (self.model.cls_embedding(features), away))

    def cleaned(self, caption: str) -> str:
        if self.cleaner is None:
            return caption.lower().strip()
        for _ in range(2):
            caption = self.cleaner._clean_caption(self.cleaner, caption)
        return caption

    @cached_property
    def cleaner(self) -> Any:
        """What cleans captions; None where it lacks what it needs."""
        from diffusers import PixArtAlphaPipeline
        from diffusers.utils.import_utils import is_bs4_available, is_ftfy_available

        if is_bs4_available() and is_ftfy_available():
            return PixArtAlphaPipeline
        log.warning(
            "note: captions for %s are only put in lower case; install beautifulsoup4 and ftfy to clean them as its "
            "makers do", self.card.name,
        )  # fmt: skip
        return None
