"""Compilation of the C library: a reason where it fails, and a whole file or none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polydraft.core.native import build as building
from polydraft.core.native.build import FLAGS, INSTRUCTION_SETS, build, find_compiler, source_digest

needs_compiler = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def one_quick_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for one instruction set, without optimisation."""
    monkeypatch.setattr(building, "INSTRUCTION_SETS", {"avx2": INSTRUCTION_SETS["avx2"]})
    monkeypatch.setattr(building, "FLAGS", [flag for flag in FLAGS if flag != "-O3"])


@needs_compiler
def test_build_replaces_the_library_whole(tmp_path: Path) -> None:
    """A process that has the former library open keeps it; nothing else is left in the folder."""
    library = tmp_path / "libdecoder.so"
    library.write_text("former")
    with library.open() as former:
        assert build(library) == ""
        assert former.read() == "former" and library.stat().st_ino != os.fstat(former.fileno()).st_ino
    assert os.listdir(tmp_path) == [library.name]
    functions = ctypes.CDLL(str(library))
    digest = ctypes.c_char_p.in_dll(functions, "source_digest")
    assert ctypes.string_at(ctypes.addressof(digest)).decode() == source_digest()
    assert hasattr(functions, "run_pass_avx2") and not hasattr(functions, "run_pass_amx")


def test_build_without_compiler_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not find_compiler() and "no C compiler" in build(tmp_path / "libdecoder.so")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in build(tmp_path / "libdecoder.so")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("script", ["exit 1", "echo 'decoder.c:1: error: no such thing' && exit 1"])
def test_build_with_failing_compiler_keeps_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    compiler, library = tmp_path / "compiler", tmp_path / "libdecoder.so"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    library.write_text("former")
    monkeypatch.setenv("CC", str(compiler))
    expected = "decoder.c:1: error: no such thing" if "error" in script else "no message"
    assert build(library) == f"the C compiler failed: {expected}"
    assert sorted(os.listdir(tmp_path)) == ["compiler", library.name] and library.read_text() == "former"


@needs_compiler
def test_build_with_failing_linker_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) exit 1;; esac\nexec {find_compiler()[0]} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert build(tmp_path / "libdecoder.so") == "the C compiler failed: no message"
    assert os.listdir(tmp_path) == ["compiler"]


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_build_elsewhere_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(building.platform, "machine", lambda: machine)
    assert build(tmp_path / "libdecoder.so") == f"it is for Linux on x86-64, and this is {system} on {machine}"
    assert os.listdir(tmp_path) == []


def test_script_exits_with_the_reason() -> None:
    environment = os.environ | {"CC": "no-such-compiler"}
    done = subprocess.run([sys.executable, building.__file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


def test_digest_follows_sources_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decoder.c").write_text("int one;")
    monkeypatch.setattr(building, "SOURCE", tmp_path)
    digests = {source_digest()}
    (tmp_path / "decoder.c").write_text("int two;")
    digests.add(source_digest())
    monkeypatch.setattr(building, "FLAGS", [])
    digests.add(source_digest())
    assert len(digests) == 3
