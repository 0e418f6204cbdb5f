"""Families of picture models, by the name a model card gives.

Of latents: their modules under the published names, and their samplers' laws, a folder each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polydraft.modalities.image.family import PictureFamily
    from polydraft.modalities.loading import ModelCard

FAMILIES = {  # that draw codes: module here, and class
    "tiny": ("tiny", "TinyImage"),
    "janus": ("janus", "Janus"),
    "emu3": ("emu3", "Emu3"),
    "imagegpt": ("imagegpt", "ImageGPT"),
    "glm_image": ("glm_image", "GlmImage"),
    "llamagen_t2i": ("llamagen.family", "OfCaptions"),
    "llamagen_c2i": ("llamagen.family", "OfClasses"),
    "anole": ("chameleon.anole", "Anole"),
    "lumina-mgpt": ("chameleon.lumina", "LuminaMGPT"),
    "liquid": ("liquid", "Liquid"),
}


def family_of(card: ModelCard) -> type[PictureFamily]:
    """The family of the card, "tiny" if it does not say."""
    module, name = FAMILIES[card.manifest.get("family", "tiny")]
    found: type[PictureFamily] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
