"""`/metrics`: what the engine counts, in Prometheus' words; names mirror vLLM's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from polydraft.apps.server.engine.engine import Engine
from polydraft.apps.server.engine.meter import Meter
from polydraft.apps.server.engine.ticket import Ticket

PREFIX = "polydraft:"
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


class PrometheusMeter(Meter):
    """A meter that can be scraped."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self.first = Histogram(
            f"{PREFIX}time_to_first_token_seconds", "Until the first news, or the answer.", ["model"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.latency = Histogram(
            f"{PREFIX}e2e_request_latency_seconds", "Until the answer was complete.", ["model"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip

    def watch(self, engine: Engine) -> None:
        """Show the engine's numbers, too."""
        self.registry.register(Numbers(self, engine))

    def ended(self, ticket: Ticket) -> None:
        super().ended(ticket)
        if ticket.first_at is not None:
            self.first.labels(ticket.model).observe(ticket.first_at - ticket.accepted_at)
        if ticket.state == "done" and ticket.ended_at is not None:
            self.latency.labels(ticket.model).observe(ticket.ended_at - ticket.accepted_at)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Numbers:
    """What is read when it is asked for."""

    def __init__(self, meter: Meter, engine: Engine) -> None:
        self.meter, self.engine = meter, engine

    def collect(self) -> Iterator[Any]:
        names = [served.name for served in self.engine.models()]
        for name, (counted, text) in COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["model"])
            for model in names:
                family.add_metric([model], getattr(self.meter, counted)[model])
            yield family
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
                held = (ticket for ticket in self.engine.tickets if ticket.model == model and ticket.state == state)
                gauge.add_metric([model], sum(1 for _ in held))
            yield gauge
        tau = GaugeMetricFamily(f"{PREFIX}mean_accepted_length", "Tokens a pass so far.", labels=["model"])
        for model in names:
            passes = self.meter.passes[model]
            tau.add_metric([model], self.meter.tokens[model] / passes if passes else 0.0)
        yield tau
