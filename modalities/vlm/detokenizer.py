"""Decode token ids to text one by one, at a cost that does not grow with the text before them.

    text = IncrementalDetokenizer(tokenizer)
    settled = "".join(text.push(token) for token in ids)
    settled + text.open_text == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
"""

from __future__ import annotations

import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # how byte fallback spells a byte (sentencepiece)
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what bytes look like before the last of their character is there


class IncrementalDetokenizer:
    """The text of the ids pushed so far: at every point what decoding all of them at once gives.

    What an id adds depends on the ids just before it alone, so each is decoded in a window: the ids whose text may yet
    change, behind a few whose text is settled. Text is settled once an id behind it has text of its own; in a run of
    byte tokens only when the run has ended, since one wrong byte makes all of the run illegible.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.window: list[int] = []
        self.window_text = ""
        self.context_text = ""  # settled text that the window begins with
        self.num_context = 0  # ids of the window that say it
        self.in_byte_run = False  # whether the window ends with byte tokens

    @property
    def open_text(self) -> str:
        """Return the text behind what is settled."""
        return self.window_text[len(self.context_text) :]

    @property
    def certain_open_text(self) -> str:
        """Return the part of `open_text` that no later id changes."""
        return "" if self.in_byte_run else self.open_text.rstrip(UNFINISHED)

    def push(self, token: int) -> str:
        """Read one more id and return the text that is settled by it, which may be empty."""
        text = self.decode([*self.window, token])
        is_byte = self.is_byte(token)
        has_own_text = len(text) > len(self.window_text) and text.startswith(self.window_text)
        settled = ""
        if has_own_text and not (is_byte and self.in_byte_run):
            own_text = text[len(self.window_text) :]
            settled = self.settle()
            text = self.context_text + own_text
            self.in_byte_run = is_byte
        elif is_byte:
            self.in_byte_run = True
        self.window.append(token)
        self.window_text = text
        return settled

    def settle(self) -> str:
        """Turn the open ids into the context of those to come, and return their text."""
        settled = self.open_text
        self.window = self.window[self.num_context :]
        self.num_context = len(self.window)
        self.context_text = self.decode(self.window)
        return settled

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids without special tokens, its spaces as they are."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def is_byte(self, token: int) -> bool:
        """Check whether an id stands for a byte that is decoded together with the bytes beside it."""
        return BYTE_TOKEN.fullmatch(self.tokenizer.convert_ids_to_tokens(token) or "") is not None
