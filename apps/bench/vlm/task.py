"""What a question set is: where its rows come from, how one is asked, and by which rule an answer is scored.

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
from polydraft.modalities.image_io import open_image, upright_rgb

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
    """The free prompt of a question."""
    return f"{question}\n{EXPLAIN}"


def lettered(options: Sequence[str], mark: str) -> str:
    """ "A. yes" and so on, a line an option; mark: what follows the letter."""
    return "\n".join(f"{letter}{mark} {option}" for letter, option in zip(ascii_uppercase, options, strict=False))


def pictures(value: Any, folder: Path | None = None) -> list[Image.Image]:
    """The pictures a row holds: PIL, bytes, base64, a file of `folder`, a dict of `datasets`, or a list of these.

    A TSV's cell may hold a list as Python writes it.
    """
    if value is None or value == "":
        return []
    if isinstance(value, str) and value.startswith("['"):
        value = ast.literal_eval(value)
    if isinstance(value, (list, tuple)):
        return [picture for item in value for picture in pictures(item, folder)]
    if isinstance(value, dict):
        return pictures(value.get("bytes") or value.get("path"), folder)
    said = f"a row's picture ({value[:40] if isinstance(value, str) else type(value).__name__})"
    try:
        if isinstance(value, Image.Image):
            return [upright_rgb(value, said)]
        return [open_image(value if isinstance(value, bytes) else found(str(value), folder), said)]
    except PromptError as error:
        raise DataUnavailable(str(error)) from error
    except ValueError as error:
        raise DataUnavailable(
            f"{said} can be read neither as a file nor as base64; check that the data is whole."
        ) from error


def found(value: str, folder: Path | None) -> io.BytesIO | Path:
    """A file of `folder` if there is one of this name, otherwise base64."""
    if folder is not None and len(value) < 256 and (folder / value).is_file():
        return folder / value
    return io.BytesIO(base64.b64decode(value, validate=True))
