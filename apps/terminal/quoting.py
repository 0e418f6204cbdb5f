"""Sentences that lost their quotes: a shell then gives every word as an argument of its own.

check_prompts(["two", "frogs", "on", "blue"])   # InvalidArgument, which shows the quoted form
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from polydraft.core.errors import InvalidArgument

# Words that stand in sentences and are no picture alone; `polydraft image cat dog` is two prompts, and stays so.
CONNECTING = frozenset(
    """a an the on in of at to by with without and or from under above below over beside between behind near next into
    is are its his her their one two three four five six seven eight nine ten some many""".split()  # noqa: SIM905
)


def check_prompts(prompts: Sequence[str]) -> None:
    """Raise InvalidArgument where several prompts are the words of one sentence."""
    alone = [prompt for prompt in prompts if len(prompt.split()) == 1]
    if len(prompts) > 1 and len(alone) == len(prompts) and CONNECTING.intersection(map(str.lower, prompts)):
        raise InvalidArgument(
            f"these {len(prompts)} prompts are one word each and would be {len(prompts)} pictures; put a sentence in "
            f"quotes: polydraft image {quoted(prompts)}."
        )


def check_text(words: Sequence[str]) -> str:
    """Return the one text to speak; raise InvalidArgument where its words came apart."""
    if len(words) > 1:
        raise InvalidArgument(
            f"the text came as {len(words)} arguments; put it in quotes: polydraft speech {quoted(words)}."
        )
    return words[0]


def check_question(pictures: Sequence[str], question: str) -> None:
    """Raise InvalidArgument where words of a question stand where pictures do."""
    words = [name for name in pictures if name != "-" and not Path(name).suffix and not Path(name).exists()]
    if words and list(pictures[-len(words) :]) == words:
        files = " ".join(shlex.quote(name) for name in pictures[: -len(words)])
        raise InvalidArgument(
            f"{words[0]!r} is no picture's file; put the question in quotes: polydraft chat {files} "
            f"{quoted([*words, question])}."
        )


def quoted(words: Sequence[str]) -> str:
    """Return words as one argument that every shell takes literally; long ones are cut."""
    text = " ".join(words)
    text = text if len(text) <= 80 else f"{text[:80].rstrip()}…"
    return in_quotes(text)


def shell_word(text: str) -> str:
    """Return text as one word of a command line, in quotes only where it needs them."""
    return text if shlex.quote(text) == text else in_quotes(text)


def in_quotes(text: str) -> str:
    """Return text in the quotes that keep it as it is; double ones, which every shell knows, where they do."""
    return f'"{text}"' if not set(text) & set('"$`\\!') else shlex.quote(text)
