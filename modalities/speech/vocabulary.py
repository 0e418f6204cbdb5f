"""Joint vocabulary of text and speech: specials, voices, symbols of the text, then the codec's codes.

A sequence is `<|voice|> symbol … symbol <|speech_start|> <|speech_0|> … <|speech_end|>`; codes are named as in
larger models of this kind.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from polydraft.core.folders.readers import read_tokenizer

PAD, START, END = 0, 1, 2
SPECIALS = ("<|pad|>", "<|speech_start|>", "<|speech_end|>")
ALIGNED = 64  # ids of codes start at a multiple of this, since aligned embedding rows multiply faster


def voice_token(voice: str) -> str:
    return f"<|{voice}|>"


def code_token(code: int) -> str:
    return f"<|speech_{code}|>"


def build_tokenizer(voices: list[str], symbols: list[str], codes: int) -> Tokenizer:
    """Build a word-level tokenizer, whose input symbols are separated by spaces.

    Args:
        voices (list[str]): names of the voices.
        symbols (list[str]): symbols of the text.
        codes (int): number of codes of the codec.
    """
    names = [*SPECIALS, *map(voice_token, voices), *symbols]
    names += [f"<|unused_{index}|>" for index in range(-len(names) % ALIGNED)]
    names += [code_token(code) for code in range(codes)]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token=names[PAD]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load tokenizer.json from `folder`."""
    tokenizer: Tokenizer = read_tokenizer(folder / "tokenizer.json")
    return tokenizer


def id_of(tokenizer: Tokenizer, name: str) -> int:
    """Return the id of a token; raises ValueError if the tokenizer lacks it."""
    token_id = tokenizer.token_to_id(name)
    if token_id is None:
        raise ValueError(f"the tokenizer has no {name}")
    return token_id


def code_offset(tokenizer: Tokenizer) -> int:
    """Return the id of code 0."""
    return id_of(tokenizer, code_token(0))


def prompt_ids(tokenizer: Tokenizer, voice: str, symbols: list[str]) -> list[int]:
    """Return the ids of `<|voice|> symbols <|speech_start|>`."""
    return [id_of(tokenizer, voice_token(voice)), *tokenizer.encode(" ".join(symbols)).ids, START]
