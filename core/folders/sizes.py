"""What settings ask for against what the files hold, before memory is taken or layers are made.

    check_layers(folder)                                     # of config.json, before anything loops over them
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
from polydraft.core.folders.weight_files import count_numbers

COUNTS = re.compile(r"(^|_)(layers?|blocks|depths?|places)(_per_block)?$|^n_layers?$")  # fields that loops run over
MANY = 1000  # layers that any folder may have
SPARE = 1 << 26  # numbers that a model may hold beside those of its files
UNBUILT = (  # what building a model on the meta device raises where that is not possible
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def check_layers(folder: Path) -> None:
    """Check that a configuration asks for no more layers than its files could hold.

    Raises:
        WeightsError: it asks for more than there are tensors.
    """
    asked = [(name, value) for name, value in numbers(read_json(folder / CONFIG)) if COUNTS.search(name)]
    if not asked or max(value for _, value in asked) <= MANY:
        return
    tensors, _ = count_numbers(folder)
    for name, value in asked:
        if value > max(MANY, tensors):
            raise WeightsError(
                f"{folder / CONFIG} has {name}={value}, and its files hold {tensors} tensors; correct it, or download "
                "the folder again."
            )


def numbers(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield whole numbers in settings with the names of their fields, those of parts included."""
    if isinstance(value, dict) and depth < 8:
        for field, inside in value.items():
            yield from numbers(inside, str(field), depth + 1)
    elif isinstance(value, list) and depth < 8:
        for inside in value[:MANY]:
            yield from numbers(inside, name, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def check_memory(make: Callable[[], nn.Module], folder: Path) -> None:
    """Check that a model is no larger than the files of its weights.

    Args:
        make: builds the model; it is called on the meta device, where nothing takes memory.
        folder: holds the files.

    Raises:
        WeightsError: it has far more numbers than they hold.
    """
    try:
        with torch.device("meta"):
            model = make()
    except PolydraftError:
        raise
    except UNBUILT:  # it is not measured; building it in earnest says what is wrong
        return
    needed = sum(part.numel() for part in {*model.parameters(), *model.buffers()})
    _, held = count_numbers(folder)
    if needed > 2 * held + SPARE:
        raise WeightsError(
            f"{folder / CONFIG} describes a model of {needed:,} numbers, and its files hold {held:,}; a field of it is "
            "wrong or missing, or they are of different models: correct it, or download the folder again."
        )


def check_tensors(make: Callable[[], nn.Module], weights: Mapping[str, Tensor], file: Path) -> None:
    """Check that a file holds the tensors of a network.

    Args:
        make: builds the network; it is called on the meta device, where nothing takes memory.
        weights: what the file holds.
        file: for errors.

    Raises:
        WeightsError: names the first tensor that is missing, too many, or of another shape.
    """
    with torch.device("meta"):
        wanted = {name: list(tensor.shape) for name, tensor in make().state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise WeightsError(misfit(file, len(wrong), wrong[0], found.get(wrong[0]), wanted.get(wrong[0])))


def misfit(file: Path, count: int, name: str, found: Any, wanted: Any) -> str:
    """Return the sentence for tensors that are not what settings describe, of which the first is `name`."""
    how = (
        "is not among what its settings describe" if wanted is None
        else "is missing" if found is None
        else f"has the shape {tuple(found)} where its settings ask for {tuple(wanted)}"
    )  # fmt: skip
    return (
        f"{count} tensors of {file} do not fit, the first is {name}, which {how}; its settings or its weights are of "
        "another model, download them again."
    )
