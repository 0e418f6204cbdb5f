"""Sentences for models whose input is text as written: without markup, and of limited length.

read_as_written("Dr. Who? Yes!  It is <b>3.50</b>.").sentences   # ["Dr. Who?", "Yes!", "It is 3.50."]
"""

from __future__ import annotations

import re
from typing import NamedTuple

from polydraft.core.errors import PromptError
from polydraft.modalities.speech.text.plain import to_plain
from polydraft.modalities.speech.text.segmentation import split_sentences

LONGEST_PART = 240  # bytes of a sentence; longer ones are divided

CLAUSE = re.compile(r"(?<=[,;:，、；：—])\s*|(?<=\s)")


class PlainSentences(NamedTuple):
    """Sentences of a text as written."""

    sentences: list[str]  # whole sentences, and parts of long ones
    ignored: tuple[str, ...]  # removed and unpronounceable parts


def read_as_written(text: str) -> PlainSentences:
    """Return the sentences of `text`; raises PromptError if nothing is pronounceable, or it is too long."""
    plain = to_plain(text)
    sentences = [sentence for paragraph in plain.paragraphs for sentence in split_sentences(paragraph)]
    parts = [part for sentence in sentences for part in split_long_sentence(sentence)]
    speakable_parts = [part for part in parts if is_speakable(part)]
    if not speakable_parts:
        raise PromptError("there is nothing to say in this text; give words or numbers.")
    unpronounceable = [part for part in parts if not is_speakable(part) and any(ord(c) > 127 for c in part)]
    return PlainSentences(speakable_parts, tuple(dict.fromkeys((*plain.dropped, *unpronounceable))))


def is_speakable(text: str) -> bool:
    return any(c.isalnum() for c in text)


def split_long_sentence(sentence: str) -> list[str]:
    """Divide a sentence into parts of at most LONGEST_PART bytes: after marks, else between words, else anywhere."""
    parts, remaining = [], sentence
    while byte_length(remaining) > LONGEST_PART:
        most = next(at for at in range(len(remaining), 0, -1) if byte_length(remaining[:at]) <= LONGEST_PART)
        cuts = [match.end() for match in CLAUSE.finditer(remaining) if 0 < match.end() <= most]
        after_mark = [cut for cut in cuts if remaining[:cut].rstrip()[-1:] in ",;:，、；：—" and cut > most // 3]
        cut = max(after_mark or cuts or [most])
        parts.append(remaining[:cut].strip())
        remaining = remaining[cut:].strip()
    return [*parts, remaining]


def byte_length(text: str) -> int:
    return len(text.encode())
