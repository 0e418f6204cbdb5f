"""Detection of image model families in Hugging Face folders, and the manifests that such folders lack.

Families are detected by configuration; default methods need no drafter. What is known of a family stands in its card
(`families/<family>/card.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.folders.json_files import read_json
from polydraft.modalities.image.catalogue import CARDS, PUBLISHED
from polydraft.modalities.image.families.card import Codec, FamilyCard

FAMILY_MARKERS = {card.config_model_type: card.title for card in CARDS}
CODECS: dict[str, Codec] = {card.name: card.codec for card in CARDS if card.codec is not None}


def build_manifest(folder: Path) -> dict[str, Any] | None:
    """Build the manifest of the model in `folder`; None if it is of no family of images.

    Raises:
        UnsupportedModel: a NextStep computes something that polydraft does not.
        WeightsError: the folder is only a part of the model, or its configuration is malformed.
    """
    fields = read_json(folder / "config.json")
    card = next((card for card in CARDS if card.is_diffusers_folder(folder)), None) or detect_family(folder, fields)
    return None if card is None else card.build_manifest(folder)


def detect_family(folder: Path, fields: dict[str, Any]) -> FamilyCard | None:
    """Return the family that config.json with these `fields`, in `folder`, is of; None if it is of none."""
    return next((card for card in CARDS if card.is_config_of(folder, fields)), None)


__all__ = ["CODECS", "FAMILY_MARKERS", "PUBLISHED", "build_manifest"]  # what `hub.py` reads of every detector
