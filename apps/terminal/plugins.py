"""Optional parts of a checkout that the wheel leaves out, found through the entry points of pyproject.toml.

add_commands = load_plugin("commands")
if add_commands is not None:
    add_commands(bench, train)
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

GROUP = "polydraft.plugins"


def load_plugin(name: str) -> Any:
    """Return what the entry point `name` refers to, or None where its module is not installed.

    The metadata of a wheel lists entry points whose modules the wheel does not hold.
    """
    try:
        entry_points = distribution("polydraft").entry_points.select(group=GROUP, name=name)
    except PackageNotFoundError:  # a source tree that was never installed
        return None
    return next((found.load() for found in entry_points if is_installed(found.module)), None)


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without executing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
