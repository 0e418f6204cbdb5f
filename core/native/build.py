"""Compilation of the C library, where the package is installed; it needs a C compiler and nothing else.

    python core/native/build.py        # in a checkout, after a change of core/native/source

The wheel's build calls `build` (`hatch_build.py`). This file imports nothing of the package, which is not there yet.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
LIBRARY = Path(__file__).parent / "libdecoder.so"
FLAGS = [
    "-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wextra",
    "-Wno-psabi",
]  # fmt: skip
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]
# by the name that exported functions end with
INSTRUCTION_SETS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512": AVX512,
    "avx512bf16": [*AVX512, "-mavx512bf16", "-DUSE_DOT_PRODUCTS"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-DUSE_AMX"],
}


def source_digest() -> str:
    """Return a digest of all sources and flags, by which a library is known to be theirs."""
    digest = hashlib.sha256(repr((FLAGS, INSTRUCTION_SETS)).encode())
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def find_compiler() -> list[str]:
    """Return the command of the C compiler that `CC` names, or of the first one installed; empty if there is none."""
    commands = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else [["gcc"], ["clang"], ["cc"]]
    return next((command for command in commands if command and shutil.which(command[0])), [])


def build(library: Path = LIBRARY, extra_flags: tuple[str, ...] = ()) -> str:
    """Compile the library.

    Args:
        library (Path): File to write.
        extra_flags (tuple[str, ...]): Further flags of compiler and linker, such as those of a sanitizer.

    Returns:
        str: Why there is no library, in a few words; "" if there is one.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"it is for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    compiler = find_compiler()
    if not compiler:
        return "no C compiler was found when the package was installed"
    with tempfile.TemporaryDirectory() as folder:
        objects = {name: str(Path(folder) / f"{name}.o") for name in INSTRUCTION_SETS}
        compiling = [
            start([*compiler, *FLAGS, *INSTRUCTION_SETS[name], *extra_flags, f"-DINSTRUCTION_SET={name}", "-c",
                   str(SOURCE / "library.c"), "-o", target])
            for name, target in objects.items()
        ]  # fmt: skip
        digest = Path(folder) / "digest.c"
        digest.write_text(f'const char source_digest[] = "{source_digest()}";\n')
        linked = str(Path(folder) / library.name)
        link = [*compiler, "-shared", "-fPIC", *extra_flags, *objects.values(), str(digest), "-lm", "-o", linked]
        # all compilers end before the folder is removed, also where one fails
        reasons = [reason for process in compiling if (reason := wait_for(process))]
        if reason := (reasons or [wait_for(start(link))])[0]:
            return reason
        try:
            shutil.copyfile(linked, partial := library.with_suffix(f".{os.getpid()}"))
            partial.replace(library)  # a process that has the old one open keeps it
        except OSError as error:
            return f"it cannot be written ({error})"
    return ""


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a compiler."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(process: subprocess.Popen[str]) -> str:
    """Wait for a compiler, and return why it failed, "" if it did not."""
    output = process.communicate()[0]
    if not process.returncode:
        return ""
    errors = [line for line in output.splitlines() if "error" in line] or output.splitlines() or ["no message"]
    return f"the C compiler failed: {errors[0].strip()}"


if __name__ == "__main__":
    sys.exit(build() or None)
