"""Question sets: source of the rows, prompts, and scoring rule.

    TASK = Task("chartqa", Source("HuggingFaceM4/ChartQA", "test"), read, score, longest=16)

A row becomes a sample with two prompts: the set's own for accuracy, with its few tokens, and a free one for latency,
because answers of a letter or two leave nothing to draft.
"""

from __future__ import annotations

import ast
import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from PIL import Image

from polydraft.core.errors import DataUnavailable, PromptError
from polydraft.modalities.image_io import open_image, to_upright_rgb

Row = dict[str, Any]
DIRECTLY = "Answer with the option's letter from the given choices directly."
EXPLAIN = "Look at the picture, then answer in full sentences and explain in detail how you arrive at your answer."


@dataclass(frozen=True)
class Source:
    """A set on the hub. needs: a column that a row must have a value in to be asked."""

    hub: str
    split: str
    needs: str | None = None


@dataclass(frozen=True)
class Sample:
    """One question. prompt: the set's own. free: what is asked when an answer's speed is measured. gold: what `score`
    compares with; group: the part of the set it belongs to."""

    id: str
    images: list[Image.Image] = field(repr=False)
    prompt: str
    free: str
    gold: Any
    group: str = ""


Read = Callable[[Row, Callable[[Any], list[Image.Image]]], Sample]  # a row, and what makes pictures of its values
Score = Callable[[Any, str], float]  # gold, answer


@dataclass(frozen=True)
class Task:
    """A question set. longest: tokens of an answer to the set's own prompt. score_free: where free answers can be
    scored as well. rows: where rows are made here instead of read from `source`."""

    name: str
    source: Source | None
    read: Read
    score: Score
    longest: int
    score_free: Score | None = None
    rows: Callable[[], Any] | None = None


def explained(question: str) -> str:
    """Return the free-form prompt of a question."""
    return f"{question}\n{EXPLAIN}"


def lettered(options: Sequence[str], mark: str) -> str:
    """Return lettered options ("A. yes"), one a line.

    Args:
        mark: Text after the letter.
    """
    return "\n".join(f"{letter}{mark} {option}" for letter, option in zip(ascii_uppercase, options, strict=False))


def pictures(value: Any, folder: Path | None = None) -> list[Image.Image]:
    """Return the images of a row: PIL, bytes, base64, a file of `folder`, a dict of `datasets`, or a list of these.

    A TSV's cell may hold a list in Python syntax.
    """
    if value is None or value == "":
        return []
    if isinstance(value, str) and value.startswith("['"):
        value = ast.literal_eval(value)
    if isinstance(value, (list, tuple)):
        return [picture for item in value for picture in pictures(item, folder)]
    if isinstance(value, dict):
        return pictures(value.get("bytes") or value.get("path"), folder)
    description = f"a row's picture ({value[:40] if isinstance(value, str) else type(value).__name__})"
    try:
        if isinstance(value, Image.Image):
            return [to_upright_rgb(value, description)]
        return [open_image(value if isinstance(value, bytes) else find_choice(str(value), folder), description)]
    except PromptError as error:
        raise DataUnavailable(str(error)) from error
    except ValueError as error:
        raise DataUnavailable(
            f"{description} can be read neither as a file nor as base64; check that the data is whole."
        ) from error


def find_choice(value: str, folder: Path | None) -> io.BytesIO | Path:
    """Return a file of `folder` if there is one of this name, otherwise decode base64."""
    if folder is not None and len(value) < 256 and (folder / value).is_file():
        return folder / value
    return io.BytesIO(base64.b64decode(value, validate=True))
