"""Mapping between the vocabularies of a draft language model and its target.

mapping = map_vocabularies(target_tokenizer, drafter_tokenizer, target_size=32064, drafter_size=32000)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.drafters.network.draft_model import VocabMapping
from polydraft.core.folders.readers import read_pretrained

SPACE_MARKS = ("▁", "Ġ")  # the space before a word, in vocabularies of sentencepiece and of byte-level BPE


def map_vocabularies(
    target_tokenizer: Any, drafter_tokenizer: Any, target_size: int, drafter_size: int
) -> VocabMapping | None:
    """Map a draft language model's token ids to the target's.

    Args:
        target_tokenizer (Any): the target's tokenizer, None where it is not known.
        drafter_tokenizer (Any): the drafter's, None where it is not known. Where either is not, equal ids are equal
            tokens.
        target_size (int): number of the target's token ids.
        drafter_size (int): number of the drafter's token ids.

    Returns:
        VocabMapping | None: None if the ids are the same.
    """
    are_known = target_tokenizer is not None and drafter_tokenizer is not None
    if are_known and target_tokenizer.get_vocab() != drafter_tokenizer.get_vocab():
        return map_by_text(target_tokenizer, drafter_tokenizer, target_size, drafter_size)
    return None if drafter_size == target_size else VocabMapping.by_id(target_size, drafter_size)


def load_tokenizer(folder: Path) -> Any:
    """Load the transformers tokenizer of a folder."""
    from transformers import AutoTokenizer

    return read_pretrained("tokenizer", AutoTokenizer, folder)


def map_by_text(target_tokenizer: Any, drafter_tokenizer: Any, target_size: int, drafter_size: int) -> VocabMapping:
    """Map tokens of the same text, whatever mark stands for a space, and the end-of-sequence tokens.

    Args:
        target_tokenizer (Any): the target's tokenizer.
        drafter_tokenizer (Any): the drafter's tokenizer.
        target_size (int): number of the target's token ids.
        drafter_size (int): number of the drafter's token ids.
    """
    drafter_ids = {without_space_marks(token): id_ for token, id_ in drafter_tokenizer.get_vocab().items()}
    if target_tokenizer.eos_token is not None and drafter_tokenizer.eos_token is not None:
        drafter_ids[without_space_marks(target_tokenizer.eos_token)] = drafter_tokenizer.eos_token_id

    vocab = target_tokenizer.get_vocab()
    target_tokens = {without_space_marks(token): token for token, id_ in vocab.items() if id_ < target_size}

    def fallback_token(name: str) -> int:
        """Return the last of the drafter's tokens for a text that it has no single token for."""
        text = target_tokenizer.convert_tokens_to_string([target_tokens[name]])
        pieces = drafter_tokenizer.encode(text, add_special_tokens=False)
        return min(pieces[-1], drafter_size - 1) if pieces else 0

    target_ids = {name: vocab[token] for name, token in target_tokens.items()}
    return VocabMapping.by_token(target_ids, drafter_ids, target_size, drafter_size, fallback_token)


def without_space_marks(token: str) -> str:
    """Return a token with sentencepiece's mark of a space written as in byte-level BPE."""
    return token.replace(*SPACE_MARKS)
