"""What families read text by that have a Hugging Face tokenizer.

    words = Words(folder, "Janus-Pro-1B", known=102400)
    words.ids(f"<|User|>: {words.plain(caption)}")

What a user writes never becomes a control token: whatever would be one is taken out of it first.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from polydraft.core.errors import WeightsError
from polydraft.core.folders.door import read_pretrained
from polydraft.modalities.known import check_known
from polydraft.modalities.loading import read_weights


class Words:
    """The tokenizer in `folder`; name: of the model, for errors; known: ids that the model embeds."""

    def __init__(self, folder: Path, name: str, known: int) -> None:
        self.name, self.known = name, known
        self.tokenizer: PreTrainedTokenizerFast = read_weights(
            "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
        )

    def id(self, token: str) -> int:
        """Id of a token that must be there; raises WeightsError."""
        found = self.tokenizer.backend_tokenizer.token_to_id(token)
        if found is None or found >= self.known:
            raise WeightsError(
                f"the tokenizer of {self.name} has no {token} among the {self.known} ids that the model knows; it is "
                "of another model, download it again."
            )
        return int(found)

    def ids(self, text: str, framed: bool = False) -> list[int]:
        """Ids of `text` as it stands, control tokens and all; framed: with what the tokenizer puts around a text."""
        found: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=framed).ids
        check_known(found, self.known, self.tokenizer, self.name)
        return found

    @cached_property
    def control(self) -> list[str]:
        """What is written for a control token, the longest first."""
        return sorted((token.content for token in self.tokenizer.added_tokens_decoder.values()), key=len, reverse=True)

    def split(self, text: str) -> tuple[str, list[str]]:
        """Return `text` without what would be read as control tokens, and the control tokens that it spells."""
        taken: list[str] = []
        while found := [token for token in self.control if token in text]:  # what is left may spell one again
            taken += found
            for token in found:
                text = text.replace(token, "")
        return text, list(dict.fromkeys(taken))

    def plain(self, text: str) -> str:
        """`text` without what would be read as control tokens."""
        return self.split(text)[0]
