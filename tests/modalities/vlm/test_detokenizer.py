"""Incremental text equals decoding all ids, for every kind of decoder, and ends at the same stop strings."""

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
from polydraft.modalities.vlm.stop_strings import StreamingDetokenizer

BYTES = [f"<0x{byte:02X}>" for byte in (0x00, 0x20, 0x41, 0x80, 0x82, 0x90, 0x9F, 0xAC, 0xB8, 0xC3, 0xE2, 0xF0, 0xFF)]
WORDS = ["▁", "▁▁", "▁a", "b", "▁n't", "▁.", ".", "▁'", "'", "▁s", "é", UNFINISHED, "▁stop", "st", "op", "\n"]


def byte_level() -> Any:
    """Return tokens of one and of several bytes, whole characters and parts of them."""
    table = byte_letters()
    pieces = [b" ", b"a", b" b", b"st", b"op", b"\n", "é".encode(), "€ ".encode(), b" n't", b" .", b"\x82A"]
    pieces += [b"\xe2\x82", b"\xac b"]  # a character in two tokens, the second of which has more text
    pieces += [bytes([byte]) for byte in (0x80, 0x82, 0x90, 0x9F, 0xAC, 0xB8, 0xC3, 0xE2, 0xF0, 0xFF)]
    return ["".join(table[byte] for byte in piece) for piece in pieces], decoders.ByteLevel()


def byte_letters() -> dict[int, str]:
    """Return the letter of every byte in byte-level tokenizers (GPT-2)."""
    legible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in legible]
    return {byte: chr(byte) for byte in legible} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def byte_fallback() -> Any:
    """Return the decoder of Llama: spaces, bytes, joined, without a space at the beginning."""
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
    """Return a tokenizer of some words, an added token and a special token; further ids are unused."""
    words, decoder = KINDS[kind]()
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(dict.fromkeys(words))}, words[0]))
    inner.decoder = decoder
    inner.add_tokens([AddedToken("<added>", normalized=False)])
    inner.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", clean_up_tokenization_spaces=True)


