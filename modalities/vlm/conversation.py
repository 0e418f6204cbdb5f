"""Conversations in the form that chat templates take, and the images that belong to them.

A message is `{"role": …, "content": …}`; its content is text, or a list of `{"type": "text", "text": …}` and
`{"type": "image"}`. An image part holds its image (`"image"` or `"path"`: a file or a PIL image) or none; those without
take the images that are given separately, in order. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import Image

from polydraft.core.checks.arguments import to_items
from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import ImageInput, load_image

Message: TypeAlias = dict[str, Any]
IMAGE_KEYS = ("image", "path")  # keys of the image in an image part
REMOTE_KEYS = {"url", "image_url", "base64"}  # keys of other libraries, which are refused
QUESTIONS, MESSAGES = "a string, or a list of strings", "a list of messages, or of such lists"


@dataclass(frozen=True)
class Conversation:
    """Messages of a chat template, and the images of their image parts."""

    messages: list[Message]  # every content is a list of parts; image parts hold no image
    images: list[Image.Image]  # in the order of the image parts


def build_conversations(
    image: ImageInput | Sequence[Any] | None, question: str | Sequence[str] | None, messages: Sequence[Any] | None
) -> list[Conversation]:
    """Build one conversation for every question.

    Args:
        image (ImageInput | Sequence | None): an image, several, or None. With a list of questions: one image for all,
            or a list with an entry (an image, several, or None) for every question.
        question (str | Sequence[str] | None): a question, or a list of questions; each becomes the last turn.
        messages (Sequence | None): earlier turns, or a list of such lists with one for every question.

    Raises:
        PromptError: the numbers of images, questions and messages do not match, or a message is malformed.
    """
    is_batch = not (question is None or isinstance(question, str))
    questions: list[str | None] = to_items("question", question, QUESTIONS) if is_batch else [question]  # type: ignore[list-item]
    messages = [] if messages is None else to_items("messages", messages, MESSAGES)
    if is_batch and not questions:
        raise PromptError("the list of questions is empty; ask at least one question.")
    turns: list[Sequence[Message]] = [messages] * len(questions)
    if messages and not isinstance(messages[0], dict):
        if is_batch and len(messages) != len(questions):
            raise PromptError(
                f"there are {len(messages)} conversations and {len(questions)} questions; give one a question."
            )
        turns = [to_items("messages", each, MESSAGES) for each in messages]
        questions = questions if is_batch else questions * len(messages)
    images = [image] * len(questions)
    if len(questions) > 1 and isinstance(image, (list, tuple)):
        if len(image) != len(questions):
            raise PromptError(
                f"there are {len(image)} pictures and {len(questions)} questions; give one entry a question, which may "
                "itself be a list, or one picture for all."
            )
        images = list(image)
    return [build_conversation(*row) for row in zip(images, questions, turns, strict=True)]


def build_conversation(image: Any, question: str | None, messages: Sequence[Message]) -> Conversation:
    """Build a conversation of earlier turns and a question.

    Args:
        image (Any): an image, several, or None. They fill the image parts that hold none; if there are no such parts,
            they are placed before the text of the first user turn.
        question (str | None): the last turn; None where `messages` end with it.
        messages (Sequence[Message]): earlier turns.

    Raises:
        PromptError: there is no question, a message is malformed, or images and image parts do not match.
    """
    images = [] if image is None else list(image) if isinstance(image, (list, tuple)) else [image]
    turns: list[Message] = [
        {"role": message_role(message), "content": content_parts(message.get("content"))} for message in messages
    ]
    if question is not None:
        if not isinstance(question, str) or not question.strip():
            raise PromptError("the question is empty; ask something, such as 'What is in the picture?'.")
        turns.append({"role": "user", "content": [{"type": "text", "text": question}]})
    if not turns:
        raise PromptError("there is no question; ask one, or give messages that end with one.")
    if turns[-1]["role"] == "assistant":
        raise PromptError("the last message is the assistant's; end with a question.")
    num_open = sum(not any(name in part for name in IMAGE_KEYS) for part in image_parts(turns))
    if images and not num_open:
        first = next((turn for turn in turns if turn["role"] == "user"), turns[-1])
        first["content"][:0] = [{"type": "image"} for _ in images]
    elif num_open != len(images):
        raise PromptError(
            f"the messages have {num_open} places for pictures and {len(images)} were given; give one a place."
        )
    remaining = iter(images)
    sources = [next((part[name] for name in IMAGE_KEYS if name in part), None) for part in image_parts(turns)]
    loaded = [load_image(next(remaining) if source is None else source) for source in sources]
    for turn in turns:
        turn["content"] = [{"type": "image"} if part["type"] == "image" else part for part in turn["content"]]
    return Conversation(turns, loaded)


def image_parts(turns: list[Message]) -> Iterator[dict[str, Any]]:
    """Yield the image parts of all turns in order."""
    return (part for turn in turns for part in turn["content"] if part["type"] == "image")


def message_role(message: Any) -> str:
    """Return the role of a message; raise PromptError where it has none."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise PromptError('a message has no role; write it as {"role": "user", "content": "…"}.')
    return message["role"]


def content_parts(content: Any) -> list[dict[str, Any]]:
    """Return the content of a message as a new list of parts; raise PromptError where it is malformed."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, (list, tuple)):
        raise PromptError("a message has no content; it must be text, or a list of text and image parts.")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image") or (kind == "text" and not isinstance(part.get("text"), str)):
            raise PromptError(
                f'a part of a message is {part!r:.80}; it must be {{"type": "text", "text": …}} or {{"type": "image"}}.'
            )
        if kind == "image" and (other := part.keys() & REMOTE_KEYS):
            raise PromptError(
                f"an image part has the key {min(other)!r}, and nothing is fetched; give the picture as image or path."
            )
    return [dict(part) for part in content]
