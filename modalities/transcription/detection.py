"""Detect models that transcribe speech by their configuration, and build the manifest that they lack.

Whisper has an encoder beside its decoder; the other families are language models whose prompt sound is spliced into.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import UnsupportedModel
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.modalities.generation_config import check_generation_config, sampling_defaults

WHISPER = "whisper"
FAMILY_MARKERS = {  # `model_type` and common name
    WHISPER: "Whisper", "voxtral": "Voxtral", "qwen2_audio": "Qwen2-Audio", "qwen3_asr": "Qwen3-ASR",
    "glmasr": "GLM-ASR", "granite_speech": "Granite Speech", "granite_speech_plus": "Granite Speech Plus",
    "audioflamingo3": "Audio Flamingo 3",
}  # fmt: skip
CODECS: dict[str, tuple[str, list[str]]] = {}
WRITES = "ForConditionalGeneration"  # end of the classes that write; others of a family classify sounds
ADAPTER = "adapter_config.json"


def build_manifest(folder: Path) -> dict[str, Any] | None:
    """Build the manifest of the model in `folder`; return None if it does not transcribe.

    Raises:
        UnsupportedModel: weights of an adapter are apart.
        WeightsError: the configuration is malformed.
    """
    fields = read_json(folder / "config.json")
    check_fields(fields, {"architectures": (list[str], type(None))}, folder / "config.json")
    family, classes = str(fields.get("model_type")), fields.get("architectures") or [WRITES]
    if family not in FAMILY_MARKERS or not any(name.endswith(WRITES) for name in classes):
        return None
    if is_present(folder / ADAPTER):
        raise UnsupportedModel(
            f"{folder} has an adapter apart from its weights ({ADAPTER}), which polydraft does not apply; merge it "
            "with peft's merge_and_unload, or use a model without one."
        )
    check_generation_config(folder)
    if family == WHISPER:  # whose published settings are the algorithm's
        return family_manifest(family)
    return family_manifest(family, sampling_defaults(read_json(folder / "generation_config.json")))


def family_manifest(family: str, sampling: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the manifest of a model of a family.

    Args:
        family (str): its `model_type`.
        sampling (dict[str, Any] | None): sampling defaults of generation_config.json; a transcript is greedy at first.
    """
    return {
        "format": 1, "modality": "transcription", "family": family, "drafters": {},
        "defaults": {"method": "auto"} | (sampling or {}) | {"temperature": 0.0},
        "summary": f"{FAMILY_MARKERS[family]}: writes down what is said in a recording",
    }  # fmt: skip
