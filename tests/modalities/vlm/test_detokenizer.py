"""Incremental text equals decoding everything, for every kind of decoder; stop strings end where full text says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from polydraft.modalities.vlm.detokenizer import UNFINISHED, IncrementalDetokenizer
from polydraft.modalities.vlm.spelling import Spelling

BYTES = [f"<0x{byte:02X}>" for byte in (0x00, 0x20, 0x41, 0x80, 0x82, 0x90, 0x9F, 0xAC, 0xB8, 0xC3, 0xE2, 0xF0, 0xFF)]
WORDS = ["▁", "▁▁", "▁a", "b", "▁n't", "▁.", ".", "▁'", "'", "▁s", "é", UNFINISHED, "▁stop", "st", "op", "\n"]


def byte_level() -> Any:
    """Tokens of one and of several bytes, whole characters and parts of them."""
    table = byte_letters()
    pieces = [b" ", b"a", b" b", b"st", b"op", b"\n", "é".encode(), "€ ".encode(), b" n't", b" .", b"\x82A"]
    pieces += [b"\xe2\x82", b"\xac b"]  # a character over two tokens, the second of which goes on behind it
    pieces += [bytes([byte]) for byte in (0x80, 0x82, 0x90, 0x9F, 0xAC, 0xB8, 0xC3, 0xE2, 0xF0, 0xFF)]
    return ["".join(table[byte] for byte in piece) for piece in pieces], decoders.ByteLevel()


def byte_letters() -> dict[int, str]:
    """The letter that byte-level tokenizers write for each byte (GPT-2)."""
    legible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in legible]
    return {byte: chr(byte) for byte in legible} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def byte_fallback() -> Any:
    """Llama's: spaces, bytes, all joined, and no space at the beginning."""
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return BYTES + WORDS, decoders.Sequence(chain)


def gemma() -> Any:
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return BYTES + WORDS, decoders.Sequence(chain)


def metaspace() -> Any:
    return WORDS, decoders.Metaspace()


def metaspace_first() -> Any:
    return WORDS, decoders.Metaspace(prepend_scheme="never")


def word_piece() -> Any:
    return ["a", "##b", "stop", "##.", ".", "'", "s", "n't", "##é", UNFINISHED], decoders.WordPiece(cleanup=True)


def suffixes() -> Any:
    return ["a</w>", "b", "st", "op</w>", ".</w>", "é", UNFINISHED], decoders.BPEDecoder("</w>")


KINDS: dict[str, Callable[[], Any]] = {
    made.__name__: made for made in (byte_level, byte_fallback, gemma, metaspace, metaspace_first, word_piece, suffixes)
}


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of some words, an added one and a special one; ids behind them stand for nothing."""
    words, decoder = KINDS[kind]()
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(dict.fromkeys(words))}, words[0]))
    inner.decoder = decoder
    inner.add_tokens([AddedToken("<added>", normalized=False)])
    inner.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", clean_up_tokenization_spaces=True)


def whole(kind: str, ids: Sequence[int]) -> str:
    return tokenizer_of(kind).decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def some_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Any ids, and bytes that are characters together."""
    tokenizer = tokenizer_of(kind)
    letter = byte_letters().__getitem__ if kind == "byte_level" else "<0x{:02X}>".format
    spelt = [tokenizer.convert_tokens_to_ids([letter(byte) for byte in word.encode()]) for word in ("€", "🐸")]
    if kind == "byte_level":
        spelt.append(tokenizer.convert_tokens_to_ids(["âĤ", "¬Ġb"]))  # the rest of a character, and more
    together = [ids for ids in spelt if None not in ids]
    chunks = st.integers(0, len(tokenizer) + 1).map(lambda token: [token])
    return st.lists(st.one_of(chunks, st.sampled_from(together)) if together else chunks, max_size=12).map(flat)


def flat(chunks: list[list[int]]) -> list[int]:
    return [token for chunk in chunks for token in chunk]


