"""The C library of `core/native/source`, loaded once: which functions this processor gets, and their memory.

It is compiled where the package is installed (`build.py`). Without it, or with `POLYDRAFT_NATIVE=0`, models are
computed by torch. The instruction set is chosen by the kind of processor, never by timing, so every run makes the same
choice: AMX; dot products of bf16 on AMD, where they take half the time of fused multiply-adds in fp32 (on Intel they
take twice as long); AVX-512; AVX2.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polydraft.core.native.build import LIBRARY, SOURCE, source_digest

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "POLYDRAFT_NATIVE"
PANEL = 32  # outputs of a panel, and what inputs are padded to a multiple of
ALIGNMENT = 64
MAX_THREADS = 256  # that a stage's units are shared out to
SMALL_WORK = 1 << 18  # multiplications that take one thread about as long as to wake the others
OPENMP = "libgomp.so.1"  # which torch brings and has loaded


class Matrix(Structure):
    """A weight in panels, laid out or as lines of a weight of torch."""

    _fields_ = [
        ("panels", c_void_p), ("bias", c_void_p), ("num_panels", c_int32), ("inputs", c_int32), ("lines", c_void_p),
        ("num_lines", c_void_p), ("line_size", c_int32),
    ]  # fmt: skip


class Norm(Structure):
    """A norm: its kind, epsilon, weight and bias."""

    _fields_ = [("kind", c_int32), ("epsilon", c_float), ("weight", c_void_p), ("bias", c_void_p)]


class Layer(Structure):
    """Weights of a decoder layer."""

    _fields_ = [
        ("input_norm", Norm), ("mlp_norm", Norm), ("query_norm", Norm), ("key_norm", Norm),
        ("qkv", Matrix), ("output", Matrix), ("up", Matrix), ("down", Matrix),
        ("cross_norm", Norm), ("cross_query", Matrix), ("cross_output", Matrix),
    ]  # fmt: skip


class Decoder(Structure):
    """Sizes and layers of a decoder."""

    _fields_ = [
        *((name, c_int32) for name in (
            "num_layers", "hidden", "heads", "kv_heads", "head_dim", "is_bf16", "activation", "is_gated",
        )),
        ("scaling", c_float), ("layers", POINTER(Layer)), ("final_norm", Norm),
    ]  # fmt: skip


class Pass(Structure):
    """Arguments of a decoder's pass."""

    _fields_ = [
        *((name, c_int32) for name in ("rows", "positions", "first_row", "view_len", "num_slots", "num_threads")),
        ("inputs", c_void_p), ("cosines", c_void_p), ("sines", c_void_p), ("mask", c_void_p),
        ("mask_row_stride", c_int64), ("mask_stride", c_int64), ("slots", c_void_p), ("keys", c_void_p),
        ("values", c_void_p), ("outputs", c_void_p),
        ("num_fixed", c_int32), ("fixed_slots", c_int32), ("fixed_keys", c_void_p), ("fixed_values", c_void_p),
    ]  # fmt: skip


class Product(Structure):
    """Arguments of a product by itself."""

    _fields_ = [
        ("matrix", Matrix), *((name, c_int32) for name in ("is_bf16", "rows", "used_inputs", "width", "num_threads")),
        ("columns", c_void_p), ("used", c_void_p), ("inputs", c_void_p), ("outputs", c_void_p),
    ]  # fmt: skip


class OpenMP(Structure):
    """Functions of the OpenMP library whose threads torch uses; null pointers for one thread."""

    _fields_ = [("parallel", c_void_p), ("thread_index", c_void_p), ("num_threads", c_void_p)]


@dataclass(frozen=True)
class Library:
    """Functions of the library for one instruction set."""

    instruction_set: str
    run_pass: Callable[..., int]
    pass_bytes: Callable[..., int]
    run_product: Callable[..., None]
    product_bytes: Callable[..., int]
    run_heads: Callable[..., None]
    heads_bytes: Callable[..., int]
    run_refinement: Callable[..., None]
    refinement_bytes: Callable[..., int]
    openmp: OpenMP

    @property
    def has_threads(self) -> bool:
        """Return whether passes use more than one thread."""
        return bool(self.openmp.parallel)

    def num_threads(self, work: int) -> int:
        """Return the number of threads for `work` multiplications: as many as torch's own operations use, one if few.

        Bits do not depend on it.
        """
        return min(torch.get_num_threads(), MAX_THREADS) if work > SMALL_WORK and self.openmp.parallel else 1


