"""Captions of the emoji world, for pipelines of models that read its words alone."""

from __future__ import annotations

import torch

from polydraft.core.errors import PromptError
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.base import PicturePipeline
from polydraft.modalities.loading import ModelCard, read_weights

LONGEST_PROMPT = 46  # words the model reads


class WorldPictures(PicturePipeline):
    """A model whose vocabulary is words of the emoji world, in the folder of its target."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.text = read_weights("vocabulary", card.path, lambda: vocabulary.load(card.path / "target"))

    def caption(self, text: str) -> tuple[str, list[str]]:
        words, unknown = self.card.world.normalise(text)
        if not words:
            raise PromptError(
                f"{self.card.name} knows no word of this prompt; "
                f"`polydraft models {self.card.name}` lists what it can draw."
            )
        if len(words) > LONGEST_PROMPT:
            raise PromptError(f"the prompt has {len(words)} words the model reads; use at most {LONGEST_PROMPT}.")
        return " ".join(words), list(unknown)

    def branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(vocabulary.prompt_ids(self.text, caption)), tuple(vocabulary.prompt_ids(self.text, ""))
