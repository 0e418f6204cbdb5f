"""Suggest the name that a misspelt one was probably meant to be, for messages about unknown names.

did_you_mean("tiny-imge", ["tiny-image", "tiny-vlm"])   # " (did you mean 'tiny-image'?)"
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.55  # difflib ratio, at which bf8 still suggests bf16
MAX_LENGTH = 100  # characters; the cost of comparing is quadratic, and no name is longer


def did_you_mean(given: str, known: Iterable[str], cutoff: float = CUTOFF) -> str:
    """Return the closest known name as a question in brackets, or an empty string if none is close.

    Args:
        given (str): The unknown name, in any case.
        known (Iterable[str]): Names that would have been accepted.
        cutoff (float): Smallest difflib ratio of a close name.
    """
    names = {name.lower(): name for name in known}
    matches = get_close_matches(given[:MAX_LENGTH].lower(), names, n=1, cutoff=cutoff)
    return f" (did you mean {names[matches[0]]!r}?)" if matches else ""
