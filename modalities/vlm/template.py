"""A model's chat template: how a conversation becomes the text that the model was trained to read.

    template = Template(tokenizer, text_of_the_template)
    template.write(messages)      # as `conversation.Conversation` holds them

Templates differ in what a message's content is: a list of parts, a string that is concatenated, or either. Which, for
every role, is found by writing a word in both forms. What people write may hold the model's own marks (`<s>`, the end
of a turn, the place of a picture): transformers sets them apart, so that they are read as text.
"""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import mark_control_tokens

WORD = "polydraft"
REFUSES = (TemplateError, ValueError, TypeError)  # what templates raise for messages that they do not take
SET_APART = mark_control_tokens("x", re.compile("x"))[0]  # the character in front of a mark that is text
Message = dict[str, Any]


class Template:
    def __init__(self, words: Any, template: str) -> None:
        self.words, self.template = words, template
        marks = sorted((str(token) for token in words.added_tokens_decoder.values() if token.special), key=len)
        self.marks = re.compile("|".join(map(re.escape, reversed(marks))) or "(?!)")

    def write(self, messages: list[Message]) -> str:
        """The text up to where the answer begins, marks in what was said set apart; raises one of REFUSES."""
        return self.text([self.set_apart(message) for message in messages], self.concatenated)

    def set_apart(self, message: Message) -> Message:
        parts = [part | ({"text": mark_control_tokens(part["text"], self.marks)} if "text" in part else {})
                 for part in message["content"]]  # fmt: skip
        return message | {"content": parts}

    def text(self, messages: list[Message], concatenated: Container[str]) -> str:
        given = [formed(message, message["role"] in concatenated) for message in messages]
        return self.words.apply_chat_template(
            given, chat_template=self.template, tokenize=False, add_generation_prompt=True
        )

    @cached_property
    def concatenated(self) -> frozenset[str]:
        """Roles whose content must be a string where it is text."""
        found: frozenset[str] = frozenset()
        question: Message = {"role": "user", "content": [{"type": "text", "text": "?"}]}
        for role in ("user", "assistant", "system"):
            said: Message = {"role": role, "content": [{"type": "text", "text": WORD}]}
            around = {"user": [said], "assistant": [question, said, question], "system": [said, question]}[role]
            if not self.tells(around, found) and self.tells(around, found | {role}):
                found |= {role}
        return found

    def tells(self, messages: list[Message], concatenated: Container[str]) -> bool:
        """Whether the word is in the text once; a list that is printed says it once a key."""
        try:
            return self.text(messages, concatenated).count(WORD) == 1
        except REFUSES:
            return False


def formed(message: Message, concatenated: bool) -> Message:
    """The message with a string for content where that is wanted and it is text, else with parts.

    Parts say their text by every name that templates know it by; Pixtral's first one reads `content`.
    """
    parts = message["content"]
    if concatenated and all(part["type"] == "text" for part in parts):
        return message | {"content": "".join(part["text"] for part in parts)}
    return message | {
        "content": [part | {"content": part["text"]} if part["type"] == "text" else part for part in parts]
    }
