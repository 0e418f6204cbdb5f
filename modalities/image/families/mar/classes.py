"""ImageNet's classes by index or name.

number("tiger shark", 1000), number("3", 1000)     # 3, 3
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from importlib.resources import files

from polydraft.core.errors import PromptError

USUAL = 1000  # classes that have names


@lru_cache(maxsize=1)
def names() -> list[str]:
    """Of classes 0 to 999."""
    return (files("polydraft.assets") / "imagenet" / "classes.txt").read_text(encoding="utf-8").splitlines()


def number(text: str, classes: int) -> int:
    """The class that `text` names, of so many. Raises PromptError with what is near."""
    asked = " ".join(text.split()).casefold()
    if asked.isascii() and asked.isdigit():
        if int(asked) < classes:
            return int(asked)
        raise PromptError(f"there is no class {int(asked)}; use 0 to {classes - 1}.")
    known = {name.casefold(): index for index, name in enumerate(names())} if classes == USUAL else {}
    if asked in known:
        return known[asked]
    near = difflib.get_close_matches(asked, known, 3)
    advice = f"did you mean {' or '.join(near)}?" if near else f"use a number from 0 to {classes - 1}, or a name."
    raise PromptError(f"{text.strip()[:60]!r} is no class that this model draws; {advice}")
