"""Family cards of published speech models: facts about a family that are needed before its weights are loaded.

This module is light: it does not load torch, so that listing models and completing names stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SpeechFamilyCard:
    """Description of a speech model family, with the sampling parameters that its authors publish."""

    name: str  # `family` in manifests
    implementation: str  # "module:Class" in `families`
    summary: str
    marker_tokens: tuple[str, ...]  # tokens that the tokenizer of no other family has together
    defaults: dict[str, Any]  # sampling parameters
    voices: list[str] = field(default_factory=list)
    tuned_params: dict[str, Any] = field(default_factory=dict)  # parameters of methods, `fitted` in manifests
    codec: tuple[str, list[str]] | None = None  # repository of the codec, and its files beside safetensors and JSON

    def build_manifest(self) -> dict[str, Any]:
        """Build the manifest of a model of this family; its default method needs no drafter."""
        return {
            "format": 1, "modality": "speech", "family": self.name, "summary": self.summary, "drafters": {},
            "voices": list(self.voices), "defaults": {"method": "auto"} | self.defaults, "fitted": self.tuned_params,
        }  # fmt: skip


CARDS = (
    SpeechFamilyCard(
        name="orpheus",
        implementation="orpheus:Orpheus",
        summary="Orpheus: eight English voices at 24 kHz",
        marker_tokens=("<custom_token_2>", "<custom_token_10>"),
        defaults={"temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.1},
        voices=["tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"],
        # A frame has seven codes: two frames are drafted at a time, each code from the same slot of the frame before.
        tuned_params={"pld": {"reach": 14}} | {name: {"window": 14, "init": "above"} for name in ("jacobi", "sjd")},
        codec=("hubertsiuzdak/snac_24khz", ["pytorch_model.bin"]),
    ),
    SpeechFamilyCard(
        name="neutts",
        implementation="neutts:NeuTTS",
        summary="NeuTTS Air: clones a voice, 24 kHz",
        marker_tokens=("<|speech_0|>", "<|TEXT_PROMPT_START|>"),
        defaults={"temperature": 1.0, "top_k": 50, "min_tokens": 50},
        codec=("neuphonic/neucodec", []),
    ),
    SpeechFamilyCard(
        name="llasa",
        implementation="llasa:Llasa",
        summary="Llasa: clones a voice, 16 kHz; not for commercial use (CC-BY-NC-4.0)",
        marker_tokens=("<|s_0|>", "<|TEXT_UNDERSTANDING_START|>"),
        defaults={"temperature": 0.8, "top_k": 50},  # top-k is the default of transformers' `generate`
        codec=("HKUSTAudio/xcodec2-hf", []),
    ),
    SpeechFamilyCard(
        name="cosyvoice2",
        implementation="cosyvoice2:CosyVoice2",
        summary="the language model of CosyVoice 2: speech tokens, no sound",
        marker_tokens=("<|s_0|>", "<|task_id|>"),
        defaults={"temperature": 1.0, "top_k": 25, "top_p": 0.8, "repetition_aware": {"window": 10, "tau": 0.1}},
    ),
)
