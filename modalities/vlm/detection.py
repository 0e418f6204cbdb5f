"""Detect the family of a vision-language model by its configuration, and build the manifest that it lacks.

Any model that transformers loads as an image-text-to-text model is accepted, except families that are known to compute
something else (`REFUSED`). Families that the tests do not cover (`FAMILY_MARKERS`) have their logits checked when they
are loaded. Sampling defaults come from generation_config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import UnsupportedModel
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.generation_config import check_generation_config, sampling_defaults

FAMILY_MARKERS = {  # `model_type` and common name; Pixtral is a LLaVA with another vision tower
    "llava": "LLaVA 1.5 or Pixtral", "llava_next": "LLaVA-NeXT", "idefics3": "Idefics 3", "smolvlm": "SmolVLM",
    "gemma3": "Gemma 3", "qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL", "qwen2_vl": "Qwen2-VL",
    "qwen3_vl_moe": "Qwen3-VL with experts", "llava_onevision": "LLaVA-OneVision", "internvl": "InternVL",
    "mistral3": "Mistral 3",
}  # fmt: skip
BOTH_WAYS = "reads its whole prompt both ways, which a draft behind it would change"
RECURRENT = "has layers of linear attention, whose states cannot be taken back where a draft is rejected"
REFUSED = {
    "paligemma": BOTH_WAYS, "colpali": BOTH_WAYS, "git": BOTH_WAYS,
    "mllama": "sees its picture through layers of cross-attention, which polydraft's cache does not hold",
    "qwen3_5": RECURRENT, "qwen3_5_moe": RECURRENT, "qwen4_exp": RECURRENT,
    "lfm2_vl": "has layers of convolutions, whose states cannot be taken back where a draft is rejected",
}  # fmt: skip
NO_SINGLE_PATCH = {"mistral3"}  # families whose forward pass fails if a prompt's images are a single merged patch
CODECS: dict[str, tuple[str, list[str]]] = {}


def build_manifest(folder: Path) -> dict[str, Any] | None:
    """Build the manifest of the model in `folder`; return None if it is no vision-language model.

    Raises:
        UnsupportedModel: the family is known to compute something that polydraft does not.
    """
    family = str(read_json(folder / "config.json").get("model_type"))
    if family in REFUSED:
        known = ", ".join(FAMILY_MARKERS)
        raise UnsupportedModel(f"{folder} is a {family!r}, which {REFUSED[family]}; use one of {known}.")
    if family not in FAMILY_MARKERS and not is_known_to_transformers(family):
        return None
    check_generation_config(folder)
    defaults = sampling_defaults(read_json(folder / "generation_config.json"))
    return {
        "format": 1, "modality": "vlm", "family": family, "drafters": {}, "defaults": {"method": "auto"} | defaults,
        "summary": f"{FAMILY_MARKERS.get(family, family)}: answers about pictures",
    }  # fmt: skip


def is_known_to_transformers(family: str) -> bool:
    """Return whether transformers has an image-text-to-text model of this `model_type`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
