"""What may be said at all: text, and no SSML.

SSML asks for pauses, pitch and pronunciations that no model here follows. It is refused rather than stripped: what it
asks for would be lost in silence. Other tags are text; Orpheus laughs where it reads `<laugh>`.
"""

from __future__ import annotations

import re

from polydraft.core.errors import PromptError

ELEMENTS = ("speak", "break", "prosody", "emphasis", "say-as", "phoneme", "sub", "voice", "audio", "lexicon", "mark")
SSML = re.compile(rf"</?(?:{'|'.join(ELEMENTS)})(?:\s[^<>]*)?/?>", re.IGNORECASE)  # W3C SSML 1.1, section 3


def check_text(text: object) -> str:
    """`text` if it is some; raises PromptError."""
    if not isinstance(text, str):
        raise PromptError(f"the text is a {type(text).__name__}; give one string, and call once for each of several.")
    if found := SSML.search(text):
        raise PromptError(
            f"the text has the SSML tag {found[0][:40]!r}, which no model here follows; give plain text, and use speed "
            "and voice."
        )
    return text
