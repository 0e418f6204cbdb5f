"""Captions of the emoji world, for models that read its words alone."""

from __future__ import annotations

import torch

from polydraft.core.errors import PromptError
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.base import PicturePipeline
from polydraft.modalities.loading import ModelCard, read_weights

LONGEST_PROMPT = 46  # words the model reads


class WorldWords:
    """A vocabulary of words of the emoji world, in the folder of its target."""

    def __init__(self, card: ModelCard) -> None:
        self.name, self.world = card.name, card.world
        self.words = read_weights("vocabulary", card.path, lambda: vocabulary.load(card.path / "target"))

    def caption(self, text: str) -> tuple[str, list[str]]:
        """What is read of a prompt, and the words that are not known; raises PromptError."""
        words, unknown = self.world.normalise(text)
        if not words:
            raise PromptError(
                f"{self.name} knows no word of this prompt; `polydraft models {self.name}` lists what it can draw."
            )
        if len(words) > LONGEST_PROMPT:
            raise PromptError(f"the prompt has {len(words)} words the model reads; use at most {LONGEST_PROMPT}.")
        return " ".join(words), list(unknown)

    def branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of both branches of guidance."""
        return tuple(vocabulary.prompt_ids(self.words, caption)), tuple(vocabulary.prompt_ids(self.words, ""))


class WorldPictures(PicturePipeline):
    """A model whose vocabulary is words of the emoji world."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.text = WorldWords(card)

    def caption(self, text: str) -> tuple[str, list[str]]:
        return self.text.caption(text)

    def branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.text.branches(caption)
