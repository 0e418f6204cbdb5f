"""Detection of speech model families in Hugging Face folders, and the manifests that such folders lack.

Families are detected by their tokenizers; facts about a family are in its card (`family_cards.py`). Families
with a continuous head that is deterministic given its first noise (`DETERMINISTIC_MODEL_TYPES`) are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import UnsupportedModel
from polydraft.core.folders.json_files import is_present, read_json, read_text
from polydraft.modalities.speech.family_cards import CARDS

FAMILY_MARKERS = {card.name: card.marker_tokens for card in CARDS}
CODECS = {card.name: card.codec for card in CARDS if card.codec is not None}
DETERMINISTIC_MODEL_TYPES = {"vibevoice", "pocket_tts", "gradium_phonon_tts"}  # `model_type` of config.json


def build_manifest(folder: Path) -> dict[str, Any] | None:
    """Build the manifest of the model in `folder`; None if it belongs to no speech family.

    Raises:
        UnsupportedModel: no draft could be verified exactly, since the model draws no randomness after its first noise.
    """
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type in DETERMINISTIC_MODEL_TYPES:
        raise UnsupportedModel(
            f"{folder} is a {model_type!r}, whose head makes a frame of its first noise without drawing again, so that "
            f"a draft is never exactly the frame it stands for; use one of {', '.join(FAMILY_MARKERS)}."
        )
    tokenizer = folder / "tokenizer.json"
    if not is_present(tokenizer):
        return None
    text = read_text(tokenizer)
    for card in CARDS:
        if all(f'"{token}"' in text for token in card.marker_tokens):
            return card.build_manifest()
    return None
