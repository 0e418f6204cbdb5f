"""Captions of the emoji world, for models that read its words alone."""

from __future__ import annotations

from shlex import quote

import torch

from polydraft.core.errors import PromptError
from polydraft.core.suggestions import did_you_mean
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.base import PicturePipeline
from polydraft.modalities.loading import ModelCard, read_weights
from polydraft.modalities.world.words.parsing import KIND_OF

MISSPELT = 0.8  # of difflib's ratio, from which on a word was probably meant as another


class WorldWords:
    """A vocabulary of words of the emoji world, in the folder of its target."""

    def __init__(self, card: ModelCard) -> None:
        self.name, self.world, self.model = card.name, card.world, card.loads_as
        self.words = read_weights("vocabulary", card.path, lambda: vocabulary.load(card.path / "target"))

    def caption(self, text: str) -> tuple[str, list[str]]:
        """Return the caption that is drawn of a prompt, and the words of it that are not.

        Raises:
            PromptError: the prompt names no thing that the model can draw.
        """
        found = self.world.understand(text)
        if not found.caption:
            meant = next(filter(None, (did_you_mean(word, KIND_OF, MISSPELT) for word in found.ignored)), "")
            raise PromptError(
                f"{self.name} can draw nothing that this prompt names{meant}; name one to three of its things, as in "
                f"'two frogs on a blue background'; `polydraft models {quote(self.model)}` lists them."
            )
        return found.caption, list(found.ignored)

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
