"""Load transformers models from safetensors and check every tensor.

model = load_causal_lm(folder, torch.device("cpu"), torch.float32)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from polydraft.core.errors import MissingPackage, WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.readers import convert_load_errors, read_model
from polydraft.core.folders.sizes import tensor_mismatch_message
from polydraft.core.model.mapped_files import copy_mapped
from polydraft.modalities.device_dtype import DeviceMap, check_device_map
from polydraft.modalities.generation_config import check_generation_config
from polydraft.modalities.weight_paths import refuse_pickles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")


def read_weights(what: str, folder: Path, read: Callable[[], T]) -> T:
    """Run a reader of a model's folder and copy its tensors out of mapped files.

    Args:
        what (str): what errors call the part that is read.
        folder (Path): the folder, for errors.
        read (Callable): returns a model, a pipeline of diffusers, or anything else.

    Raises:
        WeightsError: the folder is malformed.
    """
    with convert_load_errors(what, folder):
        loaded = read()
        parts = getattr(loaded, "components", {}).values() if not isinstance(loaded, nn.Module) else [loaded]
        copy_mapped(*(part for part in parts if isinstance(part, nn.Module)))
        return loaded


def check_loading_report(folder: Path, report: dict[str, Any], ignored_suffixes: tuple[str, ...] = ()) -> None:
    """Check that the tensors in the files are exactly those of the model.

    Args:
        folder (Path): folder of the weights, for errors.
        report (dict[str, Any]): the `output_loading_info` of transformers.
        ignored_suffixes (tuple[str, ...]): ends of the names of tensors that the files may have in addition.

    Raises:
        WeightsError: a tensor is missing, unknown, or of another shape.
    """
    unexpected = {key: (None, None) for key in report.get("unexpected_keys", ()) if not key.endswith(ignored_suffixes)}
    absent = dict.fromkeys(report.get("missing_keys", ()), ((), None))
    reshaped = {key: (wanted, found) for key, found, wanted in report.get("mismatched_keys", ())}
    wrong: dict[str, tuple[Any, Any]] = unexpected | absent | reshaped
    if wrong:
        name = min(wrong)
        wanted, found = wrong[name]
        raise WeightsError(tensor_mismatch_message(folder, len(wrong), name, found, wanted))


def load_causal_lm(
    folder: Path, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None = None
) -> PreTrainedModel:
    """Load a causal decoder of transformers from safetensors, with the arguments of `load_pretrained`."""
    from transformers import AutoModelForCausalLM

    return load_pretrained(AutoModelForCausalLM, folder, device, dtype, device_map)


def load_pretrained(
    auto: Any, folder: Path, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None = None,
    ignored_suffixes: tuple[str, ...] = (), quantization_config: Any = None,
) -> PreTrainedModel:  # fmt: skip
    """Load a transformers model from safetensors in inference mode; tensors that do not fit are errors.

    Where accelerate is installed, tensors go from the files straight to the device, or to those of `device_map`.

    Args:
        auto (Any): the transformers class, such as `AutoModelForCausalLM`.
        folder (Path): folder of configuration and weights.
        device (torch.device): the device of the weights.
        dtype (torch.dtype): the dtype of the weights; quantised models keep their own.
        device_map (DeviceMap | None): how transformers spreads the weights over devices.
        ignored_suffixes (tuple[str, ...]): ends of the names of tensors that the files may have in addition.
        quantization_config (Any): how transformers quantises the weights as it loads them; None keeps them.

    Raises:
        MissingPackage: `quantization_config` needs a package that is not installed.
        WeightsError: the folder is malformed, or its quantisation needs a package that is not installed.
    """
    from transformers.utils import logging
    from transformers.utils.import_utils import is_accelerate_available

    refuse_pickles(folder)
    check_generation_config(folder)
    logging.disable_progress_bar()
    check_device_map(device_map)
    stored = read_json(folder / "config.json").get("quantization_config")  # how the files are quantised, if they are
    options = {} if quantization_config is None else {"quantization_config": quantization_config}
    if device_map is None and device.type != "cpu" and is_accelerate_available():
        device_map = {"": device}

    def read() -> PreTrainedModel:
        loaded: Any = read_model(
            "weights", auto, folder, dtype="auto" if stored else dtype, device_map=device_map,
            output_loading_info=True, ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
        model, report = loaded
        check_loading_report(folder, report, ignored_suffixes)
        if dtype is torch.float64:  # transformers has no grouped matmul of experts in float64
            model.set_experts_implementation("eager")
        if stored or options:  # it stays on its quantiser's device; some quantisers finish packing in the first pass
            if model.main_input_name == "input_ids":
                with torch.inference_mode():
                    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))
        elif device_map is None:
            model.to(device)
        return model.eval().requires_grad_(False)

    try:
        return read_weights("weights", folder, read)
    except ImportError as error:
        if options:
            raise MissingPackage(
                f"quantization_config needs another package: {root_cause(error)}; install it, or leave out "
                "quantization_config."
            ) from error
        how = stored.get("quant_method", "quantised") if isinstance(stored, dict) else "another way"
        raise WeightsError(
            f"the weights in {folder} are stored {how}, which needs another package: {root_cause(error)}; install it, "
            "or load the model as it was before."
        ) from error


def root_cause(error: ImportError) -> str:
    """Return the first line of the message of the library that needed a package."""
    message = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
    return message[:200] or type(error).__name__
