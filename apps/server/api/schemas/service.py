"""`GET /v1/models`, `/health`, `/ready`, `/version`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import Metrics, Told


class ModelInfo(Told):
    """modality: image, speech or vlm; methods: what its `method` may be; voices, sizes: what else it can."""

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


class ModelList(Told):
    object: Literal["list"] = "list"
    data: list[ModelInfo]


class Status(Told):
    """status: ok, loading, draining or broken."""

    status: Literal["ok", "loading", "draining", "broken"]


class Version(Told):
    name: Literal["polydraft"] = "polydraft"
    version: str


class Index(Version):
    """paths: what there is; /openapi.json says more."""

    paths: list[str]


class RequestInfo(Told):
    """A request that has ended; id: its answer's x-request-id. metrics: none where nothing was computed."""

    id: str
    model: str
    state: str
    method: str
    seed: int
    metrics: Metrics | None
