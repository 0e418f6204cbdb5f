"""Checks of what callers pass, and the plain Python types that it becomes: the one place public arguments go through.

    n = to_integer("n", n, least=1)                # numpy's and torch's 3 become 3; True, 3.0 and "3" are refused
    speed = to_float("speed", speed, least=0.25, most=4)
    voice = optional(to_string, "voice", voice)    # None stays None

What is refused is an InvalidArgument of one sentence, before anything is loaded or computed.
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
LONGEST_SHOWN = 60  # characters of a value in a message
LONGEST_NAME = 4096  # characters of a path; no file system takes more, and no name of a model or method has as many


def refusal(name: str, value: Any, allowed: str) -> InvalidArgument:
    """Return the error that says an argument is not possible.

    Args:
        name (str): The argument's name.
        value (Any): What was passed, of any type and size.
        allowed (str): What it must be.
    """
    return InvalidArgument(f"{name}={shown(value)} is not possible; it must be {allowed}.")


def shown(value: Any) -> str:
    """Return a value as a short line, whatever it is."""
    if type(value) is str and len(value) <= LONGEST_SHOWN:
        return repr(value)
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        text = f"a number of more than {len(str(2**10_000)):,} digits"
    return " ".join(text.split())[: 2 * LONGEST_SHOWN]


def optional(convert: Callable[..., T], name: str, value: Any, *bounds: Any) -> T | None:
    """Return None for None, and what `convert` makes of anything else."""
    return None if value is None else convert(name, value, *bounds)


def to_integer(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Return an integer of Python's, numpy's or torch's kind as Python's.

    Raises:
        InvalidArgument: It is none, or not from `least` to `most`.
    """
    allowed = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises any of them for tensors of several numbers
        raise refusal(name, value, allowed) from error
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise refusal(name, value, allowed)
    return number


def to_float(name: str, value: Any, least: float, most: float) -> float:
    """Return a number of any kind as a float of Python's.

    Raises:
        InvalidArgument: It is none, or not from `least` to `most`.
    """
    allowed = f"a number from {least:g} to {most:g}"
    number = to_real(name, value, allowed)
    if not least <= number <= most:
        raise refusal(name, value, allowed)
    return number


def to_real(name: str, value: Any, allowed: str = "a number") -> float:
    """Return a number of any kind as a float of Python's, infinite where it is too large for one; nan stays nan.

    Raises:
        InvalidArgument: It is no number.
    """
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")  # which strings have not
    try:
        if not is_number or isinstance(value, bool):
            raise TypeError(type(value))
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError) as error:  # arrays and tensors of several numbers
        raise refusal(name, value, allowed) from error


def to_string(name: str, value: Any, allowed: str = "a string") -> str:
    """Return a string.

    Raises:
        InvalidArgument: It is none.
    """
    if not isinstance(value, str):
        raise refusal(name, value, allowed)
    return value


def to_name(name: str, value: Any) -> str:
    """Return the name or path of a model, a codec or a drafter as a string.

    Raises:
        InvalidArgument: It is neither a string nor a path, or no file system takes it.
    """
    allowed = f"a name or a folder's path, of at most {LONGEST_NAME} characters"
    try:
        text = os.fspath(value)
        length = len(os.fsencode(text))
    except (TypeError, UnicodeEncodeError) as error:  # of what is no path, and of characters that no path has
        raise refusal(name, value, allowed) from error
    if not isinstance(text, str) or length > LONGEST_NAME or "\0" in text:
        raise refusal(name, value, allowed)
    return text


def to_strings(name: str, value: Any, allowed: str) -> tuple[str, ...]:
    """Return one string, or each of several in any container, as a tuple; None is none.

    Raises:
        InvalidArgument: It is neither, or one of them is empty.
    """
    given = () if value is None else (value,) if isinstance(value, str) else value
    strings = to_items(name, given, allowed)
    if not all(isinstance(each, str) and each for each in strings):
        raise refusal(name, value, allowed)
    return tuple(strings)


def to_items(name: str, value: Any, allowed: str) -> list[Any]:
    """Return the items of a list, a tuple, an array, or anything else that is iterated over in order.

    Raises:
        InvalidArgument: It is no such container; strings and mappings are none.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping, set, frozenset)):
        raise refusal(name, value, allowed)
    try:
        return list(value)
    except TypeError as error:  # numpy's and torch's arrays without dimensions, too
        raise refusal(name, value, allowed) from error


def to_callback(name: str, value: Any) -> Any:
    """Return a function.

    Raises:
        InvalidArgument: It cannot be called.
    """
    if not callable(value):
        raise refusal(name, value, "a function, or be left out")
    return value
