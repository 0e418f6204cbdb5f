"""Facts about the embedded models, read from their folders."""

from __future__ import annotations

from polydraft.modalities.image import scene_plan, vocabulary
from polydraft.modalities.model_card import load_card

CODES = 256  # of an image


def image_token_count() -> int:
    """Return the number of tokens of an image of `tiny-image`: its codes, and the plan before them if it has one."""
    return CODES + scene_plan.plan_length(vocabulary.load_tokenizer(load_card("tiny-image").path / "target"))
