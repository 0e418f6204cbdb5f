"""Client of the service on a running cluster, for tests."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from polydraft.apps.ray.ingress import NAME, REPLICA, application

LONG = 120  # Timeout in seconds, far above what any test takes.
LOOPBACK = "127.0.0.1"
OBJECTS = 80 * 2**20  # bytes of shared memory a node; Ray takes no less
T = TypeVar("T")


class Farm:
    """Service on the running cluster; `url` is the address of Serve's proxy and `given` are the server settings."""

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
        """Deploy the service with these settings, replacing an earlier deployment."""
        from ray import serve

        serve.run(application(given | {"log_level": "error"}), name=NAME, route_prefix="/")
        self.wait_ready()

    def wait_ready(self) -> None:
        self.wait_for(lambda: self.http.get("/ready").status_code == 200)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=LONG, **options)

    def replicas(self) -> dict[int, dict[str, Any]]:
        """Return the counts of replicas by process id; each call reaches one replica, so some may be missing."""
        from ray import serve

        handle = serve.get_deployment_handle(REPLICA, app_name=NAME)
        responses = [handle.counts.remote() for _ in range(4)]
        return {one["process"]: one for one in (each.result(timeout_s=LONG) for each in responses)}

    def wait_for(self, condition: Callable[[], T]) -> T:
        """Poll `condition` until it returns something true, and return that."""
        end = time.monotonic() + LONG
        while not (result := condition()):
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.05)
        return result

    def outcomes(self) -> dict[str, float]:
        """Return the number of requests by outcome from the front's metrics."""
        counts: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == "polydraft:requests_total":
                    outcome = sample.labels["outcome"]
                    counts[outcome] = counts.get(outcome, 0) + sample.value
                if sample.name == "polydraft:admission_rejections_total":
                    counts["rejected"] = counts.get("rejected", 0) + sample.value
        return counts

    def close(self) -> None:
        from ray import serve

        self.http.close()
        serve.shutdown()
