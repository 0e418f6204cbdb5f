"""Options that hold several values between commas.

whole_numbers("80,800", "--prompts")      # [80, 800]
numbers("0,0.7", "--temperatures")        # [0.0, 0.7]
"""

from __future__ import annotations

from polydraft.core.errors import InvalidArgument


def words(text: str) -> list[str]:
    """`a,b` as words."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str, option: str, least: int = 1) -> list[int]:
    """Parse `80,800` as integers, none below `least`."""
    try:
        found = [int(part) for part in words(text)]
    except ValueError:
        found = []
    if not found or min(found) < least:
        raise InvalidArgument(
            f"{option} {text} is not possible; write whole numbers of {least} or more, as in {least},{10 * least}."
        )
    return found


def numbers(text: str, option: str) -> list[float]:
    """Parse `0,0.7` as numbers; raise InvalidArgument for anything else."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"{option} {text} is not possible; write numbers, as in 0,1.") from None
