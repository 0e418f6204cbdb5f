"""`polydraft serve --ray` from start to end: a cluster, the application on it, and a shutdown that lets work finish.

On SIGTERM or SIGINT the front refuses new work and finishes accepted requests, while Serve keeps running; only then is
Serve shut down, which drops the rest. A second signal shuts it down at once.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

from polydraft.apps.ray.cluster import cluster
from polydraft.apps.ray.ingress import FRONT, NAME, application, as_given, most_replicas
from polydraft.apps.server.listening import address, bound
from polydraft.apps.server.models import check
from polydraft.apps.server.run import SIGNALS, Publish, StopSignals, choices, unfailing
from polydraft.apps.server.settings import ServerSettings
from polydraft.core.errors import InvalidArgument

SLOW = 600.0  # seconds that models may take to load
ANSWER, PAUSE = 10.0, 0.2
LAST_WORDS = 5.0  # seconds for answers to leave the proxy, after all work is done


def run(settings: ServerSettings, publish: Publish) -> None:
    """Serve until SIGTERM or SIGINT. The proxy of Serve listens, on the address and port of the settings."""
    for choice in choices(settings) if settings.ray_address is None else ():  # a cluster may have folders of its own
        check(choice)
    listening = bound(settings)  # refused now where it is taken
    where, port = address(settings, listening), listening.getsockname()[1]
    listening.close()
    cpus = settings.replicas * settings.replica_cpus
    with cluster(settings.ray_address, cpus, settings.replicas * settings.replica_gpus):
        from ray import serve

        signals = StopSignals(threading.Event)
        for each in SIGNALS:  # now, since Ray takes them when it connects
            signal.signal(each, lambda number, frame: signals.take(signal.Signals(number).name))
        host(serve, settings, where, port, signals, unfailing(publish))


def host(serve: Any, settings: ServerSettings, where: str, port: int, signals: StopSignals, publish: Publish) -> None:
    """Run the application on Ray Serve until a signal, and drain it; `serve` is the module `ray.serve`."""
    publish(f"{how_many(settings)} of {settings.replica_cpus:g} cores each are loading")
    serve.start(proxy_location="HeadOnly", http_options={"host": settings.host, "port": port})
    try:
        serve.run(application(as_given(settings)), name=NAME, route_prefix="/", blocking=False)
        wait_ready(where, signals.finish)
        if not signals.finish.is_set():
            publish(f"listening on {where}")
            signals.finish.wait()
            publish(f"{signals.name}: taking nothing new, finishing what was accepted")
            drain(serve.get_deployment_handle(FRONT, app_name=NAME), settings.drain, signals, publish)
    finally:
        serve.shutdown()


def drain(front: Any, seconds: float, signals: StopSignals, publish: Publish) -> None:
    """Let the front finish accepted requests, for `seconds` or until a second signal; `front` is its handle."""
    draining, end = front.drain.remote(seconds), time.monotonic() + seconds + LAST_WORDS
    while not signals.end.is_set() and time.monotonic() < end:
        try:
            draining.result(timeout_s=PAUSE)
            return
        except TimeoutError:
            continue
        except Exception as error:  # noqa: BLE001 - there is no front any more
            publish(f"the front ended before it was drained ({type(error).__name__})")
            return
    with suppress(Exception):  # cancels what is under way, so that replicas end
        front.drain.remote(0.0).result(timeout_s=LAST_WORDS)


def how_many(settings: ServerSettings) -> str:
    most = most_replicas(settings)
    return f"{settings.replicas} to {most} replicas" if most > settings.replicas else f"replicas ({most})"


def wait_ready(where: str, stop: threading.Event) -> None:
    """Wait until the front is ready."""
    end = time.monotonic() + SLOW
    while not stop.wait(PAUSE):
        with suppress(OSError), urlopen(f"{where}/ready", timeout=ANSWER) as answer:  # other statuses are OSError, too
            if answer.status == 200:
                return
        if time.monotonic() > end:
            raise InvalidArgument(f"no replica was ready after {SLOW:g} s; look at the logs of Ray.")
