"""The application: routes, errors in OpenAI's envelope, guards around everything, and the page where it is installed.

app = create_app(settings({"port": 8000}), engine)
uvicorn.run(app.guarded, ...)          # or: polydraft serve
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

import polydraft
from polydraft.apps.server.api import envelope
from polydraft.apps.server.api.guards import OPEN, Guards
from polydraft.apps.server.api.ignored import IgnoredFields
from polydraft.apps.server.api.metrics import CountResponses, PrometheusMeter
from polydraft.apps.server.api.page import mount_page
from polydraft.apps.server.api.paths import HeadAsGet, RootPath
from polydraft.apps.server.api.ranges import IgnoreUnusableRanges
from polydraft.apps.server.api.recent import Recent
from polydraft.apps.server.api.routes import chat, images, service, speech, transcriptions
from polydraft.apps.server.api.sessions import Sessions
from polydraft.apps.server.api.uploads import UploadSlots
from polydraft.apps.server.engine.engine import Limits, ServerEngine
from polydraft.apps.server.limits import SoundLimits
from polydraft.apps.server.settings import ServerSettings

PARTS = (images, speech, transcriptions, chat, service)
EXPOSED = [  # response headers that pages of other origins may read
    "retry-after", "x-request-id", "x-polydraft-seed", "x-polydraft-method", "x-polydraft-model", "x-polydraft-metrics",
]  # fmt: skip


def create_engine(settings: ServerSettings) -> ServerEngine:
    """Return an engine with the limits of the settings and Prometheus metrics."""
    meter = PrometheusMeter()
    limits = Limits(settings.rows, settings.max_queue, settings.deadline, settings.draft_rows)
    engine = ServerEngine(limits, meter, settings.alias)
    meter.watch(engine)
    return engine


def create_app(settings: ServerSettings, engine: ServerEngine) -> FastAPI:
    """Return the API of `engine`, documented by /openapi.json alone: other pages would load scripts of other hosts."""
    app = FastAPI(title="polydraft", version=polydraft.__version__, docs_url=None, redoc_url=None)
    app.state.engine, app.state.settings, app.state.recent = engine, settings, Recent()
    app.state.ignored, app.state.uploads = IgnoredFields(), UploadSlots()
    for part in PARTS:
        app.include_router(part.router)
    envelope.install(app)
    app.add_middleware(IgnoreUnusableRanges)
    app.openapi = lambda: documented(app, settings)  # type: ignore[method-assign]
    sound_limits = SoundLimits(settings.max_upload_bytes, settings.max_sound_seconds)
    app.state.page = settings.ui and mount_page(app, engine, sound_limits)
    return app


def guarded(app: FastAPI, settings: ServerSettings, sessions: Sessions | None = None) -> ASGIApp:
    """Return `app` wrapped in its middleware.

    Args:
        sessions: browser sessions; given if several applications share them.
    """
    served: ASGIApp = Guards(
        HeadAsGet(app), settings.key, settings.names, settings.max_body, settings.max_upload_bytes,
        settings.cors_origins, sessions or Sessions(),
    )  # fmt: skip
    if isinstance(meter := app.state.engine.meter, PrometheusMeter):
        routes = [*(route for part in PARTS for route in part.router.routes), *app.routes]
        served = CountResponses(served, routes, meter)
    if settings.root_path:
        served = RootPath(served, settings.root_path)
    if settings.cors_origins:
        served = CORSMiddleware(
            served, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=EXPOSED,
        )  # fmt: skip
    return served


def documented(app: FastAPI, settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI document with the actual refusals and, where a key is needed, the security scheme."""
    if app.openapi_schema is None:
        key, prefix = bool(settings.key), settings.root_path
        servers = [{"url": prefix}] if prefix else None
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes, servers=servers)
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # bad requests are 400 here
                if key and path not in OPEN:
                    operation["security"] = [{"key": []}]
        parts = schema.setdefault("components", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            parts.get("schemas", {}).pop(unused, None)
        if key:
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = schema
    return app.openapi_schema
