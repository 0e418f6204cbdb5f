"""Which family a model of pictures in Hugging Face form is of, told by its configuration, and the card it lacks.

Sampling defaults are those its makers publish; methods are drafter-free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.modalities.hub import said
from polydraft.modalities.image.families.mar.config import MODEL_TYPE as MAR
from polydraft.modalities.image.families.mar.config import SCALES, SIZES, MARConfig
from polydraft.modalities.image.families.nextstep.config import AUTOENCODER, MODEL_TYPE, PICKLE, NextStepConfig

# what `model_type` says, and what people say
MARKS = {MODEL_TYPE: "NextStep-1 and NextStep-1.1", MAR: "MAR as `polydraft convert mar` leaves it"}
CODECS: dict[str, tuple[str, list[str]]] = {MODEL_TYPE: (AUTOENCODER, [PICKLE]), "mar": ("kl16", [])}
METHODS = {"1": "ar", "1.1": "jacobi"}  # no draft of release 1 is ever kept, since its last step draws nothing

# a token is spread widely around what is known of it, so a draft must take every step of its chain
FITTED = dict.fromkeys(("draft", "eagle", "early-exit"), {"looks": 0})


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is of no family here.

    Raises UnsupportedModel or WeightsError for a NextStep that polydraft does not compute, or a MAR of no shape.
    """
    fields = said(folder / "config.json")
    if fields.get("model_type") == MAR:
        return mar(folder, fields)
    if fields.get("model_type") != MODEL_TYPE:
        return None
    release = NextStepConfig.read(fields).release
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": MODEL_TYPE, "drafters": {}, "codec": "vae",
        "defaults": {"method": METHODS[release], "temperature": 1.0, "guidance_scale": 7.5},
        "fitted": FITTED,
        "summary": f"NextStep-{release}: draws free text as latents, 512x512",
    }  # fmt: skip


def mar(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The card of a MAR; its makers draw in 64 sets where speed counts, in 256 where nothing else does."""
    try:
        config = MARConfig(**fields)
    except TypeError as error:
        file = folder / "config.json"
        raise WeightsError(f"{file} is no MAR's; convert it again with `polydraft convert mar`.") from error
    name = next((name for name, published in SIZES.items() if published == config), "MAR")
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": "mar", "drafters": {}, "codec": "vae",
        "defaults": {
            "method": "ar", "temperature": 1.0, "guidance_scale": SCALES.get(name, 1.0), "iterations": 64,
            "steps": 100,
        },
        "summary": f"{name}: draws ImageNet's classes as latents, a set at a time",
    }  # fmt: skip
