"""The language model of CosyVoice 2 as a plain Qwen2 (yuekai/cosyvoice2_llm, Apache-2.0): 25 speech tokens a second.

A prompt is `<|sos|>text<|task_id|>`, after pretrained_to_huggingface.py of CosyVoice's grpo example; speech has from 2
to 20 codes a text token, after `inference` of CosyVoice's cosyvoice/llm/llm.py (min_token_text_ratio and
max_token_text_ratio). Flow and vocoder, which turn the tokens into audio of a voice, are not part
of this package, so results have tokens only.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from polydraft.modalities.codebook import expand_codebook
from polydraft.modalities.speech.families.tokens import TokenFamily
from polydraft.modalities.speech.family import LONGEST_SENTENCE, FamilyInputs, Voice
from polydraft.modalities.speech.text.splitting import LONGEST_PART

LEVELS, AXES = 3, 8  # of the finite scalar quantiser
FEWEST, MOST = 2, 20  # codes per text token


class CosyVoice2(TokenFamily):
    """Family of folders in the form of yuekai/cosyvoice2_llm."""

    code_token: ClassVar[str] = "<|s_{}|>"
    end_tokens: ClassVar[tuple[str, str, str]] = ("<|eos1|>", "<|eos2|>", "<|eos3|>")
    sample_rate: int = 24_000
    rate: float = 25.0
    num_codes = LEVELS**AXES
    no_audio_reason = (
        "CosyVoice 2 comes here as its language model only, without the flow and vocoder that make sound; "
        "take the speech tokens from result.tokens."
    )

    def __init__(self, inputs: FamilyInputs) -> None:
        super().__init__(inputs)
        self.locate_codes()
        self.context: int = LONGEST_PART + 16 + self.codes_in_seconds(LONGEST_SENTENCE)

    @cached_property
    def codebook(self) -> Tensor:
        """Return the grid point of every code, each axis in -1..1."""
        steps = torch.arange(self.num_codes)[:, None] // LEVELS ** torch.arange(AXES) % LEVELS
        return expand_codebook(self.inputs.vocab, self.first_code_id, steps.float() - 1).to(self.inputs.device)

    def encode_prompt(self, sentence: str, voice: Voice) -> list[int]:
        return [self.token_id("<|sos|>"), *self.encode_text(sentence), self.token_id("<|task_id|>")]

    def min_codes(self, sentence: str) -> int:
        return FEWEST * len(self.encode_text(sentence))

    def max_codes(self, sentence: str) -> int:
        return min(MOST * len(self.encode_text(sentence)), super().max_codes(sentence))

    def open_audio_stream(self, voice: Voice, speed: float) -> SilentStream:
        return SilentStream()


class SilentStream:
    """Audio stream that is always empty."""

    look_ahead = 0

    def push(self, codes: Tensor) -> Tensor:
        return torch.empty(0)

    def finish(self) -> Tensor:
        return torch.empty(0)
