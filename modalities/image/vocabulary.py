"""One vocabulary for captions, plans and image codes: specials, then words, then the codebook.

A sequence is `<bos> word … word <boi> plan code … code` (`plan.py`); the unconditional branch of guidance is
`<bos> <boi> plan code …`.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from polydraft.core.folders.door import read_tokenizer
from polydraft.modalities.image import plan
from polydraft.modalities.world.words.captions import synonyms
from polydraft.modalities.world.worlds import World

PAD, BOS, BOI, UNKNOWN = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<boi>", "<unk>")


def build(words: list[str], synonyms: dict[str, str]) -> Tokenizer:
    """A word-level tokenizer over `words`; ids of codes start at `code_offset(tokenizer)`.

    synonyms: words that are read as another word.
    """
    table = {word: index for index, word in enumerate((*SPECIALS, *words))}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(rf"\b{word}\b"), other) for word, other in synonyms.items()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def of_pictures(world: World) -> Tokenizer:
    """Words of a world's captions, and of the plans of its pictures."""
    return build([*world.vocabulary(), *plan.words()], synonyms())


def load(folder: Path) -> Tokenizer:
    made: Tokenizer = read_tokenizer(folder / "tokenizer.json")
    return made


def code_offset(tokenizer: Tokenizer) -> int:
    """Id of code 0: the first multiple of 64 after the words (aligned rows multiply faster)."""
    return -(-tokenizer.get_vocab_size() // 64) * 64


def prompt_ids(tokenizer: Tokenizer, caption: str) -> list[int]:
    """`<bos> words <boi>`; an empty caption is the unconditional prompt."""
    return [BOS, *tokenizer.encode(caption).ids, BOI]
