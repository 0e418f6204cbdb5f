"""Text for models that read it as written: tidied, and divided into sentences that are not too long.

sentences("Dr. Who? Yes!  It is 3.50.")   # ["Dr. Who?", "Yes!", "It is 3.50."]
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from polydraft.core.errors import PromptError
from polydraft.modalities.speech.text.reading import LONGEST_TEXT

LONGEST_PART = 240  # bytes of a sentence; longer ones are divided

END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s+[^\s,;:.!?])|[。！？][”’」』）]*|\n\s*\n")
ABBREVIATED = re.compile(r"(?:^|\s)(?:\w|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|vs|e\.g|i\.e|etc)\.$")  # "J. K. Rowling"
CLAUSE = re.compile(r"(?<=[,;:，、；：—])\s*|(?<=\s)")


def sentences(text: str) -> list[str]:
    """Sentences of `text`; raises PromptError where there is nothing to say, or too much."""
    if not isinstance(text, str) or not text.strip():
        raise PromptError("the text is empty; give a sentence to say.")
    if len(text) > LONGEST_TEXT:
        raise PromptError(f"the text has {len(text)} characters; use at most {LONGEST_TEXT}.")
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") and c != "\n" else c for c in text)
    if not speakable(text):
        raise PromptError("there is nothing to say in this text; give words or numbers.")
    parts = [part for whole in joined(pieces(text)) for part in divided(" ".join(whole.split()))]
    return [part for part in parts if speakable(part)]


def speakable(text: str) -> bool:
    return any(c.isalnum() for c in text)


def pieces(text: str) -> list[str]:
    """`text` cut behind everything that may end a sentence."""
    cuts = [0, *(match.end() for match in END.finditer(text)), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts)]


def joined(cut: list[str]) -> list[str]:
    """Sentences, put together again where one seems to end in an abbreviation."""
    whole: list[str] = []
    for piece in cut:
        if whole and ABBREVIATED.search(whole[-1]):
            whole[-1] += " " + piece
        else:
            whole.append(piece)
    return whole


def divided(sentence: str) -> list[str]:
    """`sentence` in parts that are not too long: cut after marks, else between words, else anywhere."""
    parts, rest = [], sentence
    while size(rest) > LONGEST_PART:
        most = next(at for at in range(len(rest), 0, -1) if size(rest[:at]) <= LONGEST_PART)
        cuts = [match.end() for match in CLAUSE.finditer(rest) if 0 < match.end() <= most]
        after_mark = [cut for cut in cuts if rest[:cut].rstrip()[-1:] in ",;:，、；：—" and cut > most // 3]
        cut = max(after_mark or cuts or [most])
        parts.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [*parts, rest]


def size(text: str) -> int:
    return len(text.encode())
