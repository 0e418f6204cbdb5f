"""Which functions a processor gets, and why the C library is not used where it is not."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polydraft.apps.cli import doctor
from polydraft.core.model.linear import packed_group
from polydraft.core.model.onednn_weights import OneDnnWeight
from polydraft.core.native import library as native
from polydraft.core.native.build import source_digest
from polydraft.core.native.library import ALIGNMENT, Memory, OpenMP, library, why_unusable, why_unused
from polydraft.core.native.weights import PanelWeight

from .passes import TOLERANCES, TORCH, build_backbone, prepare, relative_distance

AVX512 = "avx512f avx512bw avx512dq avx512vl "


@pytest.fixture
def use_library(monkeypatch):
    """Return a function that makes a file the library."""

    def use(file: Path) -> None:
        monkeypatch.setattr(native, "LIBRARY", file)
        why_unusable.cache_clear()

    yield use
    monkeypatch.undo()
    why_unusable.cache_clear()


def assert_torch_computes(reason: str) -> None:
    """Check that models are computed by torch, right, and that the doctor says why."""
    assert why_unused() == reason and library() is None
    check = doctor.check_native()
    assert check.status == doctor.OK and check.detail.endswith(f"by the C library: {reason}")
    assert "\n" not in check.detail
    backbone = build_backbone("llama", torch.float32)
    decoder = prepare(backbone, TORCH)
    group = packed_group([backbone.layers[0].mlp.down_proj])
    assert group is not None and isinstance(group.weight, OneDnnWeight)
    tokens, cache = torch.arange(10)[None], decoder.create_cache(1)
    cache.add_rows(1)
    with torch.inference_mode():
        plain = build_backbone("llama", torch.float32)(input_ids=tokens).last_hidden_state
        assert relative_distance(decoder.prefill(cache, tokens, slice(0, 1)), plain) < TOLERANCES[torch.float32]


def test_installed_library_computes_passes(fastest):
    assert why_unused() == "" and library() == fastest
    backbone = build_backbone("llama", torch.float32)
    decoder = prepare(backbone, fastest.instruction_set)
    group = packed_group([backbone.layers[0].mlp.down_proj])
    assert group is not None and isinstance(group.weight, PanelWeight) and decoder.fused_layers is not None
    check = doctor.check_native()
    assert check.status == doctor.OK and f"C library ({fastest.instruction_set})" in check.detail


def test_variable_leaves_models_to_torch(monkeypatch):
    monkeypatch.setenv("POLYDRAFT_NATIVE", "0")
    assert_torch_computes("POLYDRAFT_NATIVE=0")


def test_missing_library_leaves_models_to_torch(use_library, tmp_path):
    use_library(tmp_path / "libdecoder.so")
    assert_torch_computes("it was not compiled; install a C compiler, then polydraft again")


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF"])
def test_broken_library_leaves_models_to_torch(use_library, tmp_path, content):
    file = tmp_path / "libdecoder.so"
    file.write_bytes(content)
    use_library(file)
    assert why_unusable().startswith("it cannot be loaded (")
    assert_torch_computes(why_unusable())


def test_library_without_digest_is_not_used(use_library, library_file, tmp_path):
    file = tmp_path / "libdecoder.so"
    file.write_bytes(library_file.read_bytes().replace(b"source_digest", b"source_absent"))
    use_library(file)
    assert why_unusable().startswith("it cannot be loaded (") and library() is None


def test_library_of_other_sources_is_not_used(use_library, library_file, tmp_path):
    file, content = tmp_path / "libdecoder.so", library_file.read_bytes()
    assert source_digest().encode() in content
    file.write_bytes(content.replace(source_digest().encode(), b"0" * 16))
    use_library(file)
    assert_torch_computes("it was compiled from other sources; run `python core/native/build.py`")


def test_library_without_sources_is_used(use_library, library_file, monkeypatch, tmp_path):
    """A wheel may come without them."""
    shutil.copy(library_file, tmp_path / "libdecoder.so")
    monkeypatch.setattr(native, "SOURCE", tmp_path / "source")
    use_library(tmp_path / "libdecoder.so")
    assert why_unused() == ""


@pytest.mark.parametrize(
    ("flags", "vendor", "expected"),
    [
        ("sse4_2 avx2", "GenuineIntel", ()),  # without fused multiply-adds
        ("avx2 fma", "GenuineIntel", ("avx2",)),
        (AVX512 + "avx2 fma", "GenuineIntel", ("avx512", "avx2")),
        ("avx512f avx512_bf16 avx2 fma", "GenuineIntel", ("avx2",)),
        (AVX512 + "avx512_bf16 avx2 fma", "GenuineIntel", ("avx512", "avx512bf16", "avx2")),
        (AVX512 + "avx512_bf16 avx2 fma", "AuthenticAMD", ("avx512bf16", "avx512", "avx2")),
        (AVX512 + "avx512_bf16 amx_tile amx_bf16 avx2 fma", "GenuineIntel", ("amx", "avx512", "avx512bf16", "avx2")),
        ("", "", ()),
    ],
)
def test_instruction_sets_by_processor(monkeypatch, flags, vendor, expected):
    """AMX is first, if the system grants it; dot products are fast on AMD alone."""
    fields = {"flags": flags, "vendor_id": vendor}
    monkeypatch.setattr(native, "processor_field", fields.get)
    monkeypatch.setattr(native, "processor_flags", native.processor_flags.__wrapped__)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: True)
    assert native.supported_instruction_sets.__wrapped__() == expected
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    assert native.supported_instruction_sets.__wrapped__() == tuple(name for name in expected if name != "amx")


def test_processor_without_avx2_leaves_models_to_torch(use_library, library_file, monkeypatch):
    monkeypatch.setattr(native, "supported_instruction_sets", tuple)
    use_library(library_file)
    assert why_unused() == "this processor has no AVX2" and library() is None


def test_other_openmp_library_leaves_one_thread(monkeypatch):
    monkeypatch.setattr(native, "OPENMP", "libno-such-openmp.so.1")
    found = native.find_openmp()
    assert isinstance(found, OpenMP) and not found.parallel


def test_doctor_reports_one_thread_without_openmp(fastest, monkeypatch):
    monkeypatch.setattr(native, "load", lambda file, name: replace(fastest, openmp=OpenMP()))
    assert "on one thread" in doctor.check_native().detail


def test_threads_are_no_more_than_a_team_holds(fastest, monkeypatch):
    """MAX_THREADS of team.h; large machines have more."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert fastest.num_threads(10**9) <= 256
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert fastest.num_threads(10**9) == (7 if fastest.has_threads else 1)


def test_memory_is_aligned_kept_and_grows():
    memory = Memory()
    first = memory.address(1000)
    assert first % ALIGNMENT == 0 and memory.address(900) == first
    for size in (2000, 10**6):
        address, buffer = memory.address(size), memory.buffer
        assert address % ALIGNMENT == 0 and buffer.data_ptr() <= address
        assert address + size <= buffer.data_ptr() + len(buffer)


def test_memory_differs_between_threads():
    memory, addresses = Memory(), []
    memory.address(1000)
    thread = threading.Thread(target=lambda: addresses.append(memory.address(1000)))
    thread.start()
    thread.join()
    assert addresses[0] != memory.address(1000)
