"""Chat templates, which render conversations as the text that a model was trained on.

    template = ChatTemplate(tokenizer, text_of_the_template)
    template.render(messages)      # in the form of `conversation.Conversation`

Templates differ in the content of a message that they take: a list of parts, a string, or either. Which one a role
needs is found by rendering a probe word in both forms. User text may contain special tokens of the model (`<s>`, the
end of a turn, an image token): transformers escapes them, so that they are encoded as text.
"""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import mark_control_tokens

PROBE_WORD = "polydraft"
TEMPLATE_ERRORS = (TemplateError, ValueError, TypeError)  # raised for messages that a template does not support
ESCAPE_MARK = mark_control_tokens("x", re.compile("x"))[0]  # the character before a special token that is text
Message = dict[str, Any]


class ChatTemplate:
    """Chat template of a model with its tokenizer."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.tokenizer: Any = tokenizer
        self.template: str = template
        tokens = sorted((str(token) for token in tokenizer.added_tokens_decoder.values() if token.special), key=len)
        self.special_tokens: re.Pattern[str] = re.compile("|".join(map(re.escape, reversed(tokens))) or "(?!)")

    def render(self, messages: list[Message]) -> str:
        """Render messages up to the start of the answer, with special tokens in their text escaped.

        Args:
            messages (list[Message]): the turns, whose contents are lists of parts.

        Raises:
            TemplateError | ValueError | TypeError: the template does not support these messages.
        """
        return self.apply([self.escape_special_tokens(message) for message in messages], self.string_roles)

    def escape_special_tokens(self, message: Message) -> Message:
        """Return a message with the special tokens in its text escaped."""
        parts = [part | ({"text": mark_control_tokens(part["text"], self.special_tokens)} if "text" in part else {})
                 for part in message["content"]]  # fmt: skip
        return message | {"content": parts}

    def apply(self, messages: list[Message], string_roles: Container[str]) -> str:
        """Render messages; text of `string_roles` is given as a string."""
        formatted = [format_content(message, message["role"] in string_roles) for message in messages]
        return self.tokenizer.apply_chat_template(
            formatted, chat_template=self.template, tokenize=False, add_generation_prompt=True
        )

    @cached_property
    def string_roles(self) -> frozenset[str]:
        """Return the roles whose text content must be a string."""
        roles: frozenset[str] = frozenset()
        question: Message = {"role": "user", "content": [{"type": "text", "text": "?"}]}
        for role in ("user", "assistant", "system"):
            probe: Message = {"role": role, "content": [{"type": "text", "text": PROBE_WORD}]}
            messages = {"user": [probe], "assistant": [question, probe, question], "system": [probe, question]}[role]
            if not self.keeps_probe_once(messages, roles) and self.keeps_probe_once(messages, roles | {role}):
                roles |= {role}
        return roles

    def keeps_probe_once(self, messages: list[Message], string_roles: Container[str]) -> bool:
        """Return whether the rendered text has the probe word once; a printed list has it once for every key."""
        try:
            return self.apply(messages, string_roles).count(PROBE_WORD) == 1
        except TEMPLATE_ERRORS:
            return False


def format_content(message: Message, as_string: bool) -> Message:
    """Return a message whose content is a string if `as_string` and it is text only, else a list of parts.

    Parts have their text under every key that templates read; the first template of Pixtral reads `content`.
    """
    parts = message["content"]
    if as_string and all(part["type"] == "text" for part in parts):
        return message | {"content": "".join(part["text"] for part in parts)}
    return message | {
        "content": [part | {"content": part["text"]} if part["type"] == "text" else part for part in parts]
    }
