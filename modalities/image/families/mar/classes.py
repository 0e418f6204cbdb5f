"""ImageNet's classes by index or name.

class_index("tiger shark", 1000), class_index("3", 1000)     # 3, 3
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from importlib.resources import files

from polydraft.core.errors import PromptError

NUM_NAMED_CLASSES = 1000  # classes that have names


@lru_cache(maxsize=1)
def class_names() -> list[str]:
    """Return the names of classes 0 to 999."""
    return (files("polydraft.assets") / "imagenet" / "classes.txt").read_text(encoding="utf-8").splitlines()


def class_index(text: str, classes: int) -> int:
    """Return the class that `text` names.

    Args:
        text (str): an index or a name.
        classes (int): how many the model has.

    Raises:
        PromptError: it names none; the message says what is near.
    """
    name = " ".join(text.split()).casefold()
    if name.isascii() and name.isdigit():
        if int(name) < classes:
            return int(name)
        raise PromptError(f"there is no class {int(name)}; use 0 to {classes - 1}.")
    index_by_name = (
        {label.casefold(): index for index, label in enumerate(class_names())} if classes == NUM_NAMED_CLASSES else {}
    )
    if name in index_by_name:
        return index_by_name[name]
    similar = difflib.get_close_matches(name, index_by_name, 3)
    advice = f"did you mean {' or '.join(similar)}?" if similar else f"use a number from 0 to {classes - 1}, or a name."
    raise PromptError(f"{text.strip()[:60]!r} is no class that this model generates; {advice}")
