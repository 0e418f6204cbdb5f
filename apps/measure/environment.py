"""Environment of a measurement: versions, machine, revision, command line.

python -c "from polydraft.apps.measure.environment import environment; print(environment('cpu', 'bfloat16'))"
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import polydraft
from polydraft.apps.terminal.terminal import note
from polydraft.core.native.library import library

BUSY = 0.5  # load a core beyond which figures are not to be trusted


def environment(device: torch.device | str, dtype: torch.dtype | str) -> dict[str, Any]:
    """Return everything needed to repeat a measurement; call it before, or the load includes the benchmark."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "polydraft": polydraft.__version__, "revision": revision(),
        "python": platform.python_version(), "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "machine": accelerator() if str(device).startswith("cuda") else cpu(), "cores": os.cpu_count(),
        "threads": torch.get_num_threads(), "cpu_passes": cpu_passes(), "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "load": load(),
    }  # fmt: skip


def timed_on(device: torch.device | str, dtype: torch.dtype | str) -> dict[str, Any]:
    """Return the environment of timings, with a warning if something else seems to run."""
    found = environment(device, dtype)
    if warning_line := warning():
        note(warning_line)
    return found


def warning() -> str | None:
    """Return a warning if something else seems to run."""
    now, cores = load(), os.cpu_count() or 1
    if now is None or now < BUSY * cores:
        return None
    return f"note: load {now:.1f} on {cores} cores; figures taken now are too slow, stop what else runs"


def load() -> float | None:
    """Return the average running processes over the last minute; None where the system does not count them."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def accelerator() -> str:
    return torch.cuda.get_device_name()


def cpu() -> str:
    """Return the processor's name where the system provides it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_passes() -> str:
    """Return what computes passes on CPUs: the C library and its instruction set, or torch."""
    native = library()
    return "torch" if native is None else f"C library, {native.instruction_set}"


def revision() -> str | None:
    """Return the commit of this checkout, with + where files differ; None outside of one."""
    folder = Path(__file__).resolve().parent
    try:
        commit = git(folder, "rev-parse", "--short", "HEAD")
        return commit + ("+" if git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
