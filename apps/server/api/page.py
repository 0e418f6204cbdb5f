"""Page at `/ui`, mounted if the extra `ui` is installed; the only module that imports it."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI

from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.limits import SoundLimits

log: logging.Logger = logging.getLogger("polydraft.server")
PAGE = "polydraft.apps.ui.page"  # has mount(app, engine, sound_limits)


def page_is_here() -> bool:
    """Check whether the page and its dependencies are installed."""
    parents = ("gradio", "polydraft.apps.ui", PAGE)
    return all(find_spec(name) is not None for name in parents)


def mount_page(app: FastAPI, engine: ServerEngine, sound_limits: SoundLimits) -> bool:
    """Mount the page at /ui; return whether it is installed."""
    try:
        if not page_is_here():
            return False
    except ModuleNotFoundError:  # a parent of what was looked for is missing
        return False
    import_module(PAGE).mount(app, engine, sound_limits)
    return True
