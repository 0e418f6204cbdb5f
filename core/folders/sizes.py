"""Compare the model that a configuration describes with its weight files, before memory is allocated.

check_layers(folder)                                     # layer counts in config.json, before any loop over them
check_tensors(lambda: Head(config), weights, file)       # names and shapes, on the meta device
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.weight_files import count_parameters

# names of the fields that model constructors loop over
LAYER_COUNT_FIELDS = re.compile(r"(^|_)(layers?|blocks|depths?|places)(_per_block)?$|^n_layers?$")
MAX_TRUSTED_LAYERS = 1000  # up to so many layers are always allowed
SPARE_PARAMETERS = 1 << 26  # that a model may have in addition to those of its files
META_BUILD_ERRORS = (  # raised by models that cannot be built on the meta device
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def check_layers(folder: Path) -> None:
    """Check that `config.json` asks for no more layers than the folder's weight files have tensors.

    A wrong count would keep a model's constructor looping, or fill the memory, before any weight is compared.

    Raises:
        WeightsError: It has more.
    """
    # every layer has a tensor or more, so a count above the number of tensors is wrong
    integers = iter_integers(read_json(folder / CONFIG))
    counts = [(name, value) for name, value in integers if LAYER_COUNT_FIELDS.search(name)]
    if not counts or max(value for _, value in counts) <= MAX_TRUSTED_LAYERS:
        return
    tensors, _ = count_parameters(folder)
    for name, value in counts:
        if value > max(MAX_TRUSTED_LAYERS, tensors):
            raise WeightsError(
                f"{folder / CONFIG} has {name}={value}, and its files hold {tensors} tensors; correct it, or download "
                "the folder again."
            )


def iter_integers(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield name and value of every integer in a JSON value, nested at most 8 deep.

    Items of a list have the name of the field that holds it; `depth` is the current nesting. Lists are read up to
    MAX_TRUSTED_LAYERS items, so that a huge one takes no time.
    """
    if isinstance(value, dict) and depth < 8:
        for field, item in value.items():
            yield from iter_integers(item, str(field), depth + 1)
    elif isinstance(value, list) and depth < 8:
        for item in value[:MAX_TRUSTED_LAYERS]:
            yield from iter_integers(item, name, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def check_memory(make: Callable[[], nn.Module], folder: Path) -> None:
    """Check that a model has about as many parameters as its weight files, before memory is allocated for it.

    Args:
        make (Callable): Builds the model; called on PyTorch's meta device, where tensors take no memory.
        folder (Path): Holds config.json and the weight files.

    Raises:
        WeightsError: The model has far more parameters than the files.
    """
    try:
        with torch.device("meta"):
            model = make()
    except PolydraftError:
        raise
    except META_BUILD_ERRORS:  # cannot be measured; building the model with weights will say what is wrong
        return
    needed = sum(tensor.numel() for tensor in {*model.parameters(), *model.buffers()})
    _, available = count_parameters(folder)
    # a wide margin, since files leave out some buffers and copies of tied weights
    if needed > 2 * available + SPARE_PARAMETERS:
        raise WeightsError(
            f"{folder / CONFIG} describes a model of {needed:,} numbers, and its files hold {available:,}; a field of "
            "it is wrong or missing, or they are of different models: correct it, or download the folder again."
        )


def check_tensors(make: Callable[[], nn.Module], weights: Mapping[str, Tensor], file: Path) -> None:
    """Check that names and shapes of the tensors in a weight file are those of a network.

    Args:
        make (Callable): Builds the network; called on PyTorch's meta device, where tensors take no memory.
        weights (Mapping[str, Tensor]): Contents of the file.
        file (Path): Named in errors.

    Raises:
        WeightsError: A tensor is missing, unknown, or of another shape; the first one is named.
    """
    with torch.device("meta"):
        expected = {name: list(tensor.shape) for name, tensor in make().state_dict().items()}
    stored = {name: list(tensor.shape) for name, tensor in weights.items()}
    mismatched = sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name))
    if mismatched:
        first = mismatched[0]
        raise WeightsError(
            tensor_mismatch_message(file, len(mismatched), first, stored.get(first), expected.get(first))
        )


def tensor_mismatch_message(file: Path, count: int, name: str, stored: Any, expected: Any) -> str:
    """Return the message for tensors in a weight file that do not match the configuration.

    Args:
        file (Path): The weight file.
        count (int): Number of tensors that do not match.
        name (str): Name of the first of them.
        stored (Any): Its shape in the file; None if the file lacks it.
        expected (Any): Its shape in the network; None if the network has no such tensor.
    """
    problem = (
        "is not among what its settings describe" if expected is None
        else "is missing" if stored is None
        else f"has the shape {tuple(stored)} where its settings ask for {tuple(expected)}"
    )  # fmt: skip
    return (
        f"{count} tensors of {file} do not fit, the first is {name}, which {problem}; its settings or its weights are "
        "of another model, download them again."
    )
