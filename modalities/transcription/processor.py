"""Processors of models with spliced sound, which make features of samples and put placeholders into prompts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers.models.auto.auto_mappings import PROCESSOR_MAPPING_NAMES

from polydraft.core.checks.extras import require
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.readers import read_pretrained

FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
NONE = type(None)
COUNT, TOKEN = (NumberRange(int, 1), NONE), (str, dict, NONE)
FIELDS: dict[str, Any] = {  # of any of these files, those that processors have in common
    "processor_class": (str, NONE), "feature_extractor_type": (str, NONE), "tokenizer_class": (str, NONE),
    "sampling_rate": (NumberRange(int, 8000, 192_000), NONE), "chunk_length": (NumberRange(int, 1, 600), NONE),
    "feature_size": COUNT, "hop_length": COUNT, "n_fft": COUNT, "win_length": COUNT, "n_mels": COUNT,
    "projector_window_size": COUNT, "projector_downsample_rate": COUNT, "n_window": COUNT,
    "min_length": (NumberRange(int, 0), NONE), "dither": (NumberRange(float, 0, 0), NONE),
    "padding_value": (NumberRange(float, -math.inf), NONE), "audio_token": TOKEN, "bos_token": TOKEN,
    "eos_token": TOKEN, "pad_token": TOKEN, "unk_token": TOKEN, "padding_side": (str, NONE),
    "extra_special_tokens": (dict, list, NONE), "added_tokens_decoder": (dict, NONE),
    "chat_template": (str, dict, list, NONE), "default_transcription_prompt": (str, NONE), "max_audio_len": COUNT,
}  # fmt: skip
WITH_TORCHAUDIO = ("granite_speech", "granite_speech_plus")  # families whose features that package computes


def load_processor(folder: Path, family: str) -> Any:
    """Load the processor of a model.

    Args:
        folder (Path): The model's folder.
        family (str): Its `model_type`.

    Raises:
        WeightsError: A file is missing or malformed.
        MissingPackage: Its features need a package that is not installed.
    """
    import transformers

    for file in FILES:
        check_fields(read_json(folder / file), FIELDS, folder / file)
    if family in WITH_TORCHAUDIO:
        require("torchaudio", f"the sound of {family}")
    return read_pretrained("processor", getattr(transformers, PROCESSOR_MAPPING_NAMES[family]), folder)
