"""All model families of images, from their cards, and the checkpoints that are published of them.

card = FAMILIES["janus"]
card.defaults, card.checkpoints
family_class(model_card)             # the implementation, which imports torch
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from polydraft.modalities.hub import PublishedCheckpoint
from polydraft.modalities.image.families.card import FamilyCard
from polydraft.modalities.image.families.chameleon.card import ANOLE, LUMINA_MGPT
from polydraft.modalities.image.families.emu3.card import EMU3
from polydraft.modalities.image.families.glm_image.card import GLM_IMAGE
from polydraft.modalities.image.families.imagegpt.card import IMAGEGPT
from polydraft.modalities.image.families.janus.card import JANUS
from polydraft.modalities.image.families.liquid.card import LIQUID
from polydraft.modalities.image.families.llamagen.card import LLAMAGEN_C2I, LLAMAGEN_T2I
from polydraft.modalities.image.families.mar.card import MAR
from polydraft.modalities.image.families.nextstep.card import NEXTSTEP

if TYPE_CHECKING:
    from polydraft.modalities.image.family import ImageFamily
    from polydraft.modalities.model_card import ModelCard

CARDS = (
    NEXTSTEP, MAR, JANUS, EMU3, IMAGEGPT, GLM_IMAGE, LLAMAGEN_T2I, LLAMAGEN_C2I, ANOLE, LUMINA_MGPT, LIQUID,
)  # fmt: skip
FAMILIES: dict[str, FamilyCard] = {card.name: card for card in CARDS}
CODE_FAMILIES = {name: card for name, card in FAMILIES.items() if card.has_codes}
EMBEDDED = "tiny"  # the family of polydraft's own models, whose folders have a manifest
PUBLISHED = {
    name: PublishedCheckpoint(card.title, size, card.licence)
    for card in CARDS
    for name, size in card.checkpoints.items()
}


def family_class(card: ModelCard) -> type[ImageFamily]:
    """Return the class of a model's family of codebook tokens; the embedded models' if its manifest names none."""
    name = card.manifest.get("family", EMBEDDED)
    path = "tiny:TinyImage" if name == EMBEDDED else CODE_FAMILIES[name].implementation
    module, _, class_name = path.partition(":")
    family: type[ImageFamily] = getattr(import_module(f"polydraft.modalities.image.families.{module}"), class_name)
    return family
