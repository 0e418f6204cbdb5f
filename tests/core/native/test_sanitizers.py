"""Random shapes under AddressSanitizer and UndefinedBehaviorSanitizer: no access beyond any buffer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polydraft.core.native import build as building
from polydraft.core.native.build import INSTRUCTION_SETS, build, find_compiler
from polydraft.core.native.library import supported_instruction_sets

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 600  # seconds, far above what a run takes


def find_runtime(name: str) -> str | None:
    """Return the file of a sanitizer's runtime that the compiler brings, None if there is none."""
    compiler = find_compiler()
    if not compiler:
        return None
    found = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


def run_sanitized(folder: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], passes: int) -> str:
    """Return what a run over instruction sets says; it ends with status 0."""
    runtimes = [find_runtime(name) for name in ("libasan.so", "libubsan.so")]
    if None in runtimes:
        pytest.skip("there is no compiler with sanitizers")
    monkeypatch.setattr(building, "INSTRUCTION_SETS", {name: INSTRUCTION_SETS[name] for name in names})
    library = folder / "libdecoder.so"
    assert build(library, ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-O1")) == ""
    environment = os.environ | {
        "LD_PRELOAD": ":".join(filter(None, runtimes)), "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip
    # the digest counts instruction sets, of which this library has some
    program = (
        "from polydraft.core.native import build, library\n"
        f"build.INSTRUCTION_SETS = {{name: build.INSTRUCTION_SETS[name] for name in {names}}}\n"
        "from tests.core.native.sanitized import main\nmain()\n"
    )
    command = [sys.executable, "-c", program, str(library), str(passes), *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-4000:]
    return printed


def test_random_shapes_stay_inside_buffers(tmp_path, monkeypatch):
    printed = run_sanitized(tmp_path, monkeypatch, list(supported_instruction_sets()[:1]), passes=4)
    assert "AddressSanitizer" not in printed and "runtime error" not in printed, printed[-4000:]


@pytest.mark.thorough
def test_random_shapes_of_every_set_stay_inside_buffers(tmp_path, monkeypatch):
    printed = run_sanitized(tmp_path, monkeypatch, list(supported_instruction_sets()), passes=40)
    assert "AddressSanitizer" not in printed and "runtime error" not in printed, printed[-4000:]
