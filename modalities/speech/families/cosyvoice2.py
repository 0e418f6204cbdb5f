"""The language model of CosyVoice 2 as a plain Qwen2 (yuekai/cosyvoice2_llm, Apache-2.0): 25 speech tokens a second.

A prompt is `<|sos|>text<|task_id|>`, after pretrained_to_huggingface.py of CosyVoice's grpo example; speech has from 2
to 20 codes a text token, after `inference` of CosyVoice's cosyvoice/llm/llm.py (min_token_text_ratio and
max_token_text_ratio). Flow and vocoder, which make sound of the tokens and give it a voice, are in no library used
here: tokens are what comes back.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from polydraft.modalities.codes import coded
from polydraft.modalities.speech.families.tokens import TokenFamily
from polydraft.modalities.speech.family import LONGEST_SENTENCE, Parts, Voice
from polydraft.modalities.speech.text.splitting import LONGEST_PART

LEVELS, AXES = 3, 8  # of the finite scalar quantiser
FEWEST, MOST = 2, 20  # codes a text token


class CosyVoice2(TokenFamily):
    """A folder of yuekai/cosyvoice2_llm form."""

    code, ends = "<|s_{}|>", ("<|eos1|>", "<|eos2|>", "<|eos3|>")
    sample_rate, rate = 24_000, 25.0
    size = LEVELS**AXES
    silent = (
        "CosyVoice 2 comes here as its language model only, without the flow and vocoder that make sound; "
        "take the speech tokens from result.tokens."
    )

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.number()
        self.context = LONGEST_PART + 16 + self.span(LONGEST_SENTENCE)

    @cached_property
    def vectors(self) -> Tensor:
        """The grid's points, each axis in -1..1."""
        steps = torch.arange(self.size)[:, None] // LEVELS ** torch.arange(AXES) % LEVELS
        return coded(self.parts.vocab, self.first, steps.float() - 1).to(self.parts.device)

    def prompt(self, sentence: str, voice: Voice) -> list[int]:
        return [self.id("<|sos|>"), *self.text(sentence), self.id("<|task_id|>")]

    def least(self, sentence: str) -> int:
        return FEWEST * len(self.text(sentence))

    def most(self, sentence: str) -> int:
        return min(MOST * len(self.text(sentence)), super().most(sentence))

    def stream(self, voice: Voice, speed: float) -> Silence:
        return Silence()


class Silence:
    """No sound, whatever the codes."""

    look_ahead = 0

    def push(self, codes: Tensor) -> Tensor:
        return torch.empty(0)

    def finish(self) -> Tensor:
        return torch.empty(0)
