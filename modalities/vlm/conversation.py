"""What is asked: pictures and turns of a conversation, in the one form that chat templates take.

A message is `{"role": …, "content": …}`; its content is text, or a list of `{"type": "text", "text": …}` and
`{"type": "image"}`, the latter with the picture (`"image"` or `"path"`: a file or a PIL image) or without one; those
without take the pictures that were given apart, in order. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import Image

from polydraft.core.arguments import to_items
from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import Picture, load_image

Message: TypeAlias = dict[str, Any]
WHERE = ("image", "path")  # what an image part may call its picture
FETCHED = {"url", "image_url", "base64"}  # what others call it
QUESTIONS, MESSAGES = "a string, or a list of strings", "a list of messages, or of such lists"


@dataclass(frozen=True)
class Conversation:
    """Messages whose contents are lists of parts, image parts without their pictures, and the pictures in order."""

    messages: list[Message]
    pictures: list[Image.Image]


def conversations(
    image: Picture | Sequence[Any] | None, question: str | Sequence[str] | None, messages: Sequence[Any] | None
) -> list[Conversation]:
    """One conversation a question.

    image: a picture, several, or None; with a list of questions one for all of them or a list with an entry (a picture,
    several, or None) each. messages: earlier turns, of which there may be a list a question; a question is added as the
    last turn.
    """
    batch = not (question is None or isinstance(question, str))
    asked: list[str | None] = to_items("question", question, QUESTIONS) if batch else [question]  # type: ignore[list-item]
    messages = [] if messages is None else to_items("messages", messages, MESSAGES)
    if batch and not asked:
        raise PromptError("the list of questions is empty; ask at least one question.")
    turns: list[Sequence[Message]] = [messages] * len(asked)
    if messages and not isinstance(messages[0], dict):
        if batch and len(messages) != len(asked):
            raise PromptError(
                f"there are {len(messages)} conversations and {len(asked)} questions; give one a question."
            )
        turns = [to_items("messages", own, MESSAGES) for own in messages]
        asked = asked if batch else asked * len(messages)
    seen = [image] * len(asked)
    if len(asked) > 1 and isinstance(image, (list, tuple)):
        if len(image) != len(asked):
            raise PromptError(
                f"there are {len(image)} pictures and {len(asked)} questions; give one entry a question, which may "
                "itself be a list, or one picture for all."
            )
        seen = list(image)
    return [conversation(*row) for row in zip(seen, asked, turns, strict=True)]


def conversation(image: Any, question: str | None, messages: Sequence[Message]) -> Conversation:
    """Earlier turns and a question about pictures that stand before it unless a message says where."""
    given = [] if image is None else list(image) if isinstance(image, (list, tuple)) else [image]
    turns: list[Message] = [
        {"role": message_role(message), "content": parts(message.get("content"))} for message in messages
    ]
    if question is not None:
        if not isinstance(question, str) or not question.strip():
            raise PromptError("the question is empty; ask something, such as 'What is in the picture?'.")
        turns.append({"role": "user", "content": [{"type": "text", "text": question}]})
    if not turns:
        raise PromptError("there is no question; ask one, or give messages that end with one.")
    if turns[-1]["role"] == "assistant":
        raise PromptError("the last message is the assistant's; end with a question.")
    open_places = sum(not any(name in part for name in WHERE) for part in image_parts(turns))
    if given and not open_places:
        first = next((turn for turn in turns if turn["role"] == "user"), turns[-1])
        first["content"][:0] = [{"type": "image"} for _ in given]
    elif open_places != len(given):
        raise PromptError(
            f"the messages have {open_places} places for pictures and {len(given)} were given; give one a place."
        )
    rest = iter(given)
    sources = [next((part[name] for name in WHERE if name in part), None) for part in image_parts(turns)]
    pictures = [load_image(next(rest) if source is None else source) for source in sources]
    for turn in turns:
        turn["content"] = [{"type": "image"} if part["type"] == "image" else part for part in turn["content"]]
    return Conversation(turns, pictures)


def image_parts(turns: list[Message]) -> Iterator[dict[str, Any]]:
    return (part for turn in turns for part in turn["content"] if part["type"] == "image")


def message_role(message: Any) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise PromptError('a message has no role; write it as {"role": "user", "content": "…"}.')
    return message["role"]


def parts(content: Any) -> list[dict[str, Any]]:
    """Content as a new list of parts."""
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
        if kind == "image" and (other := part.keys() & FETCHED):
            raise PromptError(
                f"an image part has the key {min(other)!r}, and nothing is fetched; give the picture as image or path."
            )
    return [dict(part) for part in content]
