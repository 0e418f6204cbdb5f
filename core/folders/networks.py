"""Load our own network formats: a dataclass of settings in config.json, and weights in model.safetensors.

tokenizer = read_network(VQConfig, VQTokenizer, folder)
network = load_network(partial(Head, config), read_tensors(file), file)      # with settings from elsewhere
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from polydraft.core.folders.fields import parse_settings
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.sizes import CONFIG, WEIGHTS, check_layers, check_tensors
from polydraft.core.folders.weight_files import read_tensors

C = TypeVar("C")
N = TypeVar("N", bound=nn.Module)


def read_network(settings: Callable[..., C], make: Callable[[C], N], folder: Path) -> N:
    """Return the network in a folder, after checking that settings and weights match.

    Args:
        settings (Callable): Dataclass of the fields of config.json.
        make (Callable): Builds the network, given an instance of that dataclass.
        folder (Path): Holds config.json and model.safetensors.

    Raises:
        WeightsError: A file is missing or damaged, a field is wrong, or the weights belong to other settings.
    """
    check_layers(folder)
    config = parse_settings(settings, read_settings(folder / CONFIG), folder / CONFIG)
    return load_network(partial(make, config), read_tensors(folder / WEIGHTS), folder / WEIGHTS)


def load_network(make: Callable[[], N], weights: Mapping[str, Tensor], file: Path) -> N:
    """Build a network and load its weights.

    Args:
        make (Callable): Builds the network; first called on PyTorch's meta device, where tensors take no memory.
        weights (Mapping[str, Tensor]): Contents of the file.
        file (Path): Named in errors.

    Raises:
        WeightsError: The weights do not match the network.
    """
    check_tensors(make, weights, file)
    network = make()
    network.load_state_dict(weights)
    return network
