"""What tests know of the embedded models, read off their folders."""

from __future__ import annotations

from polydraft.modalities.image import plan, vocabulary
from polydraft.modalities.loading import card

CODES = 256  # of a picture


def picture_tokens() -> int:
    """What `tiny-image` commits for a picture: its codes, and the plan before them if it writes one."""
    return CODES + plan.said(vocabulary.load(card("tiny-image").path / "target"))
