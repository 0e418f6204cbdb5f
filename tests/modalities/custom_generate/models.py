"""Small random models of many families in float64, in which equal tokens mean equal computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCAB, PAD, EOS = 97, 0, [5, 7]
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
NEOX = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=6)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=8)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=6)),
    "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**SIZES, logits_scaling=3.0)),
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**SIZES, logit_scale=0.3)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**SIZES)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SIZES)),
    "stablelm": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**SIZES)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**NEOX)),
    "smollm3": lambda: hf.SmolLM3ForCausalLM(hf.SmolLM3Config(**SIZES)),
}  # fmt: skip


def build(family: str, seed: int = 0) -> Any:
    """Return a model whose weights are large enough that its texts vary."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = EOS, PAD
    return model


def prompts(rows: int, length: int = 9, seed: int = 1) -> dict[str, torch.Tensor]:
    """Return left-padded prompts of several lengths, with their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(8, VOCAB, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : 2 * row % length] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}
