"""Implementations of the speech model families, by the name that a manifest gives."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from polydraft.modalities.speech.family import FamilyInputs, SpeechFamily
from polydraft.modalities.speech.family_cards import CARDS

EMBEDDED = "tiny"  # the family of polydraft's own models, whose folders have a manifest
FAMILIES = {EMBEDDED: "tiny:TinySpeech"} | {card.name: card.implementation for card in CARDS}  # "module:Class"


def family_class(manifest: Mapping[str, Any]) -> type[SpeechFamily]:
    """Return the class of the family that a manifest names, by default that of the embedded models."""
    module, _, class_name = FAMILIES[manifest.get("family", EMBEDDED)].partition(":")
    implementation: type[SpeechFamily] = getattr(import_module(f"{__name__}.{module}"), class_name)
    return implementation


def build_family(inputs: FamilyInputs) -> SpeechFamily:
    """Build the family of a model, with its tokenizer and codec."""
    return family_class(inputs.card.manifest)(inputs)