def library() -> Library | None:
    """Return the library with the functions for this processor; None if torch computes models."""
    return None if why_unused() else load(LIBRARY, supported_instruction_sets()[0])


def why_unused() -> str:
    """Return why the library is not used, as a sentence of a few words; "" if it is."""
    return f"{VARIABLE}=0" if os.environ.get(VARIABLE) == "0" else why_unusable()


@cache
def why_unusable() -> str:
    """Return why the library cannot be used here, "" if it can."""
    if not LIBRARY.exists():
        return "it was not compiled; install a C compiler, then polydraft again"
    if not supported_instruction_sets():
        return "this processor has no AVX2"
    try:
        digest = c_char_p.in_dll(ctypes.CDLL(str(LIBRARY)), "source_digest")
    except (OSError, ValueError) as error:
        return f"it cannot be loaded ({error})"
    # in_dll gives the address of the array as if it were a pointer
    if SOURCE.exists() and ctypes.string_at(ctypes.addressof(digest)).decode() != source_digest():
        return "it was compiled from other sources; run `python core/native/build.py`"
    return ""


@cache
def load(file: Path, instruction_set: str) -> Library:
    """Load a library's functions for an instruction set."""
    functions = ctypes.CDLL(str(file))

    def function(name: str, num_arguments: int, result: Any = None) -> Any:
        """Return an exported function of so many pointers."""
        found = getattr(functions, f"{name}_{instruction_set}")
        found.argtypes, found.restype = [c_void_p] * num_arguments, result
        return found

    return Library(
        instruction_set,
        run_pass=function("run_pass", 4, c_int),
        pass_bytes=function("pass_bytes", 2, c_size_t),
        run_product=function("run_product", 3),
        product_bytes=function("product_bytes", 1, c_size_t),
        run_heads=function("run_heads", 3),
        heads_bytes=function("heads_bytes", 1, c_size_t),
        run_refinement=function("run_refinement", 3),
        refinement_bytes=function("refinement_bytes", 1, c_size_t),
        openmp=find_openmp(),
    )


@cache
def supported_instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this processor has, the fastest first."""
    cpu, flags = torch.cpu, processor_flags()
    has_avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
    names = []
    if has_avx512 and {"amx_tile", "amx_bf16", "avx512_bf16"} <= flags and cpu._init_amx():
        names.append("amx")
    if has_avx512:
        names.append("avx512")
        if "avx512_bf16" in flags:
            names.insert(len(names) - is_amd(), "avx512bf16")
    if {"avx2", "fma"} <= flags:
        names.append("avx2")
    return tuple(names)


@cache
def processor_flags() -> frozenset[str]:
    """Return the features that Linux reports of the processor."""
    return frozenset(processor_field("flags").split())


def has_fast_bf16_products() -> bool:
    """Return whether the processor multiplies bf16 faster than fp32.

    Intel's processors without AMX have instructions for it too, at half the rate of fp32.
    """
    return next(iter(supported_instruction_sets()), "") in ("amx", "avx512bf16")


def is_amd() -> bool:
    """Return whether the processor is AMD's."""
    return processor_field("vendor_id") == "AuthenticAMD"


def processor_field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, "" if it is not there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def find_openmp() -> OpenMP:
    """Return the functions of the OpenMP library that torch has loaded, null pointers if it is another one."""
    try:
        functions = ctypes.CDLL(OPENMP, mode=os.RTLD_NOLOAD)  # fails unless it is loaded already
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        return OpenMP(*(ctypes.cast(getattr(functions, name), c_void_p) for name in names))
    except (OSError, AttributeError):
        return OpenMP()


class Memory(threading.local):
    """Memory of a thread's passes, kept between them."""

    def __init__(self) -> None:
        """Start without memory."""
        self.buffer: Tensor = torch.empty(0, dtype=torch.uint8)

    def address(self, num_bytes: int) -> int:
        """Return the aligned address of at least `num_bytes` bytes."""
        if len(self.buffer) < num_bytes + ALIGNMENT:
            with torch.inference_mode(False):
                self.buffer = torch.empty(num_bytes + num_bytes // 8 + ALIGNMENT, dtype=torch.uint8)
        return -(-self.buffer.data_ptr() // ALIGNMENT) * ALIGNMENT


memory: Memory = Memory()
