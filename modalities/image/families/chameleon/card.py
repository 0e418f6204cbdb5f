"""Cards of the Chameleons that generate images: Anole and Lumina-mGPT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.modalities.image.families.card import Codec, FamilyCard

CHAMELEON_LICENCE = "Chameleon Research License (no commercial use); its copies on the hub say otherwise or nothing"
VQGAN_CODEC: Codec = ("leloy/Anole-7b-v0.1-vqvae-hf", [])  # the VQGAN of all Chameleons
VQGAN_FOLDER = "vqvae"
LUMINA_FIELDS = {"mask_image_logits", "z_loss_weight"}  # of config.json, which only Lumina-mGPT's Chameleon has


def has_vqgan_weights(folder: Path) -> bool:
    """Return whether the VQGAN's decoder is among a language model's weights."""
    from polydraft.modalities.weight_paths import tensor_files

    return any(name.endswith("vqmodel.decoder.conv_in.weight") for name in tensor_files(folder))


def find_vqgan(folder: Path) -> str:
    """Return the part of a model's folder that the VQGAN is in."""
    return "." if has_vqgan_weights(folder) else VQGAN_FOLDER


def is_lumina(folder: Path, fields: dict[str, Any]) -> bool:
    """Return whether a Chameleon is Lumina-mGPT's."""
    return fields.get("model_type") == "chameleon" and bool(fields.keys() & LUMINA_FIELDS)


def is_anole(folder: Path, fields: dict[str, Any]) -> bool:
    """Return whether another Chameleon generates images, which it cannot without the VQGAN's decoder."""
    if fields.get("model_type") != "chameleon" or is_lumina(folder, fields):
        return False
    return (folder / VQGAN_FOLDER).is_dir() or has_vqgan_weights(folder)


ANOLE = FamilyCard(
    name="anole",
    title="Anole",
    summary="generates from free text, 512x512, and what is shown to it",
    licence=CHAMELEON_LICENCE,
    defaults={"temperature": 0.7, "top_p": 0.9, "guidance_scale": 3.0},
    checkpoints={"leloy/Anole-7b-v0.1-hf": 14.3},
    implementation="chameleon.anole:Anole",
    matches=is_anole,
    codec=VQGAN_CODEC,
    codec_folder=find_vqgan,
)
LUMINA_MGPT = FamilyCard(
    name="lumina-mgpt",
    title="Lumina-mGPT",
    summary="generates from free text in multiples of 32 pixels, as its makers' README does",
    licence=CHAMELEON_LICENCE,
    defaults={"temperature": 1.0, "top_k": 2000, "guidance_scale": 4.0},
    checkpoints={"Alpha-VLLM/Lumina-mGPT-7B-768": 14.1},
    implementation="chameleon.lumina:LuminaMGPT",
    matches=is_lumina,
    codec=VQGAN_CODEC,
    codec_folder=find_vqgan,
)
