"""Build hook: compiles the C library of core/native where the package is installed, if there is a compiler."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from sysconfig import get_platform
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLATFORM = get_platform().replace("-", "_").replace(".", "_")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hook that ships the library inside the wheel; without it everything works by torch."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library, and mark the wheel as one for this platform."""
        native = run_path(str(Path(self.root) / "src/polydraft/core/native/build.py"))
        if reason := native["build"]():
            self.app.display_warning(f"polydraft computes models by torch on CPUs: {reason}")
        elif version == "standard":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{PLATFORM}"
            build_data["force_include"][str(native["LIBRARY"])] = "polydraft/core/native/libdecoder.so"
