"""Detect models that transcribe speech by their configuration, and build the manifest that they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.generation_config import check_generation_config

FAMILY_MARKERS = {"whisper": "Whisper"}  # `model_type` and common name
CODECS: dict[str, tuple[str, list[str]]] = {}
HEARS_AND_WRITES = "WhisperForConditionalGeneration"  # other classes of the family classify sounds


def build_manifest(folder: Path) -> dict[str, Any] | None:
    """Build the manifest of the model in `folder`; return None if it does not transcribe.

    Raises:
        WeightsError: the configuration is malformed.
    """
    fields = read_json(folder / "config.json")
    check_fields(fields, {"architectures": (list[str], type(None))}, folder / "config.json")
    family = str(fields.get("model_type"))
    if family not in FAMILY_MARKERS or HEARS_AND_WRITES not in (fields.get("architectures") or [HEARS_AND_WRITES]):
        return None
    check_generation_config(folder)
    return family_manifest(family)


def family_manifest(family: str) -> dict[str, Any]:
    """Return the manifest of a model of a family."""
    return {
        "format": 1, "modality": "transcription", "family": family, "drafters": {},
        "defaults": {"method": "auto", "temperature": 0.0},
        "summary": f"{FAMILY_MARKERS[family]}: writes down what is said in a recording",
    }  # fmt: skip
