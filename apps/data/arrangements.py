"""Image placement in training conversations: at once, in a later turn, two of them, or none.

    kind = draw_kind(rng)
    messages = arrange(kind, [Talk(image, turns) for …], rng)      # NUM_TALKS[kind] of them

Messages have the form that chat templates take; an image part holds its image, whatever type the caller uses. The order
of image and text within a message makes no difference: the template writes the image first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polydraft.modalities.world.words.descriptions import choose

Message = dict[str, Any]

# Most pictures come at once, which is how benchmarks ask.
KINDS = {"at once": 0.74, "later": 0.1, "two": 0.08, "absent": 0.08}  # shares of conversations
NUM_TALKS = {"at once": 1, "later": 1, "two": 2, "absent": 1}  # scenes that a conversation of each kind is about
MIN_TURNS = 3  # of a talk: two may be held before a later picture
SYSTEM_SHARE = 0.15  # of conversations begin with a system message
REMARK_SHARE = 0.1  # of questions about a picture have a remark in front
SMALL_TALK_SHARE = 0.3  # of turns without a picture are about nothing that a picture could answer

NO_PICTURE = "There is no picture."
REMARKS = ("Here is a picture.", "Look at this picture.", "This is an image.", "I have a picture.")
SYSTEM = (
    "You are a helpful assistant.", "You answer questions about pictures.", "Answer in full sentences.",
    "You are a vision-language model. Describe what you see.", "Be precise and brief.", "You can see images.",
    "You are an assistant that describes pictures of emoji for people who cannot see them.",
)  # fmt: skip
SMALL_TALK = (
    "Hello!", "Hi", "Hello, how are you?", "Who are you?", "What can you do?", "Thank you.", "Tell me a story.",
    "What is this?", "What do you see?", "Can you see the picture?", "Can you help me?", "Is there a picture?",
    "Write a poem about the sea.", "What is the capital of France?", "How many people are there?", "Why?", "test",
    "What is 2 + 2?", "Translate this into German.", "What is in the image?", "Describe it.", "Good morning",
)  # fmt: skip


@dataclass(frozen=True)
class Talk:
    """Questions with their answers about one image."""

    picture: Any
    turns: list[tuple[str, str]]


def draw_kind(rng: np.random.Generator) -> str:
    """Sample one of KINDS by its share."""
    return str(rng.choice(list(KINDS), p=list(KINDS.values())))


def arrange(kind: str, talks: Sequence[Talk], rng: np.random.Generator) -> list[Message]:
    """Return the messages of a conversation of a kind; questions without a picture are answered by NO_PICTURE.

    Args:
        kind (str): one of KINDS.
        talks (Sequence[Talk]): as many as NUM_TALKS says, each with MIN_TURNS turns or more.
        rng (np.random.Generator): draws wordings and when a later picture comes.
    """
    first, begun = talks[0], int(rng.integers(1, MIN_TURNS))  # turns before a later picture
    if kind == "absent":
        messages = without_picture(first.turns, rng)
    elif kind == "later":
        messages = without_picture(first.turns[:begun], rng) + with_picture(first.picture, first.turns[begun:], rng)
    elif kind == "two":
        messages = with_picture(first.picture, first.turns[:begun], rng)
        messages += with_picture(talks[1].picture, talks[1].turns, rng)
    else:
        messages = with_picture(first.picture, first.turns, rng)
    system = [message("system", text_part(choose(SYSTEM, rng)))] if rng.random() < SYSTEM_SHARE else []
    return system + messages


def opening(messages: Sequence[Message]) -> list[Message]:
    """Return messages up to the question about the last picture, or to the first question where there is none."""
    asked = [index for index, each in enumerate(messages) if each["role"] == "user"]
    shown = [index for index in asked if any(part["type"] == "image" for part in messages[index]["content"])]
    return list(messages[: (shown[-1] if shown else asked[0]) + 1])


def with_picture(picture: Any, turns: list[tuple[str, str]], rng: np.random.Generator) -> list[Message]:
    """Return turns whose first question brings the image."""
    (question, answer), *rest = turns
    remark = [text_part(choose(REMARKS, rng))] if rng.random() < REMARK_SHARE else []
    content = [*remark, {"type": "image", "image": picture}, text_part(question)]
    return [message("user", *content), message("assistant", text_part(answer)), *text_only(rest)]


def without_picture(turns: list[tuple[str, str]], rng: np.random.Generator) -> list[Message]:
    """Return as many turns as given, all of them answered by NO_PICTURE, some of them small talk."""
    asked = [choose(SMALL_TALK, rng) if rng.random() < SMALL_TALK_SHARE else question for question, _ in turns]
    return text_only([(question, NO_PICTURE) for question in asked])


def text_only(turns: list[tuple[str, str]]) -> list[Message]:
    roles = ("user", "assistant")
    return [message(role, text_part(text)) for turn in turns for role, text in zip(roles, turn, strict=True)]


def message(role: str, *parts: dict[str, Any]) -> Message:
    return {"role": role, "content": list(parts)}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
