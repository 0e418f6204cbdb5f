"""Shared parts of families that encode text by a Hugging Face tokenizer and have one token per code.

Text can never produce a control token: control tokens that its characters would encode to are removed from the prompt.
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

    def __init__(self, inputs: FamilyInputs) -> None:
        from transformers import PreTrainedTokenizerFast

        super().__init__(inputs)
        folder = inputs.card.target
        tokenizer: Any = read_weights(
            "tokenizer", folder, lambda: read_pretrained("tokenizer", PreTrainedTokenizerFast, folder)
        )
        self.tokenizer = tokenizer

    def locate_codes(self) -> None:
        """Set the ids of codes and end tokens; `num_codes` must be set before."""
        self.first_code_id: int = self.token_id(self.code_token.format(self.code_zero))
        last = self.first_code_id + self.num_codes - 1
        if (
            self.token_id(self.code_token.format(self.code_zero + self.num_codes - 1)) != last
            or last >= self.inputs.vocab
        ):
            raise WeightsError(
                f"the {self.num_codes} codes of {self.inputs.card.name} are not one block of its target's "
                f"{self.inputs.vocab} ids; its parts are of several models, install it again."
            )
        self.eos: frozenset[int] = frozenset(self.token_id(name) for name in self.end_tokens)

    def token_id(self, token: str) -> int:
        """Return the id of a token; raises WeightsError if the tokenizer or the model lacks it."""
        id_ = self.tokenizer.backend_tokenizer.token_to_id(token)
        if id_ is None or id_ >= self.inputs.vocab:
            raise WeightsError(
                f"the tokenizer of {self.inputs.card.name} has no {token} among the {self.inputs.vocab} ids that the "
                "model knows; it is damaged or of another model, install it again."
            )
        return int(id_)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Return the ids of tokens that are not text."""
        added = self.tokenizer.added_tokens_decoder.items()
        control = {id_ for id_, token in added if token.content.startswith(("<|", "<custom_token_"))}
        return frozenset(control | set(range(self.first_code_id, self.first_code_id + self.num_codes)) | self.eos)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of `text` without control tokens."""
        return [id_ for id_ in self.encode(text) if id_ not in self.control_ids]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a part of the prompt, control tokens included."""
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        check_embedded_ids(ids, self.inputs.vocab, self.tokenizer, self.inputs.card.name)
        return ids

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the allowed ids `[1, V]`: codes and end tokens."""
        allowed = torch.zeros(1, self.inputs.vocab, dtype=torch.bool, device=self.inputs.device)
        allowed[0, self.first_code_id : self.first_code_id + self.num_codes] = True
        allowed[0, list(self.eos)] = True
        return allowed

    def split_text(self, text: str) -> Script:
        plain = read_as_written(text)
        return Script(plain.sentences, plain.ignored)

    def max_codes(self, sentence: str) -> int:
        return self.codes_in_seconds(min(MIN_SECONDS + byte_length(sentence) / SLOW_RATE, LONGEST_SENTENCE))

    def expected_codes(self, sentence: str) -> int:
        return self.codes_in_seconds(byte_length(sentence) / USUAL_RATE)

    def extract_codes(self, ids: Tensor) -> Tensor:
        return ids[(ids >= self.first_code_id) & (ids < self.first_code_id + self.num_codes)] - self.first_code_id
