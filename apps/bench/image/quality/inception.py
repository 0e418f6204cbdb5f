"""The network that FID is defined by (Heusel et al. 2017, arXiv 1706.08500), as torchmetrics and torch-fidelity run it.

    Inception(None, device)(pictures)       # [N, 2048]

Its weights are downloaded by nobody here: they are looked for where torch-fidelity keeps them, or in a file that is
given, and read as tensors alone.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.image.quality.metrics import MetricsMissing, package, pixels
from polydraft.core.checks.extras import pip_install
from polydraft.core.errors import WeightsError
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.checkpoints import load_tensors
from polydraft.modalities.weights import read_weights

FILE, MARK = "weights-inception-2015-12-05-6726825d.pth", "6726825d"  # how its SHA-256 begins
URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{FILE}"
OTHERWISE = "or compare features of CLIP with --fid-features clip"


class Inception:
    """Inception-v3 of 2015-12-05. given: file of its weights, or folder that has it."""

    label: str = "Inception"
    width: int = 2048

    def __init__(self, given: Path | None, device: torch.device) -> None:
        file = given or Path(torch.hub.get_dir()) / "checkpoints"
        file = file / FILE if file.is_dir() or given is None else file
        if not file.is_file():
            raise WeightsError(
                f"FID needs weights that are not at {file}; download {URL} and give it as --inception, {OTHERWISE}."
            )
        self.device = device
        self.network: Any = read_weights("Inception", file, lambda: network(weights(file))).to(device)
        published = hashlib.sha256(file.read_bytes()).hexdigest().startswith(MARK)
        self.about: str
        self.about = "Inception of 2015-12-05" if published else f"{file.name}, which is not the published Inception"

    @torch.inference_mode()
    def __call__(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Return features `[N, 2048]` float64 on the CPU; adjacent images of one size share a forward pass."""
        sized = (list(same) for _, same in groupby(map(pixels, pictures), key=lambda seen: seen.shape))
        return torch.cat([self.network(torch.stack(same).to(self.device)).double().cpu() for same in sized])


def weights(file: Path) -> dict[str, Tensor]:
    """Read tensors of a safetensors file, or of a checkpoint that holds nothing else."""
    return read_tensors(file) if file.suffix == ".safetensors" else load_tensors(file, "state_dict", URL, bare=True)


def network(found: dict[str, Tensor]) -> Any:
    """torchmetrics' network with these weights."""
    make = package().image.fid.NoTrainInceptionV3
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / FILE  # torch-fidelity would run what a pickle says; in this one are tensors alone
        torch.save(found, copied)
        try:
            return make("inception-v3-compat", ["2048"], str(copied))
        except ModuleNotFoundError as error:
            raise MetricsMissing(
                f"FID needs the package torch-fidelity; install it with: {pip_install('inception')}, {OTHERWISE}."
            ) from error
