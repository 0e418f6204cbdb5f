"""Card of Emu3-Gen."""

from __future__ import annotations

from polydraft.modalities.image.families.card import FamilyCard

EMU3 = FamilyCard(
    name="emu3",
    title="Emu3-Gen",
    summary="generates from free text in multiples of 8 pixels, with the words that its makers add to every caption",
    licence="Apache-2.0",
    defaults={"temperature": 1.0, "top_k": 2048, "guidance_scale": 3.0},
    checkpoints={"BAAI/Emu3-Gen-hf": 17.5},
    implementation="emu3.family:Emu3",
)
