"""Detect language models by their configuration, and build the manifest that they lack.

Any decoder that transformers loads as a causal language model is accepted, once no other modality has recognised the
folder: some models of speech and of images are language models too. What the tests do not cover has its logits checked
when it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from polydraft.core.errors import UnsupportedModel
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.readers import read_pretrained
from polydraft.modalities.generation_config import check_generation_config, sampling_defaults

FAMILY_MARKERS = {  # `model_type` and common name
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3_text": "Gemma 3",
    "smollm3": "SmolLM3", "gpt_neox": "GPT-NeoX",
}  # fmt: skip
CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel")  # of the classes in config.json
RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}  # layer types of transformers
RECURRENT_FAMILIES = {"rwkv", "xlstm"}  # whose configurations list no layer types
CODECS: dict[str, tuple[str, list[str]]] = {}


def build_manifest(folder: Path) -> dict[str, Any] | None:
    """Build the manifest of the model in `folder`; return None if it is no language model.

    Raises:
        UnsupportedModel: the model has an encoder, or layers whose state cannot be taken back.
        WeightsError: the configuration is malformed.
    """
    fields = read_json(folder / "config.json")
    check_fields(fields, {"architectures": (list[str], type(None))}, folder / "config.json")
    family, classes = str(fields.get("model_type")), fields.get("architectures") or []
    if is_encoder_decoder(family, classes):
        raise UnsupportedModel(
            f"{folder} is a {family!r}, which has an encoder beside its decoder, and polydraft drafts for decoders "
            f"alone; use one of {', '.join(FAMILY_MARKERS)}."
        )
    if not is_causal(family, classes):
        return None
    config = read_pretrained("configuration", AutoConfig, folder)
    if family in RECURRENT_FAMILIES or RECURRENT_LAYERS.intersection(getattr(config, "layer_types", None) or ()):
        raise UnsupportedModel(
            f"{folder} is a {family!r}, which has recurrent layers, whose states cannot be taken back where a draft is "
            f"rejected; use one of {', '.join(FAMILY_MARKERS)}."
        )
    check_generation_config(folder)
    return {
        "format": 1, "modality": "vlm", "inputs": "text", "family": family, "drafters": {},
        "defaults": {"method": "auto"} | sampling_defaults(read_json(folder / "generation_config.json")),
        "summary": f"{FAMILY_MARKERS.get(family, family)}: answers in text, without pictures",
    }  # fmt: skip


def is_causal(family: str, classes: list[str]) -> bool:
    """Return whether transformers has a causal language model of this `model_type`, and the weights are one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and any(name.endswith(CAUSAL_ENDINGS) for name in classes)


def is_encoder_decoder(family: str, classes: list[str]) -> bool:
    """Return whether a model of this `model_type` generates text with an encoder beside its decoder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(family) in classes
