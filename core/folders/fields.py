"""Check fields of JSON settings against Python type hints; errors name the field.

    config = parse_settings(VQConfig, read_json(file), file)              # a dataclass
    check_fields(read_json(file), {"temperature": NumberRange(float, 0)}, file)

A hint is a type, a union of types, `list[…]`, `tuple[…, ...]`, `dict[str, …]`, a `NumberRange`, or several in a tuple.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from polydraft.core.errors import WeightsError

T = TypeVar("T")
MAX_INTEGER = 2**31 - 1  # no size, id or length in settings is larger
MAX_NUMBER = 1e30  # products of larger ones overflow float32
TYPE_NAMES: dict[type[Any], str] = {
    bool: "true or false", str: "a string", dict: "an object", type(None): "null", list: "a list",
}  # fmt: skip


@dataclass(frozen=True)
class NumberRange:
    """Type hint of whole or real numbers from `minimum` to `maximum`."""

    number_type: type  # int or float
    minimum: float
    maximum: float = math.inf

    def __str__(self) -> str:
        """Return the range in words, such as "a whole number from 1 to 8"."""
        noun = "a whole number" if self.number_type is int else "a number"
        lower = "" if self.minimum == -math.inf else f" from {self.minimum:,}"
        return noun + lower + ("" if self.maximum == math.inf else f" to {self.maximum:,}")

    def contains(self, value: Any) -> bool:
        """Return whether `value` is a finite number of this type in the range; booleans are no numbers."""
        allowed_types = (int,) if self.number_type is int else (int, float)
        if not isinstance(value, allowed_types) or isinstance(value, bool) or not math.isfinite(value):
            return False
        magnitude_limit = MAX_INTEGER if self.number_type is int else MAX_NUMBER
        return bool(self.minimum <= value <= self.maximum) and abs(value) <= magnitude_limit


INTEGER, NUMBER = NumberRange(int, 0, MAX_INTEGER), NumberRange(float, -math.inf)


def check_fields(fields: Mapping[str, Any], hints: Mapping[str, Any], file: Path) -> None:
    """Check every field of a settings file that has a type hint.

    Args:
        fields (Mapping[str, Any]): Contents of the file.
        hints (Mapping[str, Any]): Type hints by field; fields without one are not checked, and may be missing.
        file (Path): Named in errors.

    Raises:
        WeightsError: A value does not match; the message names file, field, value and what is allowed.
    """
    for name, hint in hints.items():
        if name in fields and not matches_hint(fields[name], hint):
            raise WeightsError(
                f"{file} has {name}={fields[name]!r:.60}, which must be {describe_hint(hint)}; correct it, or "
                "download the file again."
            )


def parse_settings(constructor: Callable[..., T], fields: Mapping[str, Any], file: Path, **other_arguments: Any) -> T:
    """Call `constructor` with the fields of a settings file, after checking them against its signature.

    Args:
        constructor (Callable): A dataclass, or a function with annotated parameters.
        fields (Mapping[str, Any]): Contents of the file; every field must be a parameter of `constructor`.
        file (Path): Named in errors.
        other_arguments (Any): Arguments that do not come from the file.

    Returns:
        T: result of the call.

    Raises:
        WeightsError: A field is missing, unknown, or of another type.
    """
    fields_to_check = {name: value for name, value in fields.items() if name not in other_arguments}
    check_arguments(constructor, fields_to_check, file, other_arguments)
    return constructor(**fields, **other_arguments)


def check_arguments(
    constructor: Callable[..., Any], fields: Mapping[str, Any], file: Path,
    other_arguments: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Check that the fields of a settings file match the parameters of `constructor`: none missing, none unknown.

    Args:
        constructor (Callable[..., Any]): A class, or a function with annotated parameters.
        fields (Mapping[str, Any]): Contents of the file.
        file (Path): Named in errors.
        other_arguments (Mapping[str, Any] | None): Arguments that do not come from the file. Nor does a
            `target_config`, which callers of drafter networks take from the target. A parameter `settings` is the
            `**settings` of a constructor, and never missing.

    Raises:
        WeightsError: A field is missing, unknown, or of another type.
    """
    parameters = inspect.signature(constructor).parameters
    hints = get_type_hints(constructor.__init__ if inspect.isclass(constructor) else constructor)
    if unknown := [name for name in fields if name not in parameters]:
        raise WeightsError(f"{file} has a field {unknown[0]!r:.60}, which is not known here; it is of another model.")
    supplied = {*fields, *(other_arguments or {}), "target_config"}  # `target_config`: from the target, in no file
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if missing := [name for name in required if name not in supplied and name != "settings"]:
        raise WeightsError(f"{file} has no {missing[0]}; download it again.")
    check_fields(fields, {name: hints[name] for name in fields if name in hints}, file)


def matches_hint(value: Any, hint: Any) -> bool:
    """Return whether a JSON value matches a type hint.

    A hint is a type, a union, `list[…]`, `tuple[…, ...]`, `dict[str, …]`, a `NumberRange`, or several in a tuple, of
    which one must match. Tuples are lists in JSON, and `int` means a whole number from 0.
    """
    if hint is Any:
        return True
    if isinstance(hint, tuple):
        return any(matches_hint(value, alternative) for alternative in hint)
    if isinstance(hint, NumberRange):
        return hint.contains(value)
    if hint in (int, float):
        return (INTEGER if hint is int else NUMBER).contains(value)
    origin, arguments = get_origin(hint), get_args(hint)  # list[int] has origin list and arguments (int,)
    if origin in (Union, types.UnionType):
        return any(matches_hint(value, alternative) for alternative in arguments)
    if origin in (list, tuple):
        return isinstance(value, list) and all(matches_hint(item, arguments[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(matches_hint(item, arguments[1]) for item in value.values())
    return value is None if hint is type(None) else isinstance(value, hint)


def describe_hint(hint: Any) -> str:
    """Return the values that a type hint of `matches_hint` allows, in words, for messages."""
    if isinstance(hint, tuple):
        return " or ".join(describe_hint(alternative) for alternative in hint)
    if isinstance(hint, NumberRange):
        return str(hint)
    if hint in (int, float):
        return "a whole number from 0" if hint is int else "a number"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe_hint(alternative) for alternative in arguments)
    if origin in (list, tuple):
        return f"a list, each {describe_hint(arguments[0])}"
    if origin in (dict, Mapping):
        return f"an object, each of its values {describe_hint(arguments[1])}"
    return TYPE_NAMES.get(hint, str(getattr(hint, "__name__", hint)))