def decode_all(kind: str, ids: Sequence[int]) -> str:
    return tokenizer_of(kind).decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def some_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Return a strategy of any ids, and of bytes that form characters together."""
    tokenizer = tokenizer_of(kind)
    letter = byte_letters().__getitem__ if kind == "byte_level" else "<0x{:02X}>".format
    characters = [tokenizer.convert_tokens_to_ids([letter(byte) for byte in word.encode()]) for word in ("€", "🐸")]
    if kind == "byte_level":
        characters.append(tokenizer.convert_tokens_to_ids(["âĤ", "¬Ġb"]))  # the rest of a character and more text
    together = [ids for ids in characters if None not in ids]
    chunks = st.integers(0, len(tokenizer) + 1).map(lambda token: [token])
    return st.lists(st.one_of(chunks, st.sampled_from(together)) if together else chunks, max_size=12).map(flat)


def flat(chunks: list[list[int]]) -> list[int]:
    return [token for chunk in chunks for token in chunk]


@pytest.mark.parametrize("kind", KINDS)
def test_text_after_every_id_equals_full_decoding(kind: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(some_ids(kind))
    def check(ids: list[int]) -> None:
        text, settled = IncrementalDetokenizer(tokenizer_of(kind)), ""
        for count, token in enumerate(ids, 1):
            settled += text.push(token)
            assert settled + text.open_text == decode_all(kind, ids[:count])
            certain = settled + text.certain_open_text
            assert decode_all(kind, ids).startswith(certain), "certain text changed later"

    check()


def reference_end(kind: str, ids: Sequence[int], stops: Sequence[str], min_tokens: int) -> tuple[int, str] | None:
    """Find the end by its definition: decode every prefix completely and search it from the beginning."""
    before = ""
    for count in range(1, len(ids) + 1):
        text = decode_all(kind, ids[:count])
        num_common = next(size for size in range(len(text), -1, -1) if before.startswith(text[:size]))
        found = [(at, at + len(stop)) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
        starts = [start for start, end in found if end > num_common]
        if count > min_tokens and starts:
            return count, text[: min(starts)]
        before = text
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings_end_text_as_in_full_decoding(kind: str) -> None:
    """For any split of ids into passes, the joined pieces are the text before the stop string."""

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ids = data.draw(some_ids(kind))
        text = decode_all(kind, ids) or "a"
        begin = data.draw(st.integers(0, len(text) - 1))
        stops = [text[begin : begin + data.draw(st.integers(1, 6))], *data.draw(st.sampled_from([[], ["stop", "\n"]]))]
        min_tokens = data.draw(st.integers(0, 6))
        detokenizer, left, end = StreamingDetokenizer(tokenizer_of(kind), stops, min_tokens), list(ids), None
        while left and end is None:
            size = data.draw(st.integers(1, 5))
            end = detokenizer.push(left[:size])
            left = left[size:]
            detokenizer.next_piece(ended=not left or end is not None)
        expected = reference_end(kind, ids, stops, min_tokens)
        assert (end, detokenizer.text) == (expected if expected is not None else (None, decode_all(kind, ids)))
        assert "".join(detokenizer.pieces) == detokenizer.text

    check()


class CountingTokenizer:
    """Tokenizer that counts the ids that it decodes."""

    def __init__(self, kind: str) -> None:
        self.inner, self.decoded = tokenizer_of(kind), 0
        self.convert_ids_to_tokens = self.inner.convert_ids_to_tokens

    def decode(self, ids: list[int], **options: Any) -> str:
        self.decoded += len(ids)
        return self.inner.decode(ids, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_decoded_ids_is_linear_in_text(kind: str) -> None:
    """Twice the text decodes twice the ids, whatever the passes are."""
    tokens = tokenizer_of(kind).convert_ids_to_tokens(range(len(tokenizer_of(kind))))
    words = [token for token, text in enumerate(tokens) if not text.startswith("<0x")]

    def num_decoded(count: int) -> int:
        tokenizer = CountingTokenizer(kind)
        detokenizer = StreamingDetokenizer(tokenizer, ["never said"])
        for index in range(count):
            detokenizer.push([words[index * 7 % len(words)]])
            detokenizer.next_piece(ended=index == count - 1)
        return tokenizer.decoded

    assert num_decoded(400) <= 2.1 * num_decoded(200) <= 2.1 * 200 * 10


def test_piece_is_emitted_once_its_character_is_complete() -> None:
    tokenizer = tokenizer_of("byte_level")
    letters = byte_letters()
    ids = tokenizer.convert_tokens_to_ids(["a", letters[0xE2], letters[0x82], letters[0xAC], "a"])
    detokenizer, pieces = StreamingDetokenizer(tokenizer), []
    for token in ids:
        detokenizer.push([token])
        pieces.append(detokenizer.next_piece(ended=False))
    assert pieces == ["a", "", "", "€", "a"]


def test_bytes_are_held_back_until_run_ends() -> None:
    """One invalid byte makes its whole run illegible (`tokenizers` decodes a run at once)."""
    tokenizer = tokenizer_of("byte_fallback")
    ids = tokenizer.convert_tokens_to_ids(["b", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "b"])
    detokenizer, pieces = StreamingDetokenizer(tokenizer), []
    for token in ids:
        detokenizer.push([token])
        pieces.append(detokenizer.next_piece(ended=False))
    assert pieces == ["b", "", "", "", "", UNFINISHED * 4 + "b"]


@pytest.mark.parametrize(
    ("min_tokens", "end", "text"), [(0, 2, "b"), (1, 2, "b"), (2, 4, "bstopb"), (4, None, "bstopbstop")]
)
def test_stop_string_within_min_tokens_is_text(min_tokens: int, end: int | None, text: str) -> None:
    tokenizer = tokenizer_of("byte_fallback")
    ids = tokenizer.convert_tokens_to_ids(["b", "▁stop", "b", "▁stop"])
    detokenizer = StreamingDetokenizer(tokenizer, ["stop"], min_tokens)
    assert detokenizer.push(ids) == end
    assert detokenizer.text.replace(" ", "") == text
