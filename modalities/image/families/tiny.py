"""The project's own pictures: words of the emoji world and codes in one vocabulary, and a tokenizer of their own.

A model whose vocabulary has plans writes one before it draws (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.law.history import History
from polydraft.core.target import CausalTarget
from polydraft.modalities.image import shows, vocabulary
from polydraft.modalities.image.family import Branches, Parts, PictureFamily
from polydraft.modalities.image.plan import Slots
from polydraft.modalities.image.run import Asked
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.image.world import WorldWords
from polydraft.modalities.loading import read_weights


class TinyImage(PictureFamily):
    """A folder made by `polydraft train tiny-image`. The loop's ids are its whole vocabulary."""

    speaks = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.world = WorldWords(parts.card)
        self.first = vocabulary.code_offset(self.world.words)
        folder, dtype = parts.card.path / "tokenizer", parts.model.dtype
        self.vq = read_weights(
            "tokenizer", folder, lambda: VQTokenizer.from_folder(folder).to(parts.device, dtype).eval()
        )
        self.grid = self.vq.config.grid, self.vq.config.grid
        self.side = self.vq.config.image_size // self.vq.config.grid
        wanted = self.first + len(self.vq.codebook)
        if wanted != self.size:
            raise WeightsError(
                f"the words and codes in {parts.card.path} are {wanted} ids and its target knows {self.size}; "
                "its parts are of several models, install it again."
            )
        told = read_weights("table of codes", folder, lambda: shows.load(folder, len(self.vq.codebook)))
        self.slots = Slots.of(self.world.words, ~self.table.isnan().any(-1), told)
        self.narrowing, self.planned = self.slots.narrowing, self.slots.length

    @property
    def budget(self) -> int:
        return self.slots.length + super().budget

    @property
    def placed(self) -> Tensor:
        return torch.cat([torch.full((self.slots.length,), -1), super().placed[: super().budget]])

    @property
    def classes(self) -> Tensor:
        return self.slots.classes

    def slot(self, history: History) -> Tensor:
        return self.slots(history)

    def caption(self, text: str) -> tuple[str, list[str]]:
        return self.world.caption(text)

    def prompt(self, caption: str, negative: str) -> Branches:
        return Branches(self.world.branches(caption))

    @property
    def vectors(self) -> Tensor:
        return self.vq.codebook

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        return self.vq.decode(codes)

    def target(self, guided: bool) -> CausalTarget:
        return CausalTarget(self.model, guided=guided, context=self.context)
