"""`polydraft serve --ray` from start to end: a cluster, the application on it, and a shutdown that lets work finish."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from polydraft.apps.ray.cluster import cluster
from polydraft.apps.ray.ingress import NAME, application, as_given, most_replicas
from polydraft.apps.server.listening import address, bound
from polydraft.apps.server.settings import Settings
from polydraft.core.errors import InvalidArgument

Told = Callable[[str], None]
SLOW = 600.0  # seconds that models may take to load
PAUSE = 0.2


def run(settings: Settings, told: Told) -> None:
    """Serve until SIGTERM or SIGINT. The proxy of Serve listens, on the address and port of the settings."""
    listening = bound(settings)  # refused now where it is taken
    where, port = address(settings, listening), listening.getsockname()[1]
    listening.close()
    stop = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, frame: stop.set())
    cpus = settings.replicas * settings.replica_cpus
    with cluster(settings.ray_address, cpus, settings.replicas * settings.replica_gpus):
        from ray import serve

        told(f"{settings.replicas} to {most_replicas(settings)} replicas of {settings.replica_cpus:g} cores are loading")
        serve.start(proxy_location="HeadOnly", http_options={"host": settings.host, "port": port})
        try:
            serve.run(application(as_given(settings)), name=NAME, route_prefix="/", blocking=False)
            wait_ready(where, stop)
            if not stop.is_set():
                told(f"listening on {where}")
            stop.wait()
            told("taking nothing new, finishing what was accepted")
        finally:
            serve.shutdown()


def wait_ready(where: str, stop: threading.Event) -> None:
    """Until the front says that it is ready."""
    import httpx

    end = time.monotonic() + SLOW
    while not stop.wait(PAUSE):
        try:
            if httpx.get(f"{where}/ready", timeout=PAUSE * 50).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > end:
            raise InvalidArgument(f"no replica was ready after {SLOW:g} s; look at the logs of Ray.")
