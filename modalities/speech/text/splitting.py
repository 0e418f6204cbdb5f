"""Sentences for models that read text as written: without markup, and of limited length.

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

    sentences: list[str]  # and parts of long sentences
    ignored: tuple[str, ...]  # removed and unpronounceable parts


def read_as_written(text: str) -> PlainSentences:
    """Return the sentences of `text`; raises PromptError if nothing is pronounceable, or it is too long."""
    plain = to_plain(text)
    whole = [sentence for paragraph in plain.paragraphs for sentence in split_sentences(paragraph)]
    parts = [part for sentence in whole for part in split_long_sentence(sentence)]
    spoken_parts = [part for part in parts if is_speakable(part)]
    if not spoken_parts:
        raise PromptError("there is nothing to say in this text; give words or numbers.")
    unsaid = [part for part in parts if not is_speakable(part) and any(ord(c) > 127 for c in part)]
    return PlainSentences(spoken_parts, tuple(dict.fromkeys((*plain.dropped, *unsaid))))


def is_speakable(text: str) -> bool:
    return any(c.isalnum() for c in text)


def split_long_sentence(sentence: str) -> list[str]:
    """Divide a sentence into parts that are not too long: after marks, else between words, else anywhere."""
    parts, rest = [], sentence
    while byte_length(rest) > LONGEST_PART:
        most = next(at for at in range(len(rest), 0, -1) if byte_length(rest[:at]) <= LONGEST_PART)
        cuts = [match.end() for match in CLAUSE.finditer(rest) if 0 < match.end() <= most]
        after_mark = [cut for cut in cuts if rest[:cut].rstrip()[-1:] in ",;:，、；：—" and cut > most // 3]
        cut = max(after_mark or cuts or [most])
        parts.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [*parts, rest]


def byte_length(text: str) -> int:
    return len(text.encode())
