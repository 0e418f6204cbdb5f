"""What families have in common that write text by a Hugging Face tokenizer and every code as a token of its own.

Text can never write a control token: whatever of the kind its characters would make is left out of the prompt.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.folders.door import read_pretrained
from polydraft.modalities.known import check_known
from polydraft.modalities.loading import read_weights
from polydraft.modalities.speech.family import LONGEST_SENTENCE, Parts, Script, SpeechFamily
from polydraft.modalities.speech.text.splitting import read_as_written, size

LEAST, SLOW, USUAL = 3.0, 5.0, 14.0  # seconds of any sentence; bytes said a second, slowly and usually


class TokenFamily(SpeechFamily):
    """code: the name of a code's token, code_zero: its number for code 0; ends: names of tokens that end a sentence."""

    code: ClassVar[str]
    code_zero: ClassVar[int] = 0
    ends: ClassVar[tuple[str, ...]]
    size: int  # codes there are

    def __init__(self, parts: Parts) -> None:
        from transformers import PreTrainedTokenizerFast

        super().__init__(parts)
        folder = parts.card.target
        made: Any = read_weights(
            "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
        )
        self.tokenizer = made

    def number(self) -> None:
        """Find the ids of codes and ends, once it is known how many codes there are."""
        self.first = self.id(self.code.format(self.code_zero))
        last = self.first + self.size - 1
        if self.id(self.code.format(self.code_zero + self.size - 1)) != last or last >= self.parts.vocab:
            raise WeightsError(
                f"the {self.size} codes of {self.parts.card.name} are not one block of its target's "
                f"{self.parts.vocab} ids; its parts are of several models, install it again."
            )
        self.eos = frozenset(self.id(name) for name in self.ends)

    def id(self, token: str) -> int:
        """Id of a token that must be there."""
        found = self.tokenizer.backend_tokenizer.token_to_id(token)
        if found is None or found >= self.parts.vocab:
            raise WeightsError(
                f"the tokenizer of {self.parts.card.name} has no {token} among the {self.parts.vocab} ids that the "
                "model knows; it is damaged or of another model, install it again."
            )
        return int(found)

    @cached_property
    def control(self) -> frozenset[int]:
        """Ids of tokens that are no text."""
        added = self.tokenizer.added_tokens_decoder.items()
        named = {id_ for id_, token in added if token.content.startswith(("<|", "<custom_token_"))}
        return frozenset(named | set(range(self.first, self.first + self.size)) | self.eos)

    def text(self, text: str) -> list[int]:
        """Ids of `text`, and nothing but text."""
        return [id_ for id_ in self.written(text) if id_ not in self.control]

    def written(self, text: str) -> list[int]:
        """Ids of a part of the prompt, control tokens and all."""
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        check_known(ids, self.parts.vocab, self.tokenizer, self.parts.card.name)
        return ids

    @cached_property
    def mask(self) -> Tensor:
        """Codes and ends, everywhere."""
        allowed = torch.zeros(1, self.parts.vocab, dtype=torch.bool, device=self.parts.device)
        allowed[0, self.first : self.first + self.size] = True
        allowed[0, list(self.eos)] = True
        return allowed

    def read(self, text: str) -> Script:
        written = read_as_written(text)
        return Script(written.sentences, written.ignored)

    def most(self, sentence: str) -> int:
        return self.span(min(LEAST + size(sentence) / SLOW, LONGEST_SENTENCE))

    def usual(self, sentence: str) -> int:
        return self.span(size(sentence) / USUAL)

    def codes(self, ids: Tensor) -> Tensor:
        return ids[(ids >= self.first) & (ids < self.first + self.size)] - self.first
