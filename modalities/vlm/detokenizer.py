"""Decode token ids to text one by one, at a cost that does not grow with the length of the text.

text = IncrementalDetokenizer(tokenizer)
settled = "".join(text.push(token) for token in ids)
settled + text.open_text == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
"""

from __future__ import annotations

import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a byte in the vocabulary of sentencepiece's byte fallback
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from the bytes of an incomplete character


class IncrementalDetokenizer:
    """Text of the ids pushed so far, equal at every point to decoding all of them at once.

    The text that an id adds depends only on the ids just before it, so each id is decoded in a window: a few ids whose
    text is settled, then those whose text may still change. Text is settled once a later id adds text; in a run of byte
    tokens only when the run has ended, since one wrong byte makes the whole run illegible.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.window: list[int] = []
        self.window_text: str = ""
        self.context_text: str = ""  # settled text that the window begins with
        self.num_context: int = 0  # ids of the window that decode to it
        self.in_byte_run: bool = False  # whether the window ends with byte tokens

    @property
    def open_text(self) -> str:
        """Return the text after the settled text, which later ids may change."""
        return self.window_text[len(self.context_text) :]

    @property
    def certain_open_text(self) -> str:
        """Return the part of `open_text` that no later id changes."""
        return "" if self.in_byte_run else self.open_text.rstrip(UNFINISHED)

    def push(self, token: int) -> str:
        """Append an id and return the text that it settles, which may be empty."""
        text = self.decode([*self.window, token])
        is_byte = self.is_byte(token)
        adds_text = len(text) > len(self.window_text) and text.startswith(self.window_text)
        settled = ""
        if adds_text and not (is_byte and self.in_byte_run):
            added = text[len(self.window_text) :]
            settled = self.settle()
            text = self.context_text + added
            self.in_byte_run = is_byte
        elif is_byte:
            self.in_byte_run = True
        self.window.append(token)
        self.window_text = text
        return settled

    def settle(self) -> str:
        """Make the open ids the context of the ids to come, and return their text."""
        settled = self.open_text
        self.window = self.window[self.num_context :]
        self.num_context = len(self.window)
        self.context_text = self.decode(self.window)
        return settled

    def decode(self, ids: list[int]) -> str:
        """Decode ids without special tokens and without cleaning up spaces."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def is_byte(self, token: int) -> bool:
        """Return whether an id is a byte token, which is decoded together with neighbouring byte tokens."""
        return BYTE_TOKEN.fullmatch(self.tokenizer.convert_ids_to_tokens(token) or "") is not None
