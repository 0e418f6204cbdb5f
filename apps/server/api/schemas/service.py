"""`GET /v1/models`, `/health`, `/ready`, `/version`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import Metrics, ResponseModel


class ModelInfo(ResponseModel):
    """A served model: its modality (image, speech, vlm or transcription), methods, voices and sizes."""

    id: str
    root: Annotated[str, Field(description="The model's own name; differs from `id` where that is an alias.")]
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["polydraft"] = "polydraft"
    modality: str
    summary: str
    methods: list[str]
    default_method: str
    voices: list[str]
    sizes: list[str]


class ModelList(ResponseModel):
    object: Literal["list"] = "list"
    data: list[ModelInfo]


class Status(ResponseModel):
    """State of the service: ok, loading, draining or broken."""

    status: Literal["ok", "loading", "draining", "broken"]


class Version(ResponseModel):
    name: Literal["polydraft"] = "polydraft"
    version: str


class Index(Version):
    """Paths of the service; /openapi.json documents them."""

    paths: list[str]


class RequestInfo(ResponseModel):
    """A request that has ended; id: its answer's x-request-id. metrics: none where nothing was computed."""

    id: str
    model: str
    state: str
    method: str
    seed: int
    metrics: Metrics | None
