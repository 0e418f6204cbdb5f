"""Shared parts of families that write text by a Hugging Face tokenizer and every code as a token of its own.

Text can never produce a control token: those that its characters would encode to are left out of the prompt.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.folders.readers import read_pretrained
from polydraft.modalities.prompt_ids import check_embedded_ids
from polydraft.modalities.speech.family import LONGEST_SENTENCE, FamilyInputs, Script, SpeechFamily
from polydraft.modalities.speech.text.splitting import byte_length, read_as_written
from polydraft.modalities.weights import read_weights

MIN_SECONDS, SLOW_RATE, USUAL_RATE = 3.0, 5.0, 14.0  # seconds of any sentence; bytes of text per second, slow and usual


class TokenFamily(SpeechFamily):
    """Family whose codes are tokens of a Hugging Face tokenizer."""

    code_token: ClassVar[str]  # format of the names of code tokens
    code_zero: ClassVar[int] = 0  # number in the name of code 0
    end_tokens: ClassVar[tuple[str, ...]]  # names of tokens that end a sentence
    num_codes: int

    def __init__(self, parts: FamilyInputs) -> None:
        from transformers import PreTrainedTokenizerFast

        super().__init__(parts)
        folder = parts.card.target
        made: Any = read_weights(
            "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
        )
        self.tokenizer = made

    def locate_codes(self) -> None:
        """Set the ids of codes and end tokens; `num_codes` must be set before."""
        self.first_code_id = self.token_id(self.code_token.format(self.code_zero))
        last = self.first_code_id + self.num_codes - 1
        if (
            self.token_id(self.code_token.format(self.code_zero + self.num_codes - 1)) != last
            or last >= self.parts.vocab
        ):
            raise WeightsError(
                f"the {self.num_codes} codes of {self.parts.card.name} are not one block of its target's "
                f"{self.parts.vocab} ids; its parts are of several models, install it again."
            )
        self.eos = frozenset(self.token_id(name) for name in self.end_tokens)

    def token_id(self, token: str) -> int:
        """Return the id of a token; raises WeightsError if the tokenizer or the model lacks it."""
        found = self.tokenizer.backend_tokenizer.token_to_id(token)
        if found is None or found >= self.parts.vocab:
            raise WeightsError(
                f"the tokenizer of {self.parts.card.name} has no {token} among the {self.parts.vocab} ids that the "
                "model knows; it is damaged or of another model, install it again."
            )
        return int(found)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Return the ids of tokens that are no text."""
        added = self.tokenizer.added_tokens_decoder.items()
        named = {id_ for id_, token in added if token.content.startswith(("<|", "<custom_token_"))}
        return frozenset(named | set(range(self.first_code_id, self.first_code_id + self.num_codes)) | self.eos)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of `text` without control tokens."""
        return [id_ for id_ in self.encode(text) if id_ not in self.control_ids]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a part of the prompt, control tokens included."""
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        check_embedded_ids(ids, self.parts.vocab, self.tokenizer, self.parts.card.name)
        return ids

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the allowed ids `[1, V]`: codes and end tokens."""
        allowed = torch.zeros(1, self.parts.vocab, dtype=torch.bool, device=self.parts.device)
        allowed[0, self.first_code_id : self.first_code_id + self.num_codes] = True
        allowed[0, list(self.eos)] = True
        return allowed

    def split_text(self, text: str) -> Script:
        written = read_as_written(text)
        return Script(written.sentences, written.ignored)

    def max_codes(self, sentence: str) -> int:
        return self.codes_in_seconds(min(MIN_SECONDS + byte_length(sentence) / SLOW_RATE, LONGEST_SENTENCE))

    def expected_codes(self, sentence: str) -> int:
        return self.codes_in_seconds(byte_length(sentence) / USUAL_RATE)

    def extract_codes(self, ids: Tensor) -> Tensor:
        return ids[(ids >= self.first_code_id) & (ids < self.first_code_id + self.num_codes)] - self.first_code_id
