"""Which family a model of pictures in Hugging Face form is of, told by its configuration, and the card it lacks.

Sampling defaults are those its makers publish; methods are drafter-free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.modalities.hub import said
from polydraft.modalities.image.families.nextstep.config import AUTOENCODER, MODEL_TYPE, PICKLE, NextStepConfig

MARKS = {MODEL_TYPE: "NextStep-1 and NextStep-1.1"}  # what `model_type` says, and what people say
CODECS: dict[str, tuple[str, list[str]]] = {MODEL_TYPE: (AUTOENCODER, [PICKLE])}
METHODS = {"1": "ar", "1.1": "jacobi"}  # no draft of release 1 is ever kept, since its last step draws nothing

# a token is spread widely around what is known of it, so a draft must take every step of its chain
FITTED = dict.fromkeys(("draft", "eagle", "early-exit"), {"looks": 0})


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is of no family here.

    Raises UnsupportedModel or WeightsError for a NextStep that polydraft does not compute.
    """
    fields = said(folder / "config.json")
    if fields.get("model_type") != MODEL_TYPE:
        return None
    release = NextStepConfig.read(fields).release
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": MODEL_TYPE, "drafters": {}, "codec": "vae",
        "defaults": {"method": METHODS[release], "temperature": 1.0, "guidance_scale": 7.5},
        "fitted": FITTED,
        "summary": f"NextStep-{release}: draws free text as latents, 512x512",
    }  # fmt: skip
