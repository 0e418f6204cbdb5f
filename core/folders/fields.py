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
TYPE_NAMES = {bool: "true or false", str: "a string", dict: "an object", type(None): "null", list: "a list"}


@dataclass(frozen=True)
class NumberRange:
    """Type hint of numbers of one type from `minimum` to `maximum`."""

    number_type: type
    minimum: float
    maximum: float = math.inf

    def __str__(self) -> str:
        noun = "a whole number" if self.number_type is int else "a number"
        least = "" if self.minimum == -math.inf else f" from {self.minimum:,}"
        return noun + least + ("" if self.maximum == math.inf else f" to {self.maximum:,}")

    def contains(self, value: Any) -> bool:
        """Return whether `value` is such a number; booleans are none."""
        kinds = (int,) if self.number_type is int else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
            return False
        limit = MAX_INTEGER if self.number_type is int else MAX_NUMBER
        return bool(self.minimum <= value <= self.maximum) and abs(value) <= limit


INTEGER, NUMBER = NumberRange(int, 0, MAX_INTEGER), NumberRange(float, -math.inf)


def check_fields(fields: Mapping[str, Any], hints: Mapping[str, Any], file: Path) -> None:
    """Check every field that has a type hint.

    Raises:
        WeightsError: A value does not match; the message names file, field, value and what is allowed.
    """
    for name, hint in hints.items():
        if name in fields and not matches_hint(fields[name], hint):
            raise WeightsError(
                f"{file} has {name}={fields[name]!r:.60}, which must be {describe_hint(hint)}; correct it, or "
                "download the file again."
            )


def parse_settings(kind: Callable[..., T], fields: Mapping[str, Any], file: Path, **given: Any) -> T:
    """Call `kind` with the fields of a file, all of which must be parameters of it.

    Args:
        kind (Callable): A dataclass, or a function with annotated parameters.
        fields (Mapping[str, Any]): Contents of the file.
        file (Path): Named in errors.
        given (Any): Arguments that do not come from the file.

    Raises:
        WeightsError: A field is missing, unknown, or of another type.
    """
    check_arguments(kind, {name: value for name, value in fields.items() if name not in given}, file, given)
    return kind(**fields, **given)


def check_arguments(
    kind: Callable[..., Any], fields: Mapping[str, Any], file: Path, given: Mapping[str, Any] | None = None
) -> None:
    """Check that the fields of a file are the keyword arguments of `kind`, apart from those in `given`.

    Raises:
        WeightsError: A field is missing, unknown, or of another type.
    """
    parameters = inspect.signature(kind).parameters
    hints = get_type_hints(kind.__init__ if inspect.isclass(kind) else kind)
    if unknown := [name for name in fields if name not in parameters]:
        raise WeightsError(f"{file} has a field {unknown[0]!r:.60}, which is not known here; it is of another model.")
    known = {*fields, *(given or {}), "target_config"}
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if missing := [name for name in required if name not in known and name != "settings"]:
        raise WeightsError(f"{file} has no {missing[0]}; download it again.")
    check_fields(fields, {name: hints[name] for name in fields if name in hints}, file)


def matches_hint(value: Any, hint: Any) -> bool:
    """Return whether a JSON value matches a type hint."""
    if hint is Any:
        return True
    if isinstance(hint, tuple):
        return any(matches_hint(value, each) for each in hint)
    if isinstance(hint, NumberRange):
        return hint.contains(value)
    if hint in (int, float):
        return (INTEGER if hint is int else NUMBER).contains(value)
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(matches_hint(value, each) for each in inside)
    if kind in (list, tuple):
        return isinstance(value, list) and all(matches_hint(each, inside[0]) for each in value)
    if kind in (dict, Mapping):
        return isinstance(value, dict) and all(matches_hint(each, inside[1]) for each in value.values())
    return value is None if hint is type(None) else isinstance(value, hint)


def describe_hint(hint: Any) -> str:
    """Return what a type hint allows, in words."""
    if isinstance(hint, tuple):
        return " or ".join(describe_hint(each) for each in hint)
    if isinstance(hint, NumberRange):
        return str(hint)
    if hint in (int, float):
        return "a whole number from 0" if hint is int else "a number"
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(describe_hint(each) for each in inside)
    if kind in (list, tuple):
        return f"a list, each {describe_hint(inside[0])}"
    if kind in (dict, Mapping):
        return f"an object, each of its values {describe_hint(inside[1])}"
    return TYPE_NAMES.get(hint, str(getattr(hint, "__name__", hint)))
