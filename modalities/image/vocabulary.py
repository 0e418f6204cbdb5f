"""One vocabulary for captions, scene plans and codes: special tokens, then words, then the codebook.

A sequence is `<bos> word … word <boi> plan code … code` (`scene_plan.py`); the unconditional branch of guidance is
`<bos> <boi> plan code …`.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from polydraft.core.folders.readers import read_tokenizer
from polydraft.modalities.image import scene_plan
from polydraft.modalities.world.words.captions import plural_synonyms
from polydraft.modalities.world.worlds import World

PAD, BOS, BOI, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<boi>", "<unk>")


def build_tokenizer(words: list[str], synonyms: dict[str, str]) -> Tokenizer:
    """Build a word-level tokenizer over `words`; ids of codes start at `code_offset(tokenizer)`.

    Args:
        words (list[str]): in the order of their ids.
        synonyms (dict[str, str]): words that are read as another word.
    """
    table = {word: index for index, word in enumerate((*SPECIALS, *words))}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(rf"\b{word}\b"), other) for word, other in synonyms.items()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def build_image_tokenizer(world: World) -> Tokenizer:
    """Build the tokenizer of a world's captions and of its scene plans."""
    return build_tokenizer([*world.vocabulary(), *scene_plan.plan_vocabulary()], plural_synonyms())


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in a folder."""
    tokenizer: Tokenizer = read_tokenizer(folder / "tokenizer.json")
    return tokenizer


def code_offset(tokenizer: Tokenizer) -> int:
    """Return the id of code 0: the first multiple of 64 after the words, since aligned rows multiply faster."""
    return -(-tokenizer.get_vocab_size() // 64) * 64


def encode_prompt(tokenizer: Tokenizer, caption: str) -> list[int]:
    """Encode a caption as `<bos> words <boi>`; an empty caption is the unconditional prompt."""
    return [BOS, *tokenizer.encode(caption).ids, BOI]
