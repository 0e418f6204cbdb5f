"""Whisper's weights in CTranslate2's form, read into transformers' names; tensors only, nothing is executed.

    stored = read_variables(Path("model.bin"))          # or its parts, in order
    config, weights = whisper_of(stored, end=50256)     # tensors in the type they are stored in

The format (binary version 6 of CTranslate2) is a list of named arrays, then one of further names for some of them.
Queries, keys and values are stored as one matrix, in this order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import WeightsError
from polydraft.modalities.checkpoints import mismatched_tensors

VERSION = 6
MODEL_TYPE = "WhisperSpec"
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
MAX_RANK = 8
EMBEDDINGS, PROJECTION = "decoder/embeddings/weight", "decoder/projection/weight"
OUTPUT = "proj_out.weight"  # transformers' name of the projection, which is the embeddings
GELU = 3  # among CTranslate2's activations
FLAGS = {  # scalars that change what a model computes, with Whisper's values; a file need not have them
    "activation": GELU, "pre_norm": 1, "alibi": 0, "scale_embeddings": 0, "start_from_zero_embedding": 0,
}  # fmt: skip


class Variables(dict[str, NDArray[Any]]):
    """Arrays of a file by name; the error for one it lacks names the file.

    Args:
        source (str): the file, for errors.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def __missing__(self, name: str) -> NDArray[Any]:
        raise WeightsError(f"{self.source} holds no {name}, so it is no Whisper; give the model.bin of one.")


class _Reader:
    """A cursor over files that are read as one; no more is allocated than they hold."""

    def __init__(self, files: Sequence[BinaryIO], num_bytes: int) -> None:
        self.files, self.remaining = list(files), num_bytes

    def fill(self, buffer: memoryview) -> None:
        """Fill a buffer with the next bytes."""
        while buffer:
            if not self.files:
                raise ValueError("it is cut")
            count = self.files[0].readinto(buffer)  # type: ignore[attr-defined]
            buffer = buffer[count:]
            self.remaining -= count
            if not count:
                self.files.pop(0)

    def take(self, size: int) -> bytearray:
        """Return the next `size` bytes."""
        if size > self.remaining:
            raise ValueError("it is cut")
        data = bytearray(size)
        self.fill(memoryview(data))
        return data

    def number(self, form: str) -> int:
        """Return the next value of a struct format."""
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> str:
        """Return the next string: its size, its bytes and a zero."""
        data = self.take(self.number("<H"))
        if data[-1:] != b"\0":
            raise ValueError("a name has no end")
        return data[:-1].decode()

    def array(self) -> NDArray[Any]:
        """Return the next array: its shape, type, size in bytes, and numbers."""
        rank = self.number("<B")
        if rank > MAX_RANK:
            raise ValueError(f"an array of {rank} dimensions")
        shape = [self.number("<I") for _ in range(rank)]
        kind, size = self.number("<B"), self.number("<I")
        if kind not in DTYPES:
            raise ValueError(f"numbers of the unknown type {kind}")
        dtype = np.dtype(DTYPES[kind])
        if size != math.prod(shape) * dtype.itemsize:
            raise ValueError("an array's size contradicts its shape")
        return np.frombuffer(self.take(size), dtype).reshape(shape)

    def variables(self, source: str) -> Variables:
        """Return all arrays by name, and by their further names; nothing may follow them."""
        version, model, _ = self.number("<I"), self.text(), self.number("<I")  # the last is the model's revision
        if version != VERSION or model != MODEL_TYPE:
            raise ValueError(f"version {version} of {model!r:.40}, where version {VERSION} of {MODEL_TYPE!r} is read")
        found = Variables(source)
        for _ in range(self.number("<I")):
            name = self.text()
            if name in found:
                raise ValueError(f"{name!r:.80} is there twice")
            found[name] = self.array()
        for _ in range(self.number("<I")):
            alias, name = self.text(), self.text()
            if alias in found or name not in found:
                raise ValueError(f"{alias!r:.80} cannot be another name of {name!r:.80}")
            found[alias] = found[name]
        if self.remaining:
            raise ValueError(f"{self.remaining} bytes too many")
        return found


