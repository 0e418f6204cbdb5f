"""Check whether images look like those that a small model was trained on; no model knows when it is only guessing.

A manifest says `"domain": "flat"` of a model that was trained on emoji on flat colours only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

SIDE = 64  # images are reduced to this many pixels a side, which averages out JPEG noise
CLOSE = 0.1  # RGB distance (channels 0..1) within which a pixel counts as a colour; the colours are over 0.21 apart

# Share of pixels close to one of the eight colours, measured on 360 images of each world (60 scenes, each as rendered,
# as JPEG of quality 30 and 75, at 96 and 300 pixels, and stretched): 0.61 to 0.97 for flat scenes, 0 to 0.52 for
# scenes in settings (median 0.01; none of 200 more rendered ones was taken for flat, and none of 300 flat ones was
# missed). At most 0.19 for the 14 photographs and drawings that come with matplotlib and Gradio.
MIN_SHARE = 0.56

NOTES = {
    "flat": (
        "{name} has seen emoji on flat colours alone, and {images} not like them; an answer is a guess about emoji, so "
        "take a model that has seen photographs, such as HuggingFaceTB/SmolVLM-256M-Instruct"
    )
}


def domain_notes(name: str, domain: str | None, images: Sequence[Image.Image]) -> tuple[str, ...]:
    """Return a note if some of the images are unlike the model's training images, else nothing.

    Args:
        name (str): the model's name.
        domain (str | None): the domain in its manifest; None is any image.
        images (Sequence[Image.Image]): RGB images of one call.
    """
    if domain not in NOTES or all(has_flat_colour(image) for image in images):
        return ()
    which = "the picture is" if len(images) == 1 else "some of the pictures are"
    return (NOTES[domain].format(name=name, images=which),)


def has_flat_colour(image: Image.Image) -> bool:
    """Return whether most of an image has one of the background colours of flat emoji scenes."""
    from polydraft.modalities.world.scene import BACKGROUNDS

    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float32)[:, :, None] / 255
    colours = np.asarray(list(BACKGROUNDS.values()), np.float32) / 255
    share = (np.linalg.norm(pixels - colours, axis=-1) < CLOSE).mean((0, 1)).max()
    return bool(share >= MIN_SHARE)