@pytest.mark.parametrize("kind", KINDS)
def test_text_after_every_id_is_that_of_all(kind: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(some_ids(kind))
    def check(ids: list[int]) -> None:
        text, settled = IncrementalDetokenizer(tokenizer_of(kind)), ""
        for count, token in enumerate(ids, 1):
            settled += text.push(token)
            assert settled + text.open_text == whole(kind, ids[:count])
            certain = settled + text.certain_open_text
            assert whole(kind, ids).startswith(certain), "what is certain changed later"

    check()


def reference_end(kind: str, ids: Sequence[int], stops: Sequence[str], least: int) -> tuple[int, str] | None:
    """Where the text ends by its definition: every prefix is decoded whole and searched from its beginning."""
    before = ""
    for count in range(1, len(ids) + 1):
        text = whole(kind, ids[:count])
        same = next(size for size in range(len(text), -1, -1) if before.startswith(text[:size]))
        found = [(at, at + len(stop)) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
        starts = [start for start, end in found if end > same]
        if count > least and starts:
            return count, text[: min(starts)]
        before = text
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings_end_text_where_the_whole_text_says(kind: str) -> None:
    """However the ids come in passes; the pieces joined are the text before the stop string."""

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ids = data.draw(some_ids(kind))
        text = whole(kind, ids) or "a"
        begin = data.draw(st.integers(0, len(text) - 1))
        stops = [text[begin : begin + data.draw(st.integers(1, 6))], *data.draw(st.sampled_from([[], ["stop", "\n"]]))]
        least = data.draw(st.integers(0, 6))
        spelling, left, end = Spelling(tokenizer_of(kind), stops, least), list(ids), None
        while left and end is None:
            size = data.draw(st.integers(1, 5))
            end = spelling.read(left[:size])
            left = left[size:]
            spelling.piece(ended=not left or end is not None)
        expected = reference_end(kind, ids, stops, least)
        assert (end, spelling.text) == (expected if expected is not None else (None, whole(kind, ids)))
        assert "".join(spelling.pieces) == spelling.text

    check()


class Counted:
    """A tokenizer that counts the ids it decodes."""

    def __init__(self, kind: str) -> None:
        self.inner, self.decoded = tokenizer_of(kind), 0
        self.convert_ids_to_tokens = self.inner.convert_ids_to_tokens

    def decode(self, ids: list[int], **options: Any) -> str:
        self.decoded += len(ids)
        return self.inner.decode(ids, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_decoded_ids_grow_in_proportion_to_the_text(kind: str) -> None:
    """Twice the text, twice the ids that are decoded, however many passes there are and whatever they say."""
    written = tokenizer_of(kind).convert_ids_to_tokens(range(len(tokenizer_of(kind))))
    words = [token for token, text in enumerate(written) if not text.startswith("<0x")]

    def decoded(count: int) -> int:
        counted = Counted(kind)
        spelling = Spelling(counted, ["never said"])
        for place in range(count):
            spelling.read([words[place * 7 % len(words)]])
            spelling.piece(ended=place == count - 1)
        return counted.decoded

    assert decoded(400) <= 2.1 * decoded(200) <= 2.1 * 200 * 10


def test_a_piece_is_said_as_soon_as_its_character_is_whole() -> None:
    tokenizer = tokenizer_of("byte_level")
    letters = byte_letters()
    ids = tokenizer.convert_tokens_to_ids(["a", letters[0xE2], letters[0x82], letters[0xAC], "a"])
    spelling, pieces = Spelling(tokenizer), []
    for token in ids:
        spelling.read([token])
        pieces.append(spelling.piece(ended=False))
    assert pieces == ["a", "", "", "€", "a"]


def test_bytes_that_a_wrong_one_spoils_are_not_said_before() -> None:
    """One byte that fits nowhere makes its whole run illegible (`tokenizers` decodes runs as one)."""
    tokenizer = tokenizer_of("byte_fallback")
    ids = tokenizer.convert_tokens_to_ids(["b", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "b"])
    spelling, pieces = Spelling(tokenizer), []
    for token in ids:
        spelling.read([token])
        pieces.append(spelling.piece(ended=False))
    assert pieces == ["b", "", "", "", "", UNFINISHED * 4 + "b"]


@pytest.mark.parametrize(
    ("least", "end", "text"), [(0, 2, "b"), (1, 2, "b"), (2, 4, "bstopb"), (4, None, "bstopbstop")]
)
def test_stop_string_within_the_least_tokens_ends_nothing(least: int, end: int | None, text: str) -> None:
    tokenizer = tokenizer_of("byte_fallback")
    ids = tokenizer.convert_tokens_to_ids(["b", "▁stop", "b", "▁stop"])
    spelling = Spelling(tokenizer, ["stop"], least)
    assert spelling.read(ids) == end
    assert spelling.text.replace(" ", "") == text
