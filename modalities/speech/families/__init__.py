"""Families of speech models, by the name a model card gives."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from polydraft.modalities.speech.family import Parts, SpeechFamily

FAMILIES = {
    "tiny": ("polydraft.modalities.speech.families.tiny", "TinySpeech"),
    "orpheus": ("polydraft.modalities.speech.families.orpheus", "Orpheus"),
    "neutts": ("polydraft.modalities.speech.families.neutts", "NeuTTS"),
    "llasa": ("polydraft.modalities.speech.families.llasa", "Llasa"),
    "cosyvoice2": ("polydraft.modalities.speech.families.cosyvoice2", "CosyVoice2"),
}


def family_class(manifest: Mapping[str, Any]) -> type[SpeechFamily]:
    """Return the class of the family that a card names, "tiny" if it does not say."""
    module, name = FAMILIES[manifest.get("family", "tiny")]
    found: type[SpeechFamily] = getattr(import_module(module), name)
    return found


def family(parts: Parts) -> SpeechFamily:
    """Return the family of the card with its tokenizer and codec."""
    return family_class(parts.card.manifest)(parts)
