"""Captions of the emoji world, for models whose vocabulary has only its words."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import torch

from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import PromptError
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.base import TextToImagePipeline
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import read_weights
from polydraft.modalities.world.words.parsing import KIND_OF

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from polydraft.modalities.world.worlds import World

MIN_SIMILARITY = 0.8  # difflib's ratio from which on a word is taken for a misspelling


class EmojiVocabulary:
    """Word-level vocabulary of the emoji world, from the folder of its target."""

    def __init__(self, card: ModelCard) -> None:
        self.name: str = card.name
        self.world: World = card.world
        self.model: str = card.load_name
        self.tokenizer: Tokenizer
        self.tokenizer = read_weights("vocabulary", card.path, lambda: vocabulary.load_tokenizer(card.path / "target"))

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        """Return the caption that is generated for a prompt, and the words that are ignored.

        Raises:
            PromptError: the prompt names no object that the model can generate.
        """
        parsed = self.world.rewrite_prompt(text)
        if not parsed.caption:
            suggestion = next(
                filter(None, (did_you_mean(word, KIND_OF, MIN_SIMILARITY) for word in parsed.ignored)), ""
            )
            raise PromptError(
                f"{self.name} can generate nothing that this prompt names{suggestion}; name one to three of its "
                f"things, as in 'two frogs on a blue background'; `polydraft models {quote(self.model)}` lists them."
            )
        return parsed.caption, list(parsed.ignored)

    def encode_branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the token ids of the conditional and the unconditional guidance branch."""
        return tuple(vocabulary.encode_prompt(self.tokenizer, caption)), tuple(
            vocabulary.encode_prompt(self.tokenizer, "")
        )


class EmojiImagePipeline(TextToImagePipeline):
    """Pipeline of a model whose vocabulary has only the words of the emoji world."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.emoji_vocabulary: EmojiVocabulary = EmojiVocabulary(card)

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        return self.emoji_vocabulary.parse_caption(text)

    def encode_branches(self, caption: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.emoji_vocabulary.encode_branches(caption)
