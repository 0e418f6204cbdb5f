"""Card of NextStep-1 and NextStep-1.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.modalities.image.families.card import FamilyCard

MODEL_TYPE = "nextstep"
AUTOENCODER, PICKLE = "stepfun-ai/NextStep-1-f8ch16-Tokenizer", "checkpoint.pt"  # repository, and its file
METHODS = {"1": "ar", "1.1": "jacobi"}  # no draft of release 1 is ever accepted: its last step adds no noise

# A token's distribution is wide around its best estimate, so a draft must take every step of the denoising chain.
TUNED_PARAMS = dict.fromkeys(("draft", "eagle", "early-exit"), {"looks": 0})


def build_nextstep_manifest(folder: Path) -> dict[str, Any]:
    """Build the manifest of a NextStep.

    Raises:
        UnsupportedModel: it computes something that polydraft does not.
        WeightsError: its config.json is damaged.
    """
    from polydraft.modalities.image.families.nextstep.config import read_config

    release = read_config(folder).release
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": MODEL_TYPE, "drafters": {}, "codec": "vae",
        "defaults": {"method": METHODS[release], "temperature": 1.0, "guidance_scale": 7.5},
        "fitted": TUNED_PARAMS,
        "summary": f"NextStep-{release}: generates latents from free text, 512x512",
    }  # fmt: skip


NEXTSTEP = FamilyCard(
    name="nextstep",
    title="NextStep-1 and NextStep-1.1",
    model_type=MODEL_TYPE,
    manifest_fn=build_nextstep_manifest,
    codec=(AUTOENCODER, [PICKLE]),
)
