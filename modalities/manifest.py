"""What a model's `polydraft.json` says, checked before anything follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.core.folders.fields import Range, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.hub import leads_out

MANIFEST = "polydraft.json"
MODALITIES = ("image", "speech", "vlm")
NEEDED = ("modality", "drafters", "defaults")
HINTS: dict[str, Any] = {
    "format": int, "modality": str, "tokens": str, "family": str, "summary": str, "licence": str, "world": str,
    "target": str, "codec": str, "drafters": dict[str, str], "defaults": dict, "fitted": dict[str, dict], "voice": str,
    "voices": list[str], "loudness": dict[str, float], "commas": dict[str, float], "context": Range(int, 1),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "method": str, "temperature": Range(float, 0), "top_k": Range(int, 0), "top_p": Range(float, 0, 1),
    "min_p": Range(float, 0, 1), "repetition_penalty": Range(float, 0), "guidance_scale": float, "min_tokens": int,
    "iterations": Range(int, 1), "steps": Range(int, 1), "repetition_aware": dict,
}  # fmt: skip


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return what a model's folder says of itself.

    Raises:
        WeightsError: a field is missing or wrong, or a part lies outside of the folder.
    """
    file = folder / MANIFEST
    manifest = read_json(file)
    needed = [*NEEDED, *(("voices",) if manifest.get("modality") == "speech" and "family" not in manifest else ())]
    if missing := [name for name in needed if name not in manifest]:
        raise WeightsError(f"{file} has no {missing[0]}; install the model again.")
    check_fields(manifest, HINTS, file)
    check_fields(manifest["defaults"], DEFAULTS, file)
    if "method" not in manifest["defaults"]:
        raise WeightsError(f"{file} names no method among its defaults; install the model again.")
    if manifest["modality"] not in MODALITIES:
        raise WeightsError(
            f"{file} has modality={manifest['modality']!r:.60}, which must be one of {', '.join(MODALITIES)}; correct "
            "it, or install the model again."
        )
    for part in filter(None, [manifest.get("target"), manifest.get("codec"), *manifest["drafters"].values()]):
        if leads_out(Path(part)):
            raise WeightsError(f"{file} names {part!r:.80}, which lies elsewhere; put that folder into the model's.")
    return manifest
