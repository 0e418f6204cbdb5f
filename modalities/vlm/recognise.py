"""Which family a vision-language model in Hugging Face form is of, told by its configuration, and the card it lacks.

Whatever transformers loads as a model of pictures and text is let in, and proves itself when it is loaded, unless it is
of a family that tests cover (`MARKS`) or of one that is known to compute something else (`REFUSED`). Sampling defaults
are those its makers publish in generation_config.json; methods are drafter-free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import UnsupportedModel
from polydraft.modalities.generation import check_generation, sampling
from polydraft.modalities.hub import said

MARKS = {  # what `model_type` says, and what people say; Pixtral is a LLaVA with another tower
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
NO_SINGLE_PATCH = {"mistral3"}  # families whose own forward fails where the images of a prompt are one merged patch
CODECS: dict[str, tuple[str, list[str]]] = {}


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is no model of pictures and text.

    Raises UnsupportedModel for one that polydraft is known not to compute.
    """
    family = str(said(folder / "config.json").get("model_type"))
    if family in REFUSED:
        raise UnsupportedModel(f"{folder} is a {family!r}, which {REFUSED[family]}; use one of {', '.join(MARKS)}.")
    if family not in MARKS and not loads(family):
        return None
    check_generation(folder)
    own = sampling(said(folder / "generation_config.json"))
    return {
        "format": 1, "modality": "vlm", "family": family, "drafters": {}, "defaults": {"method": "pld"} | own,
        "summary": f"{MARKS.get(family, family)}: answers about pictures",
    }  # fmt: skip


def loads(family: str) -> bool:
    """Whether transformers has a model of pictures and text of that name."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