def read_variables(*files: Path) -> Variables:
    """Return the arrays of a `model.bin` by name.

    Args:
        files (Path): the file, or its parts in order; they are read as one, without joining them in memory.

    Raises:
        WeightsError: a file is missing, cut, of another version, or no such file.
    """
    first = files[0]
    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(file.open("rb")) for file in files]
            return _Reader(opened, sum(file.stat().st_size for file in files)).variables(str(first))
    except (OSError, ValueError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{error!s:.160}"
        raise system_error(error, f"{first} cannot be read") or WeightsError(
            f"{first} cannot be read as CTranslate2's weights of Whisper ({reason}); download it again."
        ) from error


def whisper_of(stored: Variables, end: int) -> tuple[WhisperConfig, dict[str, Tensor]]:
    """Return configuration and weights of a Whisper under transformers' names.

    Args:
        stored (Variables): as `read_variables` returns them.
        end (int): the id that ends a text; the one that begins a transcript follows it.

    Returns:
        tuple: the configuration, and the state dict without `proj_out.weight`, which is the token embeddings; tensors
            are float16 or float32, as they are stored.

    Raises:
        WeightsError: the arrays are those of another network, or quantised.
    """
    check_number_types(stored)
    try:
        check_flags(stored)
        config = whisper_config(stored, end)
        weights = whisper_state_dict(stored)
        with torch.device("meta"):
            expected = dict(WhisperForConditionalGeneration(config).state_dict())
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:  # another shape than any Whisper's
        raise WeightsError(f"the arrays in {stored.source} are not shaped as Whisper's; download it again.") from error
    del expected[OUTPUT]
    if wrong := mismatched_tensors(expected, weights):
        raise WeightsError(
            f"{stored.source} belongs to another network than Whisper ({len(wrong)} weights differ, among them "
            f"{wrong[0]:.100}); give the model.bin of one."
        )
    return config, weights


def check_number_types(stored: Variables) -> None:
    """Check that all weights are float16, or all float32, and that none is empty.

    Raises:
        WeightsError: they are quantised, of several types, or empty.
    """
    dtype = stored[EMBEDDINGS].dtype
    types = {array.dtype.name for array in stored.values() if array.ndim}
    if not all(array.size for array in stored.values()):
        raise WeightsError(f"{stored.source} holds an empty array, which no Whisper has; download it again.")
    if dtype.kind != "f" or types != {dtype.name}:
        raise WeightsError(
            f"the weights in {stored.source} are of {' and '.join(sorted(types))}; only float16 or float32 alone can "
            "be converted, so give a model.bin that is not quantised."
        )


def check_flags(stored: Variables) -> None:
    """Check that the network computes what Whisper does, and that its projection is tied to the embeddings.

    Raises:
        WeightsError: it does not.
    """
    for side in ("encoder", "decoder"):
        for name, value in FLAGS.items():
            found = int(stored.get(f"{side}/{name}", np.array(value)))
            if found != value:
                raise WeightsError(
                    f"{stored.source} says {name} {found} of its {side}, where Whisper has {value}; give the "
                    "model.bin of a Whisper."
                )
    if PROJECTION in stored and not np.array_equal(stored[PROJECTION], stored[EMBEDDINGS]):
        raise WeightsError(f"{stored.source} has a projection of its own, which Whisper has not; give one without.")


def whisper_config(stored: Variables, end: int) -> WhisperConfig:
    """Return transformers' configuration of the Whisper whose arrays these are.

    Args:
        stored (Variables): as `read_variables` returns them.
        end (int): the id that ends a text; the one that begins a transcript follows it.

    Raises:
        WeightsError: the vocabulary has no such ids.
        ValueError: an array is shaped as no Whisper's.
    """
    vocab, width = stored[EMBEDDINGS].shape
    if vocab <= end + 1:
        raise WeightsError(
            f"{stored.source} has {vocab} tokens, and texts of its tokenizer end with {end}; give files of one model."
        )
    heads = {side: int(stored[f"{side}/num_heads"]) for side in ("encoder", "decoder")}
    if any(count < 1 or width % count for count in heads.values()):
        raise ValueError(f"{heads} heads of {width}")
    return WhisperConfig(
        vocab_size=vocab, d_model=width, encoder_layers=num_layers(stored, "encoder"),
        decoder_layers=num_layers(stored, "decoder"), encoder_attention_heads=heads["encoder"],
        decoder_attention_heads=heads["decoder"], encoder_ffn_dim=len(stored["encoder/layer_0/ffn/linear_0/bias"]),
        decoder_ffn_dim=len(stored["decoder/layer_0/ffn/linear_0/bias"]),
        num_mel_bins=stored["encoder/conv1/weight"].shape[1],
        max_source_positions=len(stored["encoder/position_encodings/encodings"]),
        max_target_positions=len(stored["decoder/position_encodings/encodings"]),
        pad_token_id=end, bos_token_id=end, eos_token_id=end, decoder_start_token_id=end + 1,
        dtype=stored[EMBEDDINGS].dtype.name, architectures=["WhisperForConditionalGeneration"],
    )  # fmt: skip


def num_layers(stored: Iterable[str], side: str) -> int:
    """Return how many layers the encoder or decoder has, by the names of its arrays."""
    norm = "self_attention/layer_norm/gamma"
    return sum(name.startswith(f"{side}/layer_") and name.endswith(norm) for name in stored)


def whisper_state_dict(stored: Variables) -> dict[str, Tensor]:
    """Return the arrays under transformers' names, without the tied projection; they share memory with `stored`."""
    renamed = _Renamed(stored)
    for side in ("encoder", "decoder"):
        for index in range(num_layers(stored, side)):
            renamed.layer(f"{side}/layer_{index}", f"model.{side}.layers.{index}", is_decoder=side == "decoder")
        renamed.norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        renamed.put(f"model.{side}.embed_positions.weight", stored[f"{side}/position_encodings/encodings"])
    for name in ("conv1", "conv2"):
        renamed.linear(f"encoder/{name}", f"model.encoder.{name}")
    renamed.put("model.decoder.embed_tokens.weight", stored[EMBEDDINGS])
    return renamed.tensors


class _Renamed:
    """Collects tensors under transformers' names."""

    def __init__(self, stored: Variables) -> None:
        self.stored = stored
        self.tensors: dict[str, Tensor] = {}

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Store an array under `name`."""
        self.tensors[name] = torch.from_numpy(array)

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
            elif bias.any():
                raise ValueError(f"{source} has a bias of keys")

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
