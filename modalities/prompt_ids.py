"""Checks of a prompt's token ids against the model's embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polydraft.core.errors import PromptError


def check_embedded_ids(ids: Iterable[int], num_embeddings: int, tokenizer: Any, model: str) -> None:
    """Check that a model has an embedding for every token id of a prompt.

    Tokens can be added to a tokenizer without resizing the model's embeddings.

    Args:
        ids (Iterable[int]): token ids of the prompt.
        num_embeddings (int): number of token ids that the model embeds.
        tokenizer (Any): the transformers tokenizer that encoded the prompt.
        model (str): the model's name, for the error.

    Raises:
        PromptError: names the first token without an embedding.
    """
    unknown = next((token for token in ids if token >= num_embeddings), None)
    if unknown is not None:
        raise PromptError(
            f"the tokenizer of {model} writes {tokenizer.convert_ids_to_tokens(unknown)!r} as id {unknown}, and the "
            f"model's embeddings end at {num_embeddings - 1}; leave the word out, or use the model's own tokenizer."
        )
