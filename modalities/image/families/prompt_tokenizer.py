"""Tokenizer of prompts, for families with a Hugging Face tokenizer.

    tokenizer = PromptTokenizer(folder, "Janus-Pro-1B", num_ids=102400)
    tokenizer.ids(f"<|User|>: {tokenizer.plain(caption)}")

What a user writes never becomes a control token: whatever would be one is removed first.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from polydraft.core.errors import WeightsError
from polydraft.core.folders.readers import read_pretrained
from polydraft.modalities.prompt_ids import check_embedded_ids
from polydraft.modalities.weights import read_weights


class PromptTokenizer:
    """Tokenizer in a model's folder."""

    def __init__(self, folder: Path, name: str, num_ids: int) -> None:
        self.name: str = name
        self.num_ids: int = num_ids
        self.tokenizer: PreTrainedTokenizerFast = read_weights(
            "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
        )

    def id(self, token: str) -> int:
        """Return the id of a token.

        Raises:
            WeightsError: the tokenizer lacks it.
        """
        found = self.tokenizer.backend_tokenizer.token_to_id(token)
        if found is None or found >= self.num_ids:
            raise WeightsError(
                f"the tokenizer of {self.name} has no {token} among the {self.num_ids} ids that the model knows; it is "
                "of another model, download it again."
            )
        return int(found)

    def ids(self, text: str, framed: bool = False) -> list[int]:
        """Encode `text` with its control tokens; `framed` adds the tokenizer's own around it."""
        found: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=framed).ids
        check_embedded_ids(found, self.num_ids, self.tokenizer, self.name)
        return found

    @cached_property
    def control(self) -> list[str]:
        """Return the spellings of control tokens, longest first."""
        return sorted((token.content for token in self.tokenizer.added_tokens_decoder.values()), key=len, reverse=True)

    def split(self, text: str) -> tuple[str, list[str]]:
        """Return `text` without what would be read as control tokens, and the control tokens that it spells."""
        removed: list[str] = []
        while found := [token for token in self.control if token in text]:  # the rest may spell one again
            removed += found
            for token in found:
                text = text.replace(token, "")
        return text, list(dict.fromkeys(removed))

    def plain(self, text: str) -> str:
        """Return `text` without what would be read as control tokens."""
        return self.split(text)[0]
