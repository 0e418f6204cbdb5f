"""A model of transformers as a GGUF file, so that other engines decode with the same weights.

if not (reason := refusal(model)):
    export(model, Path("model.gguf"), "f16")
tokens_of("t12t7")      # [12, 7]

Only decoders like Llama are written. The file has no tokenizer: token i is spelled "t" and its number, so texts name
their ids, and prompts are given as ids. Engines have to be told not to end, because the format wants an end token: it
is the last id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.checks.extras import optional_import
from polydraft.core.errors import UnsupportedModel

PACKAGE = "gguf"
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ARCHITECTURES = ("llama", "mistral")  # that GGUF calls llama
LETTER = "t"  # that spellings of tokens begin with
NORMAL, CONTROL = 1, 3  # types of tokens


def refusal(model: PreTrainedModel) -> str:
    """Return why a model cannot be written; empty if it can."""
    config: Any = model.config
    if config.model_type not in ARCHITECTURES:
        return f"layers of {config.model_type} are not written to GGUF files, only those of Llama"
    if config.rope_parameters["rope_type"] != "default" or config.hidden_act != "silu":
        return "other position embeddings and activations than Llama's are not written to GGUF files"
    if any(getattr(config, name, None) for name in ("attention_bias", "mlp_bias", "sliding_window")):
        return "biases and sliding windows are not written to GGUF files"
    return ""


def export(model: PreTrainedModel, file: Path, file_type: str) -> None:
    """Write the weights of a model to a GGUF file.

    Args:
        model (PreTrainedModel): decoder like Llama; its weights are read one by one, so no second copy is held.
        file (Path): where to.
        file_type (str): "f32", "f16" or "bf16", type of the matrices; norms are float32.

    Raises:
        UnsupportedModel: if the decoder is not like Llama.
        MissingPackage: if the package gguf is not installed.
    """
    if reason := refusal(model):
        raise UnsupportedModel(f"{file.name} cannot be written: {reason}; use a decoder like Llama.")
    with optional_import("writing GGUF files"):
        import gguf
    writer = gguf.GGUFWriter(file, "llama")
    write_settings(writer, model.config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    kinds = {name: "f32" if weight.dim() == 1 else file_type for name, weight in weights(model)}
    for name, weight in weights(model):
        stored, kind = names.get_name(name, try_suffixes=(".weight",)), kinds[name]
        size = weight.numel() * DTYPES[kind].itemsize
        raw_type = gguf.GGMLQuantizationType[kind.upper()]
        writer.add_tensor_info(stored, tuple(weight.shape), np.dtype(np.float32), size, raw_type)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if file_type == "f32" else f"MOSTLY_{file_type.upper()}"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, weight in weights(model):
        ordered = interleaved(name, weight, model.config).to("cpu", DTYPES[kinds[name]]).contiguous()
        writer.write_tensor_data(ordered.view(torch.uint8).numpy())
    writer.close()


def write_settings(writer: Any, config: Any) -> None:
    """Write sizes and a vocabulary without text, whose last id ends texts."""
    vocab, head_dim = config.vocab_size, config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"{LETTER}{token}" for token in range(vocab)])
    writer.add_token_types([NORMAL] * (vocab - 1) + [CONTROL])  # OpenVINO's tokenizer fails without a control token
    writer.add_token_merges([f"{LETTER} 0"])  # the format wants one
    writer.add_bos_token_id(vocab - 1)
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(False)


def weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield names and weights, without a head that is the embeddings."""
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name, weight in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            yield name, weight


def interleaved(name: str, weight: Tensor, config: Any) -> Tensor:
    """Return a weight with the rows of queries and keys in the order of GGUF's Llama.

    transformers rotates number i of a head of width D together with number i + D/2, GGUF's Llama 2i with 2i + 1.
    """
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if f".{part}." in name:
            return weight.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
    return weight


def tokens_of(text: str) -> list[int]:
    """Return the ids that a generated text spells."""
    return [int(number) for number in text.split(LETTER)[1:]]
