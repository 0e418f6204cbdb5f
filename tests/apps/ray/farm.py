"""The service on a cluster that is there, and what tests ask of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from polydraft.apps.ray.ingress import NAME, REPLICA, application

LONG = 120  # seconds that nothing here takes, however slow the machine is
LOOPBACK = "127.0.0.1"
OBJECTS = 80 * 2**20  # bytes of shared memory a node; Ray takes no less
T = TypeVar("T")


class Farm:
    """url: of Serve's proxy. given: settings."""

    def __init__(self, given: dict[str, Any]) -> None:
        from ray import serve

        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        serve.start(proxy_location="HeadOnly", http_options={"host": LOOPBACK, "port": port})
        self.url = f"http://{LOOPBACK}:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=LONG)
        self.deploy(given)

    def deploy(self, given: dict[str, Any]) -> None:
        """Run with these settings, instead of others."""
        from ray import serve

        serve.run(application(given | {"log_level": "error"}), name=NAME, route_prefix="/")
        self.wait_ready()

    def wait_ready(self) -> None:
        self.until(lambda: self.http.get("/ready").status_code == 200)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=LONG, **options)

    def replicas(self) -> dict[int, dict[str, Any]]:
        """What replicas say of themselves, by process; each call asks one, so some may be missing."""
        from ray import serve

        handle = serve.get_deployment_handle(REPLICA, app_name=NAME)
        said = [handle.counts.remote() for _ in range(4)]
        return {one["process"]: one for one in (each.result(timeout_s=LONG) for each in said)}

    def until(self, found: Callable[[], T]) -> T:
        """Ask until there is something."""
        end = time.monotonic() + LONG
        while not (there := found()):
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.05)
        return there

    def outcomes(self) -> dict[str, float]:
        """Of requests, by the front's numbers."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == "polydraft:requests_total":
                    outcome = sample.labels["outcome"]
                    found[outcome] = found.get(outcome, 0) + sample.value
                if sample.name == "polydraft:admission_rejections_total":
                    found["rejected"] = found.get("rejected", 0) + sample.value
        return found

    def close(self) -> None:
        from ray import serve

        self.http.close()
        serve.shutdown()
