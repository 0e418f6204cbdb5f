"""Whisper's weights in CTranslate2's form, read into transformers' names; tensors only, nothing is executed.

    stored = read_variables(Path("model.bin"))
    model = WhisperForConditionalGeneration(whisper_config(stored, end=50256))
    model.load_state_dict(whisper_state_dict(stored))

The format (model specification version 6 of CTranslate2) is a list of named arrays. Queries, keys and values are stored
as one matrix, in this order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import WeightsError

VERSION = 6
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
Variables = dict[str, NDArray[Any]]


class _Reader:
    """A cursor over the bytes of a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def number(self, form: str) -> int:
        """Return the next value of a struct format."""
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        """Return the next string: its size, its bytes and a zero."""
        size = self.number("<H")
        self.position += size
        return self.data[self.position - size : self.position - 1].decode()

    def array(self) -> NDArray[Any]:
        """Return the next array: its shape, type, size in bytes, and numbers."""
        shape = [self.number("<I") for _ in range(self.number("<B"))]
        dtype, size = np.dtype(DTYPES[self.number("<B")]), self.number("<I")
        found = np.frombuffer(self.data, dtype, size // dtype.itemsize, self.position)
        self.position += size
        return found.reshape(shape)


def read_variables(path: Path) -> Variables:
    """Return the arrays of a `model.bin` by name.

    Raises:
        WeightsError: where the file is missing or is none of this version.
    """
    try:
        reader = _Reader(path.read_bytes())
        version, _, _ = reader.number("<I"), reader.text(), reader.number("<I")  # version, model type, its revision
        if version != VERSION:
            raise WeightsError(f"{path} is of version {version} of CTranslate2's format; only {VERSION} can be read.")
        return {reader.text(): reader.array() for _ in range(reader.number("<I"))}
    except (OSError, struct.error, ValueError, KeyError) as error:
        raise system_error(error, f"{path} cannot be read") or WeightsError(
            f"{path} cannot be read as CTranslate2's weights; install its package again."
        ) from error


def whisper_config(stored: Variables, end: int) -> Any:
    """Return transformers' configuration of the Whisper whose arrays these are.

    Args:
        stored (Variables): as `read_variables` returns them.
        end (int): the id that ends a text; the one that begins a transcript follows it.
    """
    from transformers import WhisperConfig

    vocab, width = stored["decoder/embeddings/weight"].shape
    heads = int(stored["encoder/num_heads"])
    return WhisperConfig(
        vocab_size=vocab, d_model=width, encoder_layers=num_layers(stored, "encoder"),
        decoder_layers=num_layers(stored, "decoder"), encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, num_mel_bins=stored["encoder/conv1/weight"].shape[1],
        max_source_positions=len(stored["encoder/position_encodings/encodings"]),
        max_target_positions=len(stored["decoder/position_encodings/encodings"]),
        pad_token_id=end, bos_token_id=end, eos_token_id=end, decoder_start_token_id=end + 1,
    )  # fmt: skip


def num_layers(stored: Variables, side: str) -> int:
    """Return how many layers the encoder or decoder has."""
    norm = "self_attention/layer_norm/gamma"
    return sum(name.startswith(f"{side}/layer_") and name.endswith(norm) for name in stored)


def whisper_state_dict(stored: Variables) -> dict[str, Tensor]:
    """Return the arrays under transformers' names, in float32."""
    renamed = _Renamed(stored)
    for side in ("encoder", "decoder"):
        for index in range(num_layers(stored, side)):
            renamed.layer(f"{side}/layer_{index}", f"model.{side}.layers.{index}", is_decoder=side == "decoder")
        renamed.norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        renamed.put(f"model.{side}.embed_positions.weight", stored[f"{side}/position_encodings/encodings"])
    for name in ("conv1", "conv2"):
        renamed.linear(f"encoder/{name}", f"model.encoder.{name}")
    for name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
        renamed.put(name, stored["decoder/embeddings/weight"])
    return renamed.tensors


class _Renamed:
    """Collects tensors under transformers' names."""

    def __init__(self, stored: Variables) -> None:
        self.stored = stored
        self.tensors: dict[str, Tensor] = {}

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Store a copy of `array` under `name`."""
        self.tensors[name] = torch.tensor(np.array(array, dtype=np.float32))

    def norm(self, source: str, name: str) -> None:
        """Rename a layer norm."""
        self.put(f"{name}.weight", self.stored[f"{source}/gamma"])
        self.put(f"{name}.bias", self.stored[f"{source}/beta"])

    def linear(self, source: str, name: str) -> None:
        """Rename a linear or convolution layer."""
        self.put(f"{name}.weight", self.stored[f"{source}/weight"])
        self.put(f"{name}.bias", self.stored[f"{source}/bias"])

    def fused(self, source: str, names: Sequence[str]) -> None:
        """Split one matrix into projections; Whisper's keys have no bias."""
        weights, biases = (np.split(self.stored[f"{source}/{kind}"], len(names)) for kind in ("weight", "bias"))
        for name, weight, bias in zip(names, weights, biases, strict=True):
            self.put(f"{name}.weight", weight)
            if not name.endswith("k_proj"):
                self.put(f"{name}.bias", bias)

    def layer(self, source: str, name: str, *, is_decoder: bool) -> None:
        """Rename one transformer layer."""
        self.norm(f"{source}/self_attention/layer_norm", f"{name}.self_attn_layer_norm")
        self.fused(f"{source}/self_attention/linear_0", [f"{name}.self_attn.{letter}_proj" for letter in "qkv"])
        self.linear(f"{source}/self_attention/linear_1", f"{name}.self_attn.out_proj")
        if is_decoder:
            self.norm(f"{source}/attention/layer_norm", f"{name}.encoder_attn_layer_norm")
            self.linear(f"{source}/attention/linear_0", f"{name}.encoder_attn.q_proj")
            self.fused(f"{source}/attention/linear_1", [f"{name}.encoder_attn.{letter}_proj" for letter in "kv"])
            self.linear(f"{source}/attention/linear_2", f"{name}.encoder_attn.out_proj")
        self.norm(f"{source}/ffn/layer_norm", f"{name}.final_layer_norm")
        self.linear(f"{source}/ffn/linear_0", f"{name}.fc1")
        self.linear(f"{source}/ffn/linear_1", f"{name}.fc2")
