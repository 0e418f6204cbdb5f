"""`polydraft serve --ray` from start to end: a cluster, the application on it, and a shutdown that lets work finish."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.request import urlopen

from polydraft.apps.ray.cluster import cluster
from polydraft.apps.ray.ingress import NAME, application, as_given, most_replicas
from polydraft.apps.server.listening import address, bound
from polydraft.apps.server.settings import Settings
from polydraft.core.errors import InvalidArgument

Told = Callable[[str], None]
SLOW = 600.0  # seconds that models may take to load
ANSWER, PAUSE = 10.0, 0.2


def run(settings: Settings, told: Told) -> None:
    """Serve until SIGTERM or SIGINT. The proxy of Serve listens, on the address and port of the settings."""
    listening = bound(settings)  # refused now where it is taken
    where, port = address(settings, listening), listening.getsockname()[1]
    listening.close()
    stop = threading.Event()
    cpus = settings.replicas * settings.replica_cpus
    with cluster(settings.ray_address, cpus, settings.replicas * settings.replica_gpus):
        from ray import serve

        for each in (signal.SIGTERM, signal.SIGINT):  # now, since Ray takes them when it connects
            signal.signal(each, lambda number, frame: stop.set())
        told(f"{how_many(settings)} of {settings.replica_cpus:g} cores each are loading")
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


def how_many(settings: Settings) -> str:
    most = most_replicas(settings)
    return f"{settings.replicas} to {most} replicas" if most > settings.replicas else f"replicas ({most})"


def wait_ready(where: str, stop: threading.Event) -> None:
    """Until the front says that it is ready."""
    end = time.monotonic() + SLOW
    while not stop.wait(PAUSE):
        with suppress(OSError), urlopen(f"{where}/ready", timeout=ANSWER) as answer:  # other statuses are OSError, too
            if answer.status == 200:
                return
        if time.monotonic() > end:
            raise InvalidArgument(f"no replica was ready after {SLOW:g} s; look at the logs of Ray.")
