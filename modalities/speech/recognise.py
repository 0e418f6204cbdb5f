"""Which family a speech model in Hugging Face form is of, told by its tokenizer, and the card it lacks.

Defaults are those its makers publish; methods are drafter-free. Families whose sound is continuous and follows from its
first noise alone (`DETERMINISTIC`) are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.core.errors import UnsupportedModel
from polydraft.core.folders.json_files import is_present, read_text
from polydraft.modalities.hub import said

MARKS = {  # tokens that no other family has together
    "orpheus": ("<custom_token_2>", "<custom_token_10>"),
    "neutts": ("<|speech_0|>", "<|TEXT_PROMPT_START|>"),
    "llasa": ("<|s_0|>", "<|TEXT_UNDERSTANDING_START|>"),
    "cosyvoice2": ("<|s_0|>", "<|task_id|>"),
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "orpheus": {"temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.1},
    "neutts": {"temperature": 1.0, "top_k": 50, "min_tokens": 50},
    "llasa": {"temperature": 0.8, "top_k": 50},  # 50 is what `generate` adds where nothing is said
    "cosyvoice2": {
        "temperature": 1.0, "top_k": 25, "top_p": 0.8, "repetition_aware": {"window": 10, "tau": 0.1},
    },
}  # fmt: skip
VOICES = {"orpheus": ["tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"]}
FITTED: dict[str, dict[str, Any]] = {  # frames of seven: two are drafted, and look like those before them
    "orpheus": {"pld": {"reach": 14}} | {name: {"window": 14, "init": "above"} for name in ("jacobi", "sjd")},
}
CODECS: dict[str, tuple[str, list[str]]] = {  # repository, and files beside safetensors and JSON
    "orpheus": ("hubertsiuzdak/snac_24khz", ["pytorch_model.bin"]),
    "neutts": ("neuphonic/neucodec", []),
    "llasa": ("HKUSTAudio/xcodec2-hf", []),
}
SUMMARIES = {
    "orpheus": "Orpheus: eight English voices at 24 kHz",
    "neutts": "NeuTTS Air: clones a voice, 24 kHz",
    "llasa": "Llasa: clones a voice, 16 kHz; not for commercial use (CC-BY-NC-4.0)",
    "cosyvoice2": "the language model of CosyVoice 2: speech tokens, no sound",
}


DETERMINISTIC = {"vibevoice", "pocket_tts", "gradium_phonon_tts"}  # what `model_type` says


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is of no family here.

    Raises UnsupportedModel for one that nothing drafted could be verified exactly for.
    """
    if (named := said(folder / "config.json").get("model_type")) in DETERMINISTIC:
        raise UnsupportedModel(
            f"{folder} is a {named!r}, whose head makes a frame of its first noise without drawing again, so that a "
            f"draft is never exactly the frame it stands for; use one of {', '.join(MARKS)}."
        )
    tokenizer = folder / "tokenizer.json"
    if not is_present(tokenizer):
        return None
    text = read_text(tokenizer)
    for family, marks in MARKS.items():
        if all(f'"{mark}"' in text for mark in marks):
            return {
                "format": 1, "modality": "speech", "family": family, "summary": SUMMARIES[family], "drafters": {},
                "voices": VOICES.get(family, []),
                "defaults": {"method": "pld"} | DEFAULTS[family], "fitted": FITTED.get(family, {}),
            }  # fmt: skip
    return None
