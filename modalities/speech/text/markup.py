"""Check of input text: a string without SSML.

SSML asks for pauses, pitch and pronunciations that no model here follows. It is refused rather than stripped, since
its instructions would be lost silently. HTML is removed (`plain.py`); other tags are text, such as `<laugh>`.
"""

from __future__ import annotations

import re

from polydraft.core.errors import PromptError

ELEMENTS = ("speak", "break", "prosody", "emphasis", "say-as", "phoneme", "voice", "lexicon")
SSML = re.compile(  # W3C SSML 1.1, section 3; the last three elements are HTML's too, without such an attribute
    rf"</?(?:{'|'.join(ELEMENTS)})(?:\s[^<>]*)?/?>|<(?:sub\s[^<>]*alias|mark\s[^<>]*name|audio\s[^<>]*src)\s*=[^<>]*>",
    re.IGNORECASE,
)


def check_text(text: object) -> str:
    """Return `text`; raises PromptError if it is no string or contains SSML."""
    if not isinstance(text, str):
        raise PromptError(f"the text is a {type(text).__name__}; give one string, and call once for each of several.")
    if match := SSML.search(text):
        raise PromptError(
            f"the text has the SSML tag {match[0][:40]!r}, which no model here follows; give plain text, and use speed "
            "and voice."
        )
    return text
