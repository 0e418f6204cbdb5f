"""Index, models, health and numbers: `/`, `/v1/models`, `/v1/requests`, `/health`, `/ready`, `/metrics`, `/version`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST

import polydraft
from polydraft.apps.server.api.metrics import PrometheusMeter
from polydraft.apps.server.api.recent import Recent
from polydraft.apps.server.api.routes.documented import TheEngine, refusals
from polydraft.apps.server.api.schemas.service import Index, ModelInfo, ModelList, RequestInfo, Status, Version
from polydraft.apps.server.engine.engine import Served
from polydraft.core.errors import UnknownModel

router: APIRouter = APIRouter(tags=["service"])
DOWN: dict[int | str, dict[str, Any]] = {503: {"model": Status, "description": "Not now; status says why."}}
TEXT: dict[str, Any] = {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/", responses=refusals() | {307: {"description": "To the page, for browsers where there is one."}})
async def index(request: Request) -> Index:
    """List the paths of the service; browsers are redirected to the page if it is installed."""
    root = request.scope.get("root_path", "")
    if request.app.state.page and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(f"{root}/ui/")  # type: ignore[return-value]
    paths = [*sorted(request.app.openapi()["paths"]), "/openapi.json", *(["/ui/"] if request.app.state.page else [])]
    return Index(version=polydraft.__version__, paths=[f"{root}{path}" for path in paths])


@router.get("/health", responses=refusals() | DOWN)
async def health(engine: TheEngine) -> Status:
    """Report whether the process is alive; needs no key."""
    if engine.started and not engine.healthy:
        return JSONResponse({"status": "broken"}, 503)  # type: ignore[return-value]
    return Status(status="ok")


@router.get("/ready", responses=refusals() | DOWN)
async def ready(engine: TheEngine) -> Status:
    """Report whether new requests are accepted: models are loaded and the server is not draining; needs no key."""
    if engine.draining or not engine.ready:
        return JSONResponse({"status": "draining" if engine.draining else "loading"}, 503)  # type: ignore[return-value]
    return Status(status="ok")


@router.get("/version", responses=refusals())
async def version() -> Version:
    return Version(version=polydraft.__version__)


@router.get("/metrics", response_class=PlainTextResponse, responses=refusals() | {200: TEXT})
async def numbers(engine: TheEngine) -> Response:
    """Return the engine's metrics in Prometheus format."""
    assert isinstance(engine.meter, PrometheusMeter)
    return Response(engine.meter.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models", responses=refusals())
async def models(engine: TheEngine) -> ModelList:
    """List the served models and their aliases."""
    named_models = [info(served, served.name) for served in engine.models()]
    return ModelList(data=named_models + [info(engine.model(alias), alias) for alias in engine.aliases])


@router.get("/v1/models/{model:path}", responses=refusals(404))
async def model(model: Annotated[str, Path(min_length=1, max_length=200)], engine: TheEngine) -> ModelInfo:
    """Describe a model by its name, an alias, or organisation/name where the operator named it so."""
    return info(engine.model(model), model)


@router.get("/v1/requests/{id}", responses=refusals(404))
async def one_request(id: Annotated[str, Path(min_length=1, max_length=64)], request: Request) -> RequestInfo:
    """Return the outcome of a request by its x-request-id; the last thousand are kept."""
    recent: Recent = request.app.state.recent
    if id not in recent.records:
        raise UnknownModel("no request with this id has ended lately; take the header x-request-id of its answer.")
    return recent.records[id]


def info(served: Served, name: str) -> ModelInfo:
    """Return the description of a model under one of its names."""
    return ModelInfo(
        id=name, root=served.name, created=served.created, modality=served.modality, summary=served.summary,
        methods=served.methods, default_method=served.default_method, voices=served.voices,
        sizes=[served.size] if served.size else [],
    )  # fmt: skip
