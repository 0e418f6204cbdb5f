"""What a misspelt name was probably meant to be; every message about an unknown name asks it.

did_you_mean("tiny-imge", ["tiny-image", "tiny-vlm"])   # " (did you mean 'tiny-image'?)"
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.55  # of difflib's ratio, so that bf8 is near bf16
LONGEST = 100  # characters; the cost of comparing grows with their square, and no name is longer


def did_you_mean(given: str, known: Iterable[str], cutoff: float = CUTOFF) -> str:
    """Return the closest known name as a question in brackets, or an empty string where none is close.

    Args:
        given (str): the unknown name, in any case.
        known (Iterable[str]): names that would have been accepted.
        cutoff (float): similarity, by difflib's ratio, below which no name is close.
    """
    names = {name.lower(): name for name in known}
    matches = get_close_matches(given[:LONGEST].lower(), names, n=1, cutoff=cutoff)
    return f" (did you mean {names[matches[0]]!r}?)" if matches else ""
