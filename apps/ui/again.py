"""Links that restore the controls of a result, and lines of Python that generate it again.

link("draw", {"prompt": "a cat", "seed": 7})                # "?tab=draw&prompt=a+cat&seed=7"
python("generate_image", ["a cat"], {"seed": 7}, ".image.save('picture.png')")
restored({"seed": "7", "temperature": "warm"}, {"seed": 0, "temperature": 0.7})   # {"seed": 7}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

LONGEST = 20_000  # characters of a setting


def link(tab: str, settings: Mapping[str, Any]) -> str:
    """Query parameters of the page; what is None is left to the model."""
    given = {name: value for name, value in settings.items() if value is not None and value != ""}
    return "?" + urlencode({"tab": tab} | given)


def python(function: str, arguments: Sequence[Any], settings: Mapping[str, Any], then: str) -> str:
    """Return a line of Python that calls `function` of the package; arguments that are None are left out."""
    given = [repr(value) for value in arguments]
    given += [f"{name}={value!r}" for name, value in settings.items() if value is not None]
    return f"from polydraft import {function}; {function}({', '.join(given)}){then}"


def changed(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the model's defaults; settings without a default stay."""
    return {name: value for name, value in settings.items() if name not in defaults or defaults[name] != value}


def restored(query: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a link names, parsed by the type of each in `known`; others are left out."""
    found: dict[str, Any] = {}
    for name, defaults in known.items():
        if name in query:
            value = read(query[name], defaults)
            if value is not None:
                found[name] = value
    return found


def remembered(text: str) -> dict[str, str]:
    """Return what a browser remembered before a reload, as a link would spell it; {} of anything else."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return {}
    return {name: str(value) for name, value in values.items()} if isinstance(values, dict) else {}


def read(text: str, defaults: Any) -> Any:
    """`text` as a value like `own`; None if it is none."""
    if isinstance(defaults, bool):
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower())
    if isinstance(defaults, (int, float)):
        try:
            value = type(defaults)(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None
    return text[:LONGEST]
