"""Prometheus endpoint `/metrics` with the counters of the engine; names mirror vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from prometheus_client import CollectorRegistry, Histogram, Info, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import polydraft
from polydraft.apps.server.api.paths import route_path
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.meter import EngineMetrics

if TYPE_CHECKING:
    pass

PREFIX = "polydraft:"
TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
USAGE = ("join", "step", "publish")  # parts of the compute thread's time, see `ComputeUsage`
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE")
LEFT = "499"  # the client closed the connection before there was an answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
COUNTERS = {
    "admission_rejections": ("rejections", "Requests refused because the queue was full."),
    "prompt_tokens": ("prompt_tokens", "Tokens read."),
    "generation_tokens": ("tokens", "Tokens committed."),
    "target_passes": ("passes", "Passes of the target, a row at a time; prefill apart."),
    "spec_decode_num_drafts": ("drafts", "Drafts scored, a row at a time."),
    "spec_decode_num_draft_tokens": ("drafted", "Tokens drafted."),
    "spec_decode_num_accepted_tokens": ("accepted", "Drafted tokens accepted."),
}


class PrometheusMeter(EngineMetrics):
    """A meter that can be scraped."""

    def __init__(self) -> None:
        super().__init__()
        self.registry: CollectorRegistry = CollectorRegistry()
        self.first: Histogram = Histogram(
            f"{PREFIX}time_to_first_token_seconds", "Until the first progress, or the answer.", ["model"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.latency: Histogram = Histogram(
            f"{PREFIX}e2e_request_latency_seconds", "Until the answer was complete.", ["model"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.queue_time: Histogram = Histogram(
            f"{PREFIX}request_queue_time_seconds", "From acceptance to the first prefill.", ["model"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.token_time: Histogram = Histogram(
            f"{PREFIX}request_time_per_output_token_seconds", "Decode time of a request by its tokens, prefill apart.",
            ["model"], buckets=TOKEN_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.responses: PrometheusCounter = PrometheusCounter(
            f"{PREFIX}http_requests", f"Responses by route and status; {LEFT}: the client left before one.",
            ["handler", "method", "status"], registry=self.registry,
        )  # fmt: skip
        build = Info(f"{PREFIX}build", "Versions of what is running.", registry=self.registry)
        build.info({"version": polydraft.__version__, "torch": torch.__version__})

    def watch(self, engine: ServerEngine) -> None:
        """Show the engine's numbers, too."""
        self.registry.register(Numbers(self, engine))

    def ended(self, handle: RequestHandle) -> None:
        super().ended(handle)
        if handle.first_at is not None:
            self.first.labels(handle.model).observe(handle.first_at - handle.accepted_at)
        if handle.started_at is not None:
            self.queue_time.labels(handle.model).observe(handle.started_at - handle.accepted_at)
        if handle.state == "done" and handle.stats is not None and handle.stats.tokens:
            self.token_time.labels(handle.model).observe(handle.stats.decode_seconds / handle.stats.tokens)
        if handle.state == "done" and handle.ended_at is not None:
            self.latency.labels(handle.model).observe(handle.ended_at - handle.accepted_at)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class CountResponses:
    """ASGI middleware that counts the responses of `served` by route, method and status."""

    def __init__(self, served: ASGIApp, routes: Sequence[Any], meter: PrometheusMeter) -> None:
        self.served: ASGIApp = served
        self.routes: Sequence[Any] = routes
        self.meter: PrometheusMeter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.served(scope, receive, send)
            return
        status = LEFT

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.served(scope, receive, send_noting_status)
        except Exception:
            status = "500" if status == LEFT else status
            raise
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.meter.responses.labels(self.handler(route_path(scope)), method, status).inc()

    def handler(self, path: str) -> str:
        """Return the template of the route that `path` belongs to, "none" for unknown paths (few label values)."""
        routes = (route for route in self.routes if hasattr(route, "path_regex"))
        return next((route.path for route in routes if route.path_regex.match(path)), "none")


class Numbers:
    """Gauges that are read when they are scraped."""

    def __init__(self, meter: EngineMetrics, engine: ServerEngine) -> None:
        self.meter: EngineMetrics = meter
        self.engine: ServerEngine = engine

    def collect(self) -> Iterator[Any]:
        names = [served.name for served in self.engine.models()]
        for name, (counted, text) in COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["model"])
            for model in names:
                family.add_metric([model], getattr(self.meter, counted)[model])
            yield family
        yield from self.usage(names)
        depths = CounterMetricFamily(
            f"{PREFIX}spec_decode_num_accepted_tokens_per_pos", "Accepted at each place.", labels=["model", "position"]
        )
        for (model, depth), count in sorted(self.meter.accepted_at.items()):
            depths.add_metric([model, str(depth - 1)], count)
        yield depths
        outcomes = CounterMetricFamily(f"{PREFIX}requests", "Requests by outcome.", labels=["model", "outcome"])
        for (model, outcome), count in sorted(self.meter.outcomes.items()):
            outcomes.add_metric([model, outcome], count)
        yield outcomes
        for state in ("running", "waiting"):
            gauge = GaugeMetricFamily(f"{PREFIX}num_requests_{state}", f"Requests {state}.", labels=["model"])
            for model in names:
                held = (handle for handle in self.engine.handles if handle.model == model and handle.state == state)
                gauge.add_metric([model], sum(1 for _ in held))
            yield gauge
        tau = GaugeMetricFamily(f"{PREFIX}mean_accepted_length", "Tokens a pass so far.", labels=["model"])
        for model in names:
            passes = self.meter.passes[model]
            tau.add_metric([model], self.meter.tokens[model] / passes if passes else 0.0)
        yield tau

    def usage(self, names: Sequence[str]) -> Iterator[CounterMetricFamily]:
        """Yield steps and seconds of the compute thread by model; with Ray, replicas compute and these stay 0."""
        steps = CounterMetricFamily(f"{PREFIX}steps", "Passes of the target over all rows.", labels=["model"])
        seconds = CounterMetricFamily(
            f"{PREFIX}compute_seconds", "Of the compute thread: join, step and publish.", labels=["model", "part"]
        )
        for model in names:
            used = self.engine.worker.usage[model]
            steps.add_metric([model], used.steps)
            for part in USAGE:
                seconds.add_metric([model, part], getattr(used, f"{part}_seconds"))
        yield steps
        yield seconds
