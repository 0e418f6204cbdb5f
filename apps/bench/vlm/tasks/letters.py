"""Multiple choice: options as lines, and the letters that answers are read for."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

DIRECTLY = "Answer with the option's letter from the given choices directly."


def lettered(options: Sequence[str], mark: str) -> str:
    """ "A. yes" and so on, a line an option; mark: what follows the letter."""
    return "\n".join(f"{letter}{mark} {option}" for letter, option in zip(ascii_uppercase, options, strict=False))
