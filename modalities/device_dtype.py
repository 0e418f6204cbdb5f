"""Devices and dtypes by name.

device = resolve_device("auto")
dtype = resolve_dtype("bf16", device)       # torch.bfloat16
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from polydraft.core.checks.arguments import argument_error, format_value, to_string
from polydraft.core.checks.extras import missing_package_error
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import DeviceUnavailable
from polydraft.core.model.precision import fast_dtype

DeviceMap: TypeAlias = "str | dict[str, Any]"  # the `device_map` of transformers, for a target over several devices
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
DTYPE_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def check_device_map(device_map: DeviceMap | None) -> None:
    """Check that transformers can spread weights over several devices.

    Raises:
        InvalidArgument: `device_map` is no string and no dictionary.
        MissingPackage: accelerate is not installed.
    """
    from transformers.utils.import_utils import is_accelerate_available

    if device_map is not None and not isinstance(device_map, (str, dict)):
        raise argument_error("device_map", device_map, "'auto', or a dictionary, as transformers takes it")
    if device_map is not None and not is_accelerate_available():
        raise missing_package_error("accelerate", "device_map, which is transformers' own,")


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of this name; "auto" is the best one.

    Raises:
        DeviceUnavailable: it does not exist here, or cannot be used.
    """
    name = device_name(device)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(name)
        torch.empty(1, device=resolved).add(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise system_error(error, f"device {name!r} cannot be used now") or DeviceUnavailable(
            f"device {format_value(name)} cannot be used here; use auto, cpu, or cuda with a GPU."
        ) from error
    return resolved


def device_name(device: Any) -> str:
    """Return the name of a device given as a string or as torch's; raise InvalidArgument for anything else."""
    return to_string("device", str(device) if isinstance(device, torch.device) else device, "auto, cpu or cuda")


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of this name; "auto" is bfloat16 where the hardware multiplies it, float32 elsewhere.

    Raises:
        DeviceUnavailable: it is no dtype for weights.
    """
    name = dtype_name(dtype)
    if name == "auto":
        return fast_dtype(device)
    if name not in DTYPES:
        meant = did_you_mean(name, [*DTYPES, *DTYPE_ALIASES])
        raise DeviceUnavailable(f"dtype {format_value(name)} is unknown{meant}; use auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype given as a string or as torch's; raise InvalidArgument for anything else."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    name = to_string("dtype", name, f"auto, {', '.join(DTYPES)}")
    return DTYPE_ALIASES.get(name, name)
