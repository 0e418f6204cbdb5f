"""Networks of our own: a dataclass of settings in config.json, and weights in model.safetensors.

    tokenizer = read_network(VQConfig, VQTokenizer, folder)
    network = load_network(partial(Head, config), read_tensors(file), file)      # where settings are read otherwise
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from polydraft.core.folders.fields import settings_of
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.sizes import CONFIG, WEIGHTS, check_layers, check_tensors
from polydraft.core.folders.weight_files import read_tensors

C = TypeVar("C")
N = TypeVar("N", bound=nn.Module)


def read_network(settings: Callable[..., C], make: Callable[[C], N], folder: Path) -> N:
    """Return the network in a folder, once its settings and its weights are known to fit.

    Args:
        settings: the dataclass of the fields of config.json.
        make: builds the network from them.
        folder: holds both files.

    Raises:
        WeightsError: a file is missing or damaged, a field is wrong, or the weights are of other settings.
    """
    check_layers(folder)
    config = settings_of(settings, read_settings(folder / CONFIG), folder / CONFIG)
    return load_network(partial(make, config), read_tensors(folder / WEIGHTS), folder / WEIGHTS)


def load_network(make: Callable[[], N], weights: Mapping[str, Tensor], file: Path) -> N:
    """Return a network with the weights of a file.

    Args:
        make: builds the network; it is called on the meta device first, where nothing takes memory.
        weights: what the file holds.
        file: for errors.

    Raises:
        WeightsError: the weights are not those of such a network.
    """
    check_tensors(make, weights, file)
    network = make()
    network.load_state_dict(weights)
    return network
