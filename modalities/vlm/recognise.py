"""Which family a vision-language model in Hugging Face form is of, told by its configuration, and the card it lacks.

Sampling defaults are those its makers publish in generation_config.json; methods are drafter-free.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MARKS = {  # what `model_type` says, and what people say; Pixtral is a LLaVA with another tower
    "llava": "LLaVA 1.5 or Pixtral", "llava_next": "LLaVA-NeXT", "idefics3": "Idefics 3", "smolvlm": "SmolVLM",
    "gemma3": "Gemma 3", "qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL",
}  # fmt: skip
CODECS: dict[str, tuple[str, list[str]]] = {}
SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # mean nothing where the makers decode greedily


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is of no family here."""
    family = read(folder / "config.json").get("model_type")
    if family not in MARKS:
        return None
    own = read(folder / "generation_config.json")
    sampling = {name: own[name] for name in SAMPLING if own.get(name) is not None} if own.get("do_sample") else {}
    if not own.get("do_sample"):
        sampling["temperature"] = 0.0
    if own.get("repetition_penalty"):
        sampling["repetition_penalty"] = own["repetition_penalty"]
    return {
        "format": 1, "modality": "vlm", "family": family, "summary": f"{MARKS[family]}: answers about pictures",
        "drafters": {}, "defaults": {"method": "pld"} | sampling,
    }  # fmt: skip


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
