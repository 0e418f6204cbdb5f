"""Manifests: the `polydraft.json` of a model's folder, checked field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.weight_paths import leads_outside

MANIFEST = "polydraft.json"
MODALITIES = ("image", "speech", "vlm", "transcription")
REQUIRED_FIELDS = ("modality", "drafters", "defaults")
FIELD_TYPES: dict[str, Any] = {
    "format": int, "modality": str, "tokens": str, "inputs": str, "family": str, "summary": str, "licence": str,
    "world": str, "target": str, "codec": str, "drafters": dict[str, str], "defaults": dict, "fitted": dict[str, dict],
    "voice": str, "voices": list[str], "loudness": dict[str, float], "commas": dict[str, float],
    "context": NumberRange(int, 1),
}  # fmt: skip
DEFAULT_TYPES: dict[str, Any] = {
    "method": str, "temperature": NumberRange(float, 0), "top_k": NumberRange(int, 0),
    "top_p": NumberRange(float, 0, 1), "min_p": NumberRange(float, 0, 1), "repetition_penalty": NumberRange(float, 0),
    "guidance_scale": float, "min_tokens": int,
    "iterations": NumberRange(int, 1), "steps": NumberRange(int, 1), "repetition_aware": dict,
}  # fmt: skip


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a model's folder.

    Raises:
        WeightsError: a field is missing or wrong, or a part of the model lies outside the folder.
    """
    file = folder / MANIFEST
    manifest = read_json(file)
    lists_voices = manifest.get("modality") == "speech" and "family" not in manifest
    required = [*REQUIRED_FIELDS, *(("voices",) if lists_voices else ())]
    if missing := [name for name in required if name not in manifest]:
        raise WeightsError(f"{file} has no {missing[0]}; install the model again.")
    check_fields(manifest, FIELD_TYPES, file)
    check_fields(manifest["defaults"], DEFAULT_TYPES, file)
    if "method" not in manifest["defaults"]:
        raise WeightsError(f"{file} names no method among its defaults; install the model again.")
    if manifest["modality"] not in MODALITIES:
        raise WeightsError(
            f"{file} has modality={manifest['modality']!r:.60}, which must be one of {', '.join(MODALITIES)}; correct "
            "it, or install the model again."
        )
    for part in filter(None, [manifest.get("target"), manifest.get("codec"), *manifest["drafters"].values()]):
        if leads_outside(Path(part)):
            raise WeightsError(f"{file} names {part!r:.80}, which lies elsewhere; put that folder into the model's.")
    return manifest
