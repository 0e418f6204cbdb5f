"""Ids of prompts, and the tables that models look them up in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polydraft.core.errors import PromptError


def check_known(ids: Iterable[int], known: int, tokenizer: Any, model: str) -> None:
    """Check that a model has an embedding for all ids of a prompt.

    Words can be added to a tokenizer and not to the model beside it.

    Args:
        ids: of a prompt, as `tokenizer` wrote them.
        known: how many ids the model embeds.
        tokenizer: transformers' own, which knows what the words are.
        model: its name, for the error.

    Raises:
        PromptError: names the first word that has none.
    """
    unknown = next((token for token in ids if token >= known), None)
    if unknown is not None:
        raise PromptError(
            f"the tokenizer of {model} writes {tokenizer.convert_ids_to_tokens(unknown)!r} as id {unknown}, and the "
            f"model's embeddings end at {known - 1}; leave the word out, or use the model's own tokenizer."
        )
