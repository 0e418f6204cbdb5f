"""Check public arguments and convert them to plain Python types.

    n = to_integer("n", n, least=1)                # numpy's and torch's 3 become 3; True, 3.0 and "3" are errors
    speed = to_float("speed", speed, least=0.25, most=4)
    voice = to_optional(to_string, "voice", voice) # None stays None

Impossible values raise an InvalidArgument of one sentence, before anything is loaded or computed.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from polydraft.core.errors import InvalidArgument

T = TypeVar("T")
MAX_SHOWN_LENGTH = 60  # characters of a value in a message
MAX_NAME_LENGTH = 4096  # characters; no file system allows longer paths, and no name of a model or method is longer


def argument_error(name: str, value: Any, allowed: str) -> InvalidArgument:
    """Return the error for an argument whose value is not allowed.

    Args:
        name (str): The argument's name.
        value (Any): The value passed, of any type and size.
        allowed (str): Description of the allowed values, to follow "it must be".
    """
    return InvalidArgument(f"{name}={format_value(value)} is not possible; it must be {allowed}.")


def format_value(value: Any) -> str:
    """Return a value of any type and size as one short line, for error messages."""
    if type(value) is str and len(value) <= MAX_SHOWN_LENGTH:
        return repr(value)
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python refuses to convert integers of more than 4300 digits
        text = f"a number of more than {len(str(2**10_000)):,} digits"
    return " ".join(text.split())[: 2 * MAX_SHOWN_LENGTH]


def to_optional(convert: Callable[..., T], name: str, value: Any, *bounds: Any) -> T | None:
    """Return None for None, and `convert(name, value, *bounds)` for anything else.

    `convert` is one of the functions of this module, and `bounds` its further arguments, such as least and most.
    """
    return None if value is None else convert(name, value, *bounds)


def to_integer(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Return an integer of Python, numpy or torch as a Python int.

    Args:
        name (str): The argument's name, for the error message.
        value (Any): The argument's value.
        least (int): Smallest allowed value.
        most (int | None): Largest allowed value; None: no limit.

    Raises:
        InvalidArgument: The value is no integer (True and 3.0 are none), or outside the limits.
    """
    allowed = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises any of them for tensors of several numbers
        raise argument_error(name, value, allowed) from error
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise argument_error(name, value, allowed)
    return number


def to_boolean(name: str, value: Any) -> bool:
    """Return `value` if it is True or False; `name` is the argument's, for the error message.

    Raises:
        InvalidArgument: The value is something else.
    """
    if not isinstance(value, bool):
        raise argument_error(name, value, "True or False")
    return value


def to_float(name: str, value: Any, least: float, most: float) -> float:
    """Return a number of any type as a Python float.

    Args:
        name (str): The argument's name, for the error message.
        value (Any): The argument's value.
        least (float): Smallest allowed value.
        most (float): Largest allowed value.

    Raises:
        InvalidArgument: The value is no number, NaN, or outside the limits.
    """
    allowed = f"a number from {least:g} to {most:g}"
    number = to_real(name, value, allowed)
    if not least <= number <= most:
        raise argument_error(name, value, allowed)
    return number


def to_real(name: str, value: Any, allowed: str = "a number") -> float:
    """Return a number of any type as a Python float, infinite if it is too large for one; NaN stays NaN.

    `name` and `allowed`, a description of the allowed values, are for the error message.

    Raises:
        InvalidArgument: The value is no number.
    """
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")  # strings have neither
    try:
        if not is_number or isinstance(value, bool):
            raise TypeError(type(value))
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError) as error:  # arrays and tensors of several numbers
        raise argument_error(name, value, allowed) from error


def to_string(name: str, value: Any, allowed: str = "a string") -> str:
    """Return `value` if it is a string; `name` and `allowed`, the description of allowed values, are for the error.

    Raises:
        InvalidArgument: The value is no string.
    """
    if not isinstance(value, str):
        raise argument_error(name, value, allowed)
    return value


def to_name(name: str, value: Any) -> str:
    """Return the name or path of a model, a codec or a drafter as a string; `name` is the argument's, for the error.

    Raises:
        InvalidArgument: The value is neither a string nor a path, or no file system allows it.
    """
    allowed = f"a name or a folder's path, of at most {MAX_NAME_LENGTH} characters"
    try:
        text = os.fspath(value)
        length = len(os.fsencode(text))
    except (TypeError, UnicodeEncodeError) as error:  # no path, or characters that are not allowed in a path
        raise argument_error(name, value, allowed) from error
    if not isinstance(text, str) or length > MAX_NAME_LENGTH or "\0" in text:
        raise argument_error(name, value, allowed)
    return text


def to_names(name: str, value: Any) -> tuple[str, ...]:
    """Return one name or path, or several in an ordered container, as a tuple of strings; empty for None.

    Args:
        name (str): The argument's name, for the error message.
        value (Any): The argument's value.

    Raises:
        InvalidArgument: The value is neither, or no file system allows one of the names.
    """
    if value is None or isinstance(value, (str, bytes, os.PathLike)):
        return () if value is None else (to_name(name, value),)
    return tuple(to_name(name, item) for item in to_items(name, value, "a name or a folder's path, or several"))


def to_strings(name: str, value: Any, allowed: str) -> tuple[str, ...]:
    """Return one string, or several in an ordered container, as a tuple; empty for None.

    `name` and `allowed`, a description of the allowed values, are for the error message.

    Raises:
        InvalidArgument: The value is neither, or one of the strings is empty.
    """
    items = () if value is None else (value,) if isinstance(value, str) else value
    strings = to_items(name, items, allowed)
    if not all(isinstance(string, str) and string for string in strings):
        raise argument_error(name, value, allowed)
    return tuple(strings)


def to_items(name: str, value: Any, allowed: str) -> list[Any]:
    """Return the items of a list, a tuple, an array, or any other ordered iterable.

    `name` and `allowed`, a description of the allowed values, are for the error message.

    Raises:
        InvalidArgument: The value is no ordered iterable, or a string.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping, set, frozenset)):
        raise argument_error(name, value, allowed)
    try:
        return list(value)
    except TypeError as error:  # also raised for numpy's and torch's arrays without dimensions
        raise argument_error(name, value, allowed) from error


def to_callback(name: str, value: Any) -> Any:
    """Return `value` if it is callable; `name` is the argument's, for the error message.

    Raises:
        InvalidArgument: The value is not callable.
    """
    if not callable(value):
        raise argument_error(name, value, "a function, or be left out")
    return value
