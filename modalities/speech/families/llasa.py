"""Llasa (HKUSTAudio/Llasa-1B, 3B, 8B; CC-BY-NC-4.0): a Llama that clones voices, X-Codec-2 at 16 kHz.

A prompt is a chat in the tokenizer's template: the user asks to convert the texts of reference and sentence, and the
assistant's answer begins with the reference's codes; after the model card's example of synthesis with a prompt.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from polydraft.modalities.speech.families.cloning import CloningFamily
from polydraft.modalities.speech.family import FamilyInputs, Voice
from polydraft.modalities.weights import read_weights

OPEN, CLOSE = "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>"
CHAT = [
    {"role": "user", "content": f"Convert the text to speech:{OPEN}{CLOSE}"},
    {"role": "assistant", "content": "<|SPEECH_GENERATION_START|>"},
]
DATE = "26 Jul 2024"  # fixed date for Llama's chat template, so that output does not change from day to day


class Llasa(CloningFamily):
    """Family of folders in the form of HKUSTAudio/Llasa."""

    code_token: ClassVar[str] = "<|s_{}|>"
    end_tokens: ClassVar[tuple[str]] = ("<|SPEECH_GENERATION_END|>",)

    def __init__(self, inputs: FamilyInputs) -> None:
        from transformers.models.xcodec2 import Xcodec2Model

        super().__init__(inputs, Xcodec2Model)

    @cached_property
    def chat_ids(self) -> tuple[list[int], list[int]]:
        """Return the token ids before and after the text."""
        chat: str = read_weights(
            "chat template", self.inputs.card.target,
            lambda: self.tokenizer.apply_chat_template(
                CHAT, tokenize=False, continue_final_message=True, date_string=DATE
            ),
        )  # fmt: skip
        before, _, after = chat.partition(CLOSE)
        return self.encode(before), self.encode(CLOSE + after)

    def encode_prompt(self, sentence: str, voice: Voice) -> list[int]:
        before, after = self.chat_ids
        return [
            *before,
            *self.encode_text(" ".join(filter(None, (voice.text, sentence)))),
            *after,
            *self.reference_ids(voice),
        ]
