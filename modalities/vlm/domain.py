"""What a small model has seen, and whether an image looks like it: no model knows how far off its answers are.

A manifest says `"domain": "flat"` of a model that was trained on emoji on flat colours alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

SIDE = 64  # pixels a side that are looked at; noise of a JPEG is averaged out
CLOSE = 0.1  # RGB distance, of 1 a channel, at which a pixel counts as a colour; no two of the colours are within 0.21

# The share of pixels close to one of the eight colours, of 360 images a world (60 scenes each as drawn, as JPEG of
# quality 30 and 75, at 96 and 300 pixels and out of proportion): flat scenes 0.61 to 0.97, scenes in settings 0 to
# 0.52 (median 0.01; none of 200 more as drawn was taken for flat, nor one of 300 flat ones for another). Fourteen
# photographs and drawings that matplotlib and Gradio bring: 0.19 at most.
MIN_SHARE = 0.56

NOTES = {
    "flat": (
        "{name} has seen emoji on flat colours alone, and {images} not like them; an answer is a guess about emoji, so "
        "take a model that has seen photographs, such as HuggingFaceTB/SmolVLM-256M-Instruct"
    )
}


def notes(name: str, domain: str | None, images: Sequence[Image.Image]) -> tuple[str, ...]:
    """Return what has to be said about images that a model was not trained for; nothing where all is well.

    Args:
        name (str): what the model is called.
        domain (str | None): what its manifest says that it was trained on; None is everything.
        images (Sequence[Image.Image]): RGB images of one call.
    """
    if domain not in NOTES or all(has_flat_colour(image) for image in images):
        return ()
    which = "the picture is" if len(images) == 1 else "some of the pictures are"
    return (NOTES[domain].format(name=name, images=which),)


def has_flat_colour(image: Image.Image) -> bool:
    """Return whether one of the flat backgrounds of emoji scenes fills most of an image."""
    from polydraft.modalities.world.scene import BACKGROUNDS

    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float32)[:, :, None] / 255
    colours = np.asarray(list(BACKGROUNDS.values()), np.float32) / 255
    share = (np.linalg.norm(pixels - colours, axis=-1) < CLOSE).mean((0, 1)).max()
    return bool(share >= MIN_SHARE)
