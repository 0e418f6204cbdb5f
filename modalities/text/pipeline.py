"""Language models: questions without images, and answers.

    pipe = load("HuggingFaceTB/SmolLM2-135M-Instruct")
    print(pipe(question="Why is the sky blue?").text)

Everything else is as for vision-language models (`modalities.vlm.pipeline`).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from polydraft.core.folders.readers import read_pretrained
from polydraft.core.model.decoder import attention_window_fns
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.text.encoding import TextEncoder, TextProcessor
from polydraft.modalities.vlm.conversation import Conversation, build_conversations
from polydraft.modalities.vlm.pipeline import ChatPipeline
from polydraft.modalities.vocab_mapping import load_tokenizer
from polydraft.modalities.weights import read_weights


class TextPipeline(ChatPipeline):
    """Language model with its weights and its tokenizer."""

    encoder: TextEncoder

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        """Load the model, after its tokenizer."""
        attention_window_fns(read_pretrained("configuration", AutoConfig, folder))  # refuses unknown layer types
        self.processor: Any = TextProcessor(read_weights("tokenizer", folder, lambda: load_tokenizer(folder)))
        return super().load_target_model(folder)

    def build_encoder(self) -> TextEncoder:
        return TextEncoder(self.processor, self.card.name, self.context_len)

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the `[1, V]` bool mask of allowed ids, which are all."""
        return torch.ones(1, self.target_model.config.vocab_size, dtype=torch.bool, device=self.device)

    def sample_prompts(self) -> list[PromptInputs]:
        return self.build_prompts(build_conversations(None, "Why is the sky blue?", None), [0], 256)

    def notes(self, conversations: list[Conversation]) -> tuple[str, ...]:
        if not self.encoder.continues_text:
            return ()
        return (f"{self.card.name} has no chat template, so it continues the text of the question",)
