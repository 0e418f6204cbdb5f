"""The page: a head, five tabs, and where it is mounted.

    app = FastAPI()
    mount(app, engine)      # the page is at /ui; the engine has started

Nothing is asked of another host: no fonts, no scripts, no analytics, no share links.
"""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported

import gradio as gr
from fastapi import FastAPI, Response

import polydraft
from polydraft.apps.server.engine.engine import Engine
from polydraft.apps.ui.again import restored
from polydraft.apps.ui.scenes import thumbnails
from polydraft.apps.ui.sounds import Sounds
from polydraft.apps.ui.tabs import ask, compare, draw, models, speak
from polydraft.apps.ui.tabs.desk import AT_ONCE, Desk, Offer, html
from polydraft.apps.ui.theme import theme
from polydraft.apps.ui.upload import uploads_only
from polydraft.apps.ui.views import chrome

TABS = {"draw": ("Draw", draw.tab), "speak": ("Speak", speak.tab), "ask": ("Ask", ask.tab),
        "compare": ("Compare", compare.tab), "models": ("Models", models.tab)}  # fmt: skip
LARGEST_UPLOAD = "8mb"
WAITING = 64  # events in the queue; the engine has its own


def build(engine: Engine, sounds: Sounds | None = None) -> gr.Blocks:
    """All of it, for an engine that has started. sounds: where a player fetches speech from (`mount` serves them)."""
    at = Desk(engine, sounds or Sounds(), offers(engine))
    with gr.Blocks(title="polydraft", fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        html(chrome.head(polydraft.__version__), elem_id="head")
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            for name, (title, tab) in TABS.items():
                with gr.Tab(title, id=name, elem_id=f"tab-{name}"):
                    tab(at)
        opened(page, tabs, at)
    uploads_only(page)
    page.queue(max_size=WAITING, default_concurrency_limit=None)
    return page


def offers(engine: Engine) -> dict[str, Offer]:
    """The first model of each modality."""
    found: dict[str, Offer] = {}
    for served in engine.models():
        grid = served.pipe.grid if served.modality == "image" else (0, 0)
        found.setdefault(served.modality, Offer(served.card, served.default_method, served.voices, grid))
    return found


def opened(page: gr.Blocks, tabs: gr.Tabs, at: Desk) -> None:
    """A link's tab is shown and its settings stand in the controls."""
    boxes = [(tab, name, box) for tab, named in at.links.items() for name, box in named.items()]

    def restore(request: gr.Request) -> list[Any]:
        query = dict(request.query_params)
        tab = query.get("tab", "")
        if tab not in TABS:
            return [gr.skip()] * (len(boxes) + 1)
        values = restored(query, {name: box.value for name, box in at.links.get(tab, {}).items()})
        mine = [gr.update(value=values[name]) if of == tab and name in values else gr.skip() for of, name, _ in boxes]
        return [gr.Tabs(selected=tab), *mine]

    page.load(restore, None, [tabs, *(box for _, _, box in boxes)], **AT_ONCE)


def mount(app: FastAPI, engine: Engine, path: str = "/ui") -> FastAPI:
    """Put the page, and the speech that its player fetches, at `path` of `app`."""
    sounds = Sounds()
    app.include_router(sounds.router(), prefix=path)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(chrome.ICON, media_type="image/svg+xml")

    here = files("polydraft.apps.ui")
    script, style = ((here / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    return gr.mount_gradio_app(
        app, build(engine, sounds), path=path, theme=theme(), css=f"{style}\n{thumbnails()}",
        head=f"<script>{script}</script>", footer_links=[], show_error=False, max_file_size=LARGEST_UPLOAD,
        ssr_mode=False, run_history=False, enable_monitoring=False,
    )  # fmt: skip
