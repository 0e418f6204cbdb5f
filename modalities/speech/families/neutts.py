"""NeuTTS Air (neuphonic/neutts-air, Apache-2.0): a Qwen2 that clones voices, phonemes in, NeuCodec at 24 kHz.

A prompt is `user: Convert the text to speech:<text>phonemes of reference and sentence</text>\\nassistant:<speech>` and
the reference's codes, after neutts.py, `_apply_chat_template`. Phonemes are espeak's, by the package `phonemizer`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.speech.families.cloning import CloningFamily
from polydraft.modalities.speech.family import FamilyInputs, Voice

BEFORE = "user: Convert the text to speech:<|TEXT_PROMPT_START|>"
AFTER = "<|TEXT_PROMPT_END|>\nassistant:<|SPEECH_GENERATION_START|>"


class NeuTTS(CloningFamily):
    """Family of folders in the form of neuphonic/neutts-air."""

    code_token: ClassVar[str] = "<|speech_{}|>"
    end_tokens: ClassVar[tuple[str]] = ("<|SPEECH_GENERATION_END|>",)

    def __init__(self, inputs: FamilyInputs) -> None:
        from transformers.models.neucodec import NeuCodecModel

        super().__init__(inputs, NeuCodecModel)

    def encode_prompt(self, sentence: str, voice: Voice) -> list[int]:
        text_ids = self.encode_text(" ".join(filter(None, (phonemes(voice.text), phonemes(sentence)))))
        return [*self.encode(BEFORE), *text_ids, *self.encode(AFTER), *self.reference_ids(voice)]


@lru_cache(maxsize=256)
def phonemes(text: str) -> str:
    """Return espeak's American English phonemes of `text` in IPA, with stress and punctuation."""
    return " ".join(espeak().phonemize([text])[0].split()) if text else ""


@lru_cache(maxsize=1)
def espeak() -> Any:
    """Return the espeak backend; raises InvalidArgument if it is not installed."""
    try:
        from phonemizer.backend import EspeakBackend

        return EspeakBackend("en-us", preserve_punctuation=True, with_stress=True)
    except (ImportError, RuntimeError) as error:  # RuntimeError: the package is installed, but espeak is not
        raise system_error(error, "espeak cannot be started") or InvalidArgument(
            "this model reads phonemes; install espeak-ng and `pip install phonemizer` to convert text to phonemes."
        ) from error
