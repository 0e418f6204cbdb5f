"""Embedded model cards name the licence of the weights and the training data."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from polydraft.modalities.model_card import embedded_models

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"OFL-1.1": "SIL Open Font License", "flite 2.2": "flite 2.2", "SCOWL": "SCOWL"}


@pytest.mark.parametrize("name", [card.name for card in embedded_models()])
def test_embedded_model_card_names_licence_and_sources(name: str) -> None:
    (found,) = (card for card in embedded_models() if card.name == name)
    card, notice = ModelCard.load(found.path / "README.md"), " ".join((ROOT / "NOTICE").read_text().split())
    assert card.data.license == found.licence.lower() == "apache-2.0"
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
    _, heading, section = card.text.partition("## Licence\n")
    assert heading, "the card has no section that says what the licence covers"
    named = [source for source in SOURCES if source in section]
    assert named and all(SOURCES[source] in notice for source in named)
