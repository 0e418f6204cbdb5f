"""Suggest the name that a misspelt one was probably meant to be, for messages about unknown names.

did_you_mean("tiny-imge", ["tiny-image", "tiny-vlm"])   # " (did you mean 'tiny-image'?)"
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.55  # difflib ratio, at which bf8 still suggests bf16
MAX_LENGTH = 100  # characters; the cost of comparing is quadratic, and no name is longer


def did_you_mean(unknown_name: str, known_names: Iterable[str], cutoff: float = CUTOFF) -> str:
    """Return the text " (did you mean '…'?)" with the closest known name, or an empty string if none is close.

    Args:
        unknown_name (str): The name that was not recognised, in upper or lower case.
        known_names (Iterable[str]): The valid names.
        cutoff (float): Smallest difflib ratio of a close name.
    """
    known_by_lower_case = {name.lower(): name for name in known_names}
    matches = get_close_matches(unknown_name[:MAX_LENGTH].lower(), known_by_lower_case, n=1, cutoff=cutoff)
    return f" (did you mean {known_by_lower_case[matches[0]]!r}?)" if matches else ""
