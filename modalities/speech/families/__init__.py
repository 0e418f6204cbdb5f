"""Families of speech models, by the name a model card gives."""

from __future__ import annotations

from importlib import import_module

from polydraft.modalities.speech.family import Parts, SpeechFamily

FAMILIES = {
    "tiny": ("polydraft.modalities.speech.families.tiny", "TinySpeech"),
    "orpheus": ("polydraft.modalities.speech.families.orpheus", "Orpheus"),
    "neutts": ("polydraft.modalities.speech.families.neutts", "NeuTTS"),
    "llasa": ("polydraft.modalities.speech.families.llasa", "Llasa"),
    "cosyvoice2": ("polydraft.modalities.speech.families.cosyvoice2", "CosyVoice2"),
}


def family(parts: Parts) -> SpeechFamily:
    """The family of the card, "tiny" if it does not say."""
    module, name = FAMILIES[parts.card.manifest.get("family", "tiny")]
    made: SpeechFamily = getattr(import_module(module), name)(parts)
    return made
