"""How the ids of a language model that drafts relate to its target's.

translation = between(target_tokenizer, folder, size=32064, own=32000)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.drafters.network.lm import Translation
from polydraft.core.folders.door import read_pretrained
from polydraft.modalities.loading import read_weights

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
SPACES = ("▁", "Ġ")  # how vocabularies write the space before a word


def between(words: Any, folder: Path, size: int, own: int) -> Translation | None:
    """None if the ids of the drafter in `folder` are the target's.

    words: the target's tokenizer. size, own: ids that target and drafter have. A drafter without a tokenizer of its own
    reads the target's ids.
    """
    if words is not None and any((folder / name).is_file() for name in TOKENIZERS):
        own_words = read_weights("tokenizer", folder, lambda: tokenizer_of(folder))
        if words.get_vocab() != own_words.get_vocab():
            return by_words(words, own_words, size, own)
    return None if own == size else Translation.by_number(size, own)


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return read_pretrained("tokenizer", AutoTokenizer, folder)


def by_words(words: Any, own_words: Any, size: int, own: int) -> Translation:
    """Tokens that are written alike mean the same, however a vocabulary writes spaces; so do the ends."""
    known = {plain(word): number for word, number in own_words.get_vocab().items()}
    if words.eos_token is not None and own_words.eos_token is not None:
        known[plain(words.eos_token)] = own_words.eos_token_id

    numbers = words.get_vocab()
    written = {plain(word): word for word, number in numbers.items() if number < size}

    def spelt(name: str) -> int:
        """The last piece of what the drafter's tokenizer makes of it: the next token follows that one."""
        pieces = own_words.encode(words.convert_tokens_to_string([written[name]]), add_special_tokens=False)
        return min(pieces[-1], own - 1) if pieces else 0

    mine = {name: numbers[word] for name, word in written.items()}
    return Translation.by_name(mine, known, size, own, spelt)


def plain(word: str) -> str:
    return word.replace(*SPACES)
