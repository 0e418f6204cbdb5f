"""The page: a head, six tabs, and where it is mounted.

    app = FastAPI()
    mount(app, engine)      # the page is at /ui; the engine has started

Nothing is asked of another host: no fonts, no scripts, no analytics, no share links.
"""

from __future__ import annotations

import json
import os
from importlib.resources import files
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported

import gradio as gr
from fastapi import FastAPI, Response
from starlette.routing import Mount

import polydraft
from polydraft.apps.server.engine.engine import Served, ServerEngine
from polydraft.apps.server.limits import LARGEST_PICTURE, SoundLimits
from polydraft.apps.ui.again import remembered, restored
from polydraft.apps.ui.gate import Gate
from polydraft.apps.ui.live import LiveCaptions
from polydraft.apps.ui.scenes import thumbnails
from polydraft.apps.ui.sounds import Sounds
from polydraft.apps.ui.tabs import ask, compare, draw, listen, models, speak
from polydraft.apps.ui.tabs.desk import AT_ONCE, PRIVATE, Desk, Offer, html, optional_inputs
from polydraft.apps.ui.theme import theme
from polydraft.apps.ui.upload import Uploads, upload_folder, uploads_only
from polydraft.apps.ui.views import chrome

TABS = {"draw": ("Draw", draw.tab), "speak": ("Speak", speak.tab), "listen": ("Listen", listen.tab),
        "ask": ("Ask", ask.tab), "compare": ("Compare", compare.tab), "models": ("Models", models.tab)}  # fmt: skip
MODALITIES = ("image", "speech", "transcription", "vlm")  # that tabs are for
WAITING = 64  # events in the queue; the engine has its own


def build(
    engine: ServerEngine, sounds: Sounds | None = None, sound_limits: SoundLimits | None = None
) -> gr.Blocks:
    """Build the page for an engine that has started; players fetch speech from `sounds`, which `mount` serves."""
    upload_folder()  # before Gradio's components ask where theirs is
    transcribers = {served.name: offer(served) for served in engine.models() if served.modality == "transcription"}
    at = Desk(engine, sounds or Sounds(), offers(engine), transcribers, sound_limits or SoundLimits())
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


def offers(engine: ServerEngine) -> dict[str, Offer]:
    """Return the first model of each modality that the page has a tab for."""
    found: dict[str, Offer] = {}
    for served in engine.models():
        if served.modality in MODALITIES and served.modality not in found:
            found[served.modality] = offer(served)
    return found


def offer(served: Served) -> Offer:
    """Return a model as the page offers it."""
    draws = served.modality == "image"
    grid, reads = (served.pipe.grid, optional_inputs(served.pipe)) if draws else ((0, 0), frozenset[str]())
    languages = tuple(served.pipe.languages) if served.modality == "transcription" else ()
    return Offer(served.card, served.default_method, served.voices, grid, reads, languages)


def opened(page: gr.Blocks, tabs: gr.Tabs, at: Desk) -> None:
    """Restore tab and controls from a link, or after a reload from those that were there before."""
    boxes = {f"{tab}.{name}": box for tab, named in at.links.items() for name, box in named.items()}
    memory = gr.Textbox(visible=False)  # what page.js kept over a reload

    def restore(memory: str, request: gr.Request) -> list[Any]:
        wanted = remembered(memory) or settings_of(dict(request.query_params))
        values = restored(wanted, {name: box.value for name, box in boxes.items()})
        tab = gr.Tabs(selected=wanted["tab"]) if wanted.get("tab") in TABS else gr.skip()
        return [tab, *(gr.update(value=values[name]) if name in values else gr.skip() for name in boxes)]

    page.load(restore, memory, [tabs, *boxes.values()], js="() => [window.polydraft.remembered()]", **AT_ONCE)
    gr.on(
        [box.change for box in boxes.values()], None, list(boxes.values()), api_visibility=PRIVATE,
        js=f"(...values) => window.polydraft.remember({json.dumps(list(boxes))}, values)",
    )  # fmt: skip


def settings_of(query: dict[str, str]) -> dict[str, str]:
    """Return a link's tab, and its settings by the names that all tabs together have."""
    tab = query.pop("tab", "")
    return {"tab": tab} | {f"{tab}.{name}": value for name, value in query.items()}


def mount(
    app: FastAPI, engine: ServerEngine, sound_limits: SoundLimits | None = None, path: str = "/ui"
) -> FastAPI:
    """Put the page, the speech that its player fetches and what people upload at `path` of `app`."""
    sound_limits = sound_limits or SoundLimits()
    sounds, uploads = Sounds(), Uploads(upload_folder(), max_sound_bytes=sound_limits.max_bytes)
    for router in (sounds.router(), uploads.router(), LiveCaptions(engine).router()):
        app.include_router(router, prefix=path)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(chrome.ICON, media_type="image/svg+xml")

    here = files("polydraft.apps.ui")
    style, *scripts = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "record.js"))
    gr.mount_gradio_app(
        app, build(engine, sounds, sound_limits), path=path, theme=theme(), css=f"{style}\n{thumbnails()}",
        head="".join(f"<script>{script}</script>" for script in scripts), footer_links=[], show_error=False,
        max_file_size=max(LARGEST_PICTURE, sound_limits.max_bytes), ssr_mode=False, run_history=False,
        enable_monitoring=False,
    )  # fmt: skip
    [mounted] = [route for route in app.routes if isinstance(route, Mount) and route.path == path]
    mounted.app = Gate(mounted.app, upload_folder())
    return app
