"""Which family a model of pictures in Hugging Face form is of, told by its configuration, and the card it lacks.

Methods are drafter-free; what else is known of families that draw codes stands in `catalogue.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.modalities.hub import PIPELINE, said, stored
from polydraft.modalities.image.catalogue import CODES, PUBLISHED
from polydraft.modalities.image.families.mar.config import MODEL_TYPE as MAR
from polydraft.modalities.image.families.mar.config import SCALES, SIZES, read_config
from polydraft.modalities.image.families.nextstep.config import AUTOENCODER, MODEL_TYPE, PICKLE
from polydraft.modalities.image.families.nextstep.config import read_config as read_nextstep

# what `model_type` says, and what people say
MARKS = {MODEL_TYPE: "NextStep-1 and NextStep-1.1", MAR: "MAR as `polydraft convert mar` leaves it"}
MARKS |= {name: family.title for name, family in CODES.items()}
VQGAN = "leloy/Anole-7b-v0.1-vqvae-hf"  # of all Chameleons
LUMINA = {"mask_image_logits", "z_loss_weight"}  # settings that its makers' Chameleon has more than others
LIQUID = 256_000 + 8192  # Gemma's words and codes
WITH_VQGAN = ("anole", "lumina-mgpt", "liquid")
CODECS: dict[str, tuple[str, list[str]]] = {MODEL_TYPE: (AUTOENCODER, [PICKLE]), "mar": ("kl16", [])}
CODECS |= {name: (VQGAN, []) for name in WITH_VQGAN}
METHODS = {"1": "ar", "1.1": "jacobi"}  # no draft of release 1 is ever kept, since its last step draws nothing

# a token is spread widely around what is known of it, so a draft must take every step of its chain
FITTED = dict.fromkeys(("draft", "eagle", "early-exit"), {"looks": 0})


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is of no family here.

    Raises UnsupportedModel or WeightsError for a NextStep that polydraft does not compute, or a MAR of no shape.
    """
    fields = said(folder / "config.json")
    kind = piped(folder) or kind_of(folder, fields)
    if kind == MAR:
        return mar(folder)
    if kind in CODES:
        family = CODES[kind]
        if family.pipeline and not piped(folder):
            raise WeightsError(
                f"{folder} is the {family.target} of {family.title} alone, which makes no pixels; give the whole of "
                f"it, a folder with {PIPELINE}."
            )
        codec = {"codec": "." if holds_vqgan(folder) else "vqvae"} if kind in WITH_VQGAN else {}
        return codec | {
            "format": 1, "modality": "image", "family": kind, "drafters": {}, "licence": family.licence,
            "target": family.target, "preview": family.preview,
            "defaults": {"method": "jacobi"} | family.defaults, "summary": f"{family.title}: {family.summary}",
        }  # fmt: skip
    if kind != MODEL_TYPE:
        return None
    release = read_nextstep(folder).release
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": MODEL_TYPE, "drafters": {}, "codec": "vae",
        "defaults": {"method": METHODS[release], "temperature": 1.0, "guidance_scale": 7.5},
        "fitted": FITTED,
        "summary": f"NextStep-{release}: draws free text as latents, 512x512",
    }  # fmt: skip


def piped(folder: Path) -> str | None:
    """The family whose pipeline of diffusers lies in `folder`."""
    name = said(folder / PIPELINE).get("_class_name")
    return next((kind for kind, family in CODES.items() if name and family.pipeline == name), None)


def mar(folder: Path) -> dict[str, Any]:
    """The card of a MAR; its makers draw in 64 sets where speed counts, in 256 where nothing else does."""
    config = read_config(folder)
    name = next((name for name, published in SIZES.items() if published == config), "MAR")
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": "mar", "drafters": {}, "codec": "vae",
        "defaults": {
            "method": "ar", "temperature": 1.0, "guidance_scale": SCALES.get(name, 1.0), "iterations": 64,
            "steps": 100,
        },
        "summary": f"{name}: draws ImageNet's classes as latents, a set at a time",
    }  # fmt: skip


def kind_of(folder: Path, fields: dict[str, Any]) -> str:
    """What `model_type` says; of Chameleons and Gemmas, which mostly do not draw, the one that does."""
    kind, beside = str(fields.get("model_type")), (folder / "vqvae").is_dir()
    if kind == "chameleon" and fields.keys() & LUMINA:
        return "lumina-mgpt"
    if kind == "chameleon" and (beside or holds_vqgan(folder)):  # others cannot make pictures of codes
        return "anole"
    if kind == "gemma" and (beside or fields.get("vocab_size") == LIQUID):
        return "liquid"
    return kind


def holds_vqgan(folder: Path) -> bool:
    """Whether the decoder of pictures is among a language model's weights."""
    return any(name.endswith("vqmodel.decoder.conv_in.weight") for name in stored(folder))


__all__ = ["CODECS", "MARKS", "PUBLISHED", "manifest"]  # what `hub.py` asks every recogniser for
