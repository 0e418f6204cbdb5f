"""Tiny language models in Hugging Face form: a real tokenizer, random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from polydraft.modalities.loading import load
from polydraft.modalities.text.pipeline import TextPipeline

from ...decoding import one_thread as one_thread
from ..vlm.conftest import TEXT, write_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
QUESTIONS = ["Why is the sky blue?", "How many? Two, two, two, two?", "Say it again, and again."]
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, {}),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, {}),
    "gemma3_text": (
        hf.Gemma3ForCausalLM, hf.Gemma3TextConfig,
        {
            "sliding_window": 12, "query_pre_attn_scalar": 16,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, {}),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, {}),
}  # fmt: skip


def write_model(folder: Path, family: str, template: str | None = TEMPLATE, bos: str | None = None) -> None:
    """Write the folder of a tiny language model."""
    model_class, config_class, more = MODELS[family]
    tokenizer = write_tokenizer(folder, [], bos)
    torch.manual_seed(3)
    model = model_class(config_class(vocab_size=len(tokenizer), **TEXT | more))
    model.generation_config = hf.GenerationConfig(eos_token_id=None, pad_token_id=0)
    model.save_pretrained(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes the folder of a family once and returns it."""
    made: dict[str, Path] = {}

    def folder(family: str = "llama") -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            write_model(made[family], family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def pipe(folder_of: Callable[[str], Path]) -> TextPipeline:
    """Return the pipeline of a tiny Llama."""
    loaded: TextPipeline = load(folder_of("llama"), dtype="float32")
    return loaded
