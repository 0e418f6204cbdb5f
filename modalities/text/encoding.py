"""Encode conversations without images as token ids, with a language model's tokenizer.

encoder = TextEncoder(TextProcessor(tokenizer), name, context_len)
ids, _ = encoder.encode(conversation)

A model without a chat template continues the text of the question.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polydraft.core.errors import PromptError
from polydraft.modalities.vlm.conversation import Conversation
from polydraft.modalities.vlm.encoding import ConversationEncoder
from polydraft.modalities.vlm.template import ChatTemplate, Message


class TextProcessor:
    """Tokenizer with the interface of the processors of transformers.

    Args:
        tokenizer (Any): the transformers tokenizer.
    """

    chat_template: str | None = None  # the tokenizer has it

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: list[str], images: None = None, **options: Any) -> dict[str, Tensor]:
        """Encode rendered conversations, with the options of the tokenizer."""
        encoded = self.tokenizer(text, return_attention_mask=False, return_token_type_ids=False, **options)
        return {"input_ids": encoded["input_ids"].long()}  # of an empty text they are floats


class PlainTemplate(ChatTemplate):
    """Template of a model that has none: the text of the only message, which the model continues.

    Args:
        tokenizer (Any): the transformers tokenizer.
        name (str): the model's name, for errors.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        super().__init__(tokenizer, "")
        self.name = name

    def render(self, messages: list[Message]) -> str:
        """Return the text of the message, with special tokens escaped.

        Raises:
            PromptError: there are several messages.
        """
        if len(messages) > 1:
            raise PromptError(
                f"{self.name} has no chat template and continues a single text; leave out earlier and system messages, "
                "or put its chat_template.jinja into its folder."
            )
        return "".join(part["text"] for part in self.escape_special_tokens(messages[0])["content"])


class TextEncoder(ConversationEncoder):
    """Encoder of conversations without images, with the arguments of `ConversationEncoder`."""

    @property
    def continues_text(self) -> bool:
        """Return whether the model has no chat template and continues the text of the question."""
        return isinstance(self.template, PlainTemplate)

    def build_template(self, text: str | None) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, text) if text else PlainTemplate(self.tokenizer, self.name)

    def encode(self, conversation: Conversation, max_pixels: int | None = None) -> tuple[list[int], dict[str, Tensor]]:
        if conversation.images:
            raise PromptError(image_refusal(self.name))
        return super().encode(conversation, max_pixels)


def image_refusal(name: str) -> str:
    """Return the error's message for an image that is given to the language model `name`."""
    return f"{name} reads text alone; leave the picture out, or use a model that sees, such as tiny-vlm."
