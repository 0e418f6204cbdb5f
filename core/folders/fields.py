"""Fields of settings, checked against the types that they have in Python: what is wrong is told by name.

    config = settings_of(VQConfig, read_json(file), file)              # a dataclass
    check_fields(read_json(file), {"temperature": Range(float, 0)}, file)

A hint is a type, a union of types, `list[…]`, `tuple[…, ...]`, `dict[str, …]`, a `Range`, or several in a tuple.
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
MOST = 2**31 - 1  # of a whole number in settings: no size, id or length is larger
FAR = 1e30  # of any number: further ones have no place in 32 bits once they are multiplied
NAMES = {bool: "true or false", str: "a string", dict: "an object", type(None): "null", list: "a list"}


@dataclass(frozen=True)
class Range:
    """Numbers of a type from `least` to `most`."""

    kind: type
    least: float
    most: float = math.inf

    def __str__(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        least = "" if self.least == -math.inf else f" from {self.least:,}"
        return what + least + ("" if self.most == math.inf else f" to {self.most:,}")

    def holds(self, value: Any) -> bool:
        """Return whether `value` is such a number."""
        kinds = (int,) if self.kind is int else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
            return False
        return bool(self.least <= value <= self.most) and abs(value) <= (MOST if self.kind is int else FAR)


INTEGER, NUMBER = Range(int, 0, MOST), Range(float, -math.inf)


def check_fields(fields: Mapping[str, Any], hints: Mapping[str, Any], file: Path) -> None:
    """Check that every field that has a hint is as it says.

    Raises:
        WeightsError: names the file, the field, its value and what is allowed.
    """
    for name, hint in hints.items():
        if name in fields and not fits(fields[name], hint):
            raise WeightsError(
                f"{file} has {name}={fields[name]!r:.60}, which must be {worded(hint)}; correct it, or download the "
                "file again."
            )


def settings_of(kind: Callable[..., T], fields: Mapping[str, Any], file: Path, **given: Any) -> T:
    """Return `kind` made of the fields of a file, all of which it must know.

    Args:
        kind: a dataclass, or a function with annotated parameters.
        fields: what the file says.
        file: for errors.
        given: arguments that are not the file's.

    Raises:
        WeightsError: a field is missing, unknown, or of another type.
    """
    check_arguments(kind, {name: value for name, value in fields.items() if name not in given}, file, given)
    return kind(**fields, **given)


def check_arguments(
    kind: Callable[..., Any], fields: Mapping[str, Any], file: Path, given: Mapping[str, Any] | None = None
) -> None:
    """Check that fields of a file are the keyword arguments that `kind` takes, beside those that are `given`.

    Raises:
        WeightsError: a field is missing, unknown, or of another type.
    """
    parameters = inspect.signature(kind).parameters
    hints = get_type_hints(kind.__init__ if inspect.isclass(kind) else kind)
    if unknown := [name for name in fields if name not in parameters]:
        raise WeightsError(f"{file} has a field {unknown[0]!r:.60}, which is not known here; it is of another model.")
    known = {*fields, *(given or {}), "target_config"}
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if missing := [name for name in needed if name not in known and name != "settings"]:
        raise WeightsError(f"{file} has no {missing[0]}; download it again.")
    check_fields(fields, {name: hints[name] for name in fields if name in hints}, file)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value of JSON is what `hint` says."""
    if hint is Any:
        return True
    if isinstance(hint, tuple):
        return any(fits(value, each) for each in hint)
    if isinstance(hint, Range):
        return hint.holds(value)
    if hint in (int, float):
        return (INTEGER if hint is int else NUMBER).holds(value)
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(fits(value, each) for each in inside)
    if kind in (list, tuple):
        return isinstance(value, list) and all(fits(each, inside[0]) for each in value)
    if kind in (dict, Mapping):
        return isinstance(value, dict) and all(fits(each, inside[1]) for each in value.values())
    return value is None if hint is type(None) else isinstance(value, hint)


def worded(hint: Any) -> str:
    """Return what `hint` allows, in words."""
    if isinstance(hint, tuple):
        return " or ".join(worded(each) for each in hint)
    if isinstance(hint, Range):
        return str(hint)
    if hint in (int, float):
        return "a whole number from 0" if hint is int else "a number"
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(worded(each) for each in inside)
    if kind in (list, tuple):
        return f"a list, each {worded(inside[0])}"
    if kind in (dict, Mapping):
        return f"an object, each of its values {worded(inside[1])}"
    return NAMES.get(hint, str(getattr(hint, "__name__", hint)))
