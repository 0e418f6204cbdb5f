"""Writer of Whisper's weights in CTranslate2's form."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import WhisperForConditionalGeneration

TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
TIED = {"decoder/projection/weight": "decoder/embeddings/weight"}


def stored_layer(state: dict[str, torch.Tensor], name: str, source: str, attentions: dict[str, str]) -> Iterator[Any]:
    """Return a layer as CTranslate2 stores it: fused projections, and zeros for the missing bias of keys."""

    def concatenate(block: str, letters: str, kind: str) -> np.ndarray:
        width = state[f"{name}.{block}.q_proj.weight"].shape[0]
        parts = [state.get(f"{name}.{block}.{letter}_proj.{kind}", torch.zeros(width)) for letter in letters]
        return torch.cat(parts).numpy()

    for block, stored in attentions.items():
        first = ("qkv",) if block == "self_attn" else ("q", "kv")
        for index, letters in enumerate((*first, None)):
            for kind in ("weight", "bias"):
                made = (
                    state[f"{name}.{block}.out_proj.{kind}"].numpy()
                    if letters is None
                    else concatenate(block, letters, kind)
                )
                yield f"{source}/{stored}/linear_{index}/{kind}", made
        yield from stored_norm(state, f"{name}.{block}_layer_norm", f"{source}/{stored}/layer_norm")
    for index, block in enumerate(("fc1", "fc2")):
        for kind in ("weight", "bias"):
            yield f"{source}/ffn/linear_{index}/{kind}", state[f"{name}.{block}.{kind}"].numpy()
    yield from stored_norm(state, f"{name}.final_layer_norm", f"{source}/ffn/layer_norm")


def stored_norm(state: dict[str, torch.Tensor], name: str, source: str) -> Iterator[Any]:
    for kind, stored in (("weight", "gamma"), ("bias", "beta")):
        yield f"{source}/{stored}", state[f"{name}.{kind}"].numpy()


def ct2_arrays(model: WhisperForConditionalGeneration, dtype: Any = np.float32) -> dict[str, Any]:
    """Return the arrays that CTranslate2 would store of `model`, in order of their names; numbers of `dtype`."""
    config, state, arrays = model.config, model.state_dict(), {}
    attentions = {"self_attn": "self_attention", "encoder_attn": "attention"}
    for side, blocks in (("encoder", ("self_attn",)), ("decoder", tuple(attentions))):
        for index in range(config.encoder_layers if side == "encoder" else config.decoder_layers):
            layer_attentions = {block: attentions[block] for block in blocks}
            arrays |= stored_layer(state, f"model.{side}.layers.{index}", f"{side}/layer_{index}", layer_attentions)
        arrays |= stored_norm(state, f"model.{side}.layer_norm", f"{side}/layer_norm")
        arrays[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"].numpy()
    for block in ("conv1", "conv2"):
        arrays |= {
            f"encoder/{block}/{kind}": state[f"model.encoder.{block}.{kind}"].numpy() for kind in ("weight", "bias")
        }
    arrays["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"].numpy()

    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    for side in ("encoder", "decoder"):
        arrays[f"{side}/num_heads"] = np.int16(getattr(config, f"{side}_attention_heads"))
    flags = {"activation": 3, "pre_norm": 1, "alibi": 0, "scale_embeddings": 0}
    return dict(sorted((arrays | {f"decoder/{name}": np.int8(value) for name, value in flags.items()}).items()))


def ct2_file(
    arrays: dict[str, Any], aliases: dict[str, str] = TIED, version: int = 6, model_type: str = "WhisperSpec"
) -> bytes:
    """Return the bytes of a model.bin with these arrays, and further names of some."""

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name.encode()) + 1) + name.encode() + b"\0"

    parts = [struct.pack("<I", version), text(model_type), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        parts += [text(name), struct.pack("<B", array.ndim), struct.pack(f"<{array.ndim}I", *array.shape)]
        parts += [struct.pack("<BI", TYPES[array.dtype.name], array.nbytes), array.tobytes()]
    parts += [struct.pack("<I", len(aliases)), *(text(alias) + text(name) for alias, name in aliases.items())]
    return b"".join(parts)


def model_bin(model: WhisperForConditionalGeneration, dtype: Any = np.float32) -> bytes:
    """Return the file that CTranslate2 would write of `model`, with numbers of `dtype`."""
    return ct2_file(ct2_arrays(model, dtype))
