"""Front: the same FastAPI application as `polydraft serve`, behind Ray Serve's proxy and before the replicas.

from ray import serve
serve.run(application({"speech": "tiny-speech", "replicas": 2}))       # or: serve run apps/ray/serve.yaml

There is one front; it computes nothing. It has no page at /ui, which needs the models in its process.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from polydraft.apps.ray.cluster import needs_ray
from polydraft.apps.ray.named import Named
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.settings import ServerSettings, settings

FRONT, REPLICA = "Front", "Replica"
NAME = "polydraft"  # of the application
MODELS = 4  # modalities, each with separate batch rows
CALLS = 1000  # open requests of the front; its admission is narrower, and /health is exempt from it
LAST_WORDS, PAUSE = 5.0, 0.2  # seconds for answers to leave the front after all work is done, and between looks
BUILT: list[tuple[Named, ServerEngine]] = []  # applications of this process, with their engines
WAIT = 2  # seconds that Serve tells a client to wait whom the front cannot even hear


def application(given: dict[str, Any] | None = None) -> Any:
    """Return the application that Serve runs; missing settings come from the environment."""
    needs_ray()
    from ray import serve

    from polydraft.apps.ray.deployment import Replica

    chosen = settings(dict(given or {}) | {"ui": False, "ray": True})
    plain = as_given(chosen)
    deployment: Any = serve.deployment  # its types forget what a decorated class becomes
    replica = deployment(Replica, name=REPLICA, **replica_options(chosen)).bind(plain)

    def build() -> Any:
        return front(plain)

    @deployment(name=FRONT, **front_options(chosen))
    @serve.ingress(build)
    class Front:
        def __init__(self, replicas: Any) -> None:
            """Bind the replicas, so that Serve deploys them; `front` finds them by name."""

        async def drain(self, seconds: float) -> None:
            """Finish accepted requests of this process; called before Serve is shut down."""
            from polydraft.apps.ray import ingress  # this class travels by value, and with it copies of what it names

            for app, engine in ingress.BUILT:
                await drained(app, engine, seconds)

    bound: Any = Front
    return bound.bind(replica)


async def drained(app: Named, engine: ServerEngine, seconds: float) -> None:
    """Accept nothing new, finish accepted requests and send their responses, as `polydraft serve` does."""
    await engine.drain(seconds)
    end = asyncio.get_running_loop().time() + LAST_WORDS
    while app.open and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(PAUSE)
    await asyncio.sleep(PAUSE)  # in which the proxy hands on the last of them


def front(given: dict[str, Any]) -> Any:
    """Return the application of the front's process, whose event loop runs."""
    from ray import serve

    from polydraft.apps.ray.remote import RemoteEngine
    from polydraft.apps.server import logs
    from polydraft.apps.server.api.app import create_app, guarded
    from polydraft.apps.server.api.metrics import PrometheusMeter
    from polydraft.apps.server.engine.engine import Limits

    chosen = ServerSettings(**given)
    logs.configure(chosen.log_level)
    limits = Limits(chosen.rows, chosen.max_queue, chosen.deadline, chosen.draft_rows)
    meter = PrometheusMeter()
    deployment = serve.get_deployment_handle(REPLICA)
    engine = RemoteEngine(deployment, limits, meter, most_replicas(chosen), chosen.alias)
    meter.watch(engine)
    app = create_app(chosen, engine)
    app.state.attaching = asyncio.ensure_future(engine.attach())
    named = Named(guarded(app, chosen))
    BUILT.append((named, engine))
    return named


def as_given(chosen: ServerSettings) -> dict[str, Any]:
    """Return settings as plain data, which replicas on other machines use instead of their environment."""
    return chosen.model_dump() | {"api_key": chosen.key}


def most_replicas(chosen: ServerSettings) -> int:
    return max(chosen.replicas, chosen.max_replicas or 1)


def replica_options(chosen: ServerSettings) -> dict[str, Any]:
    """Return the options of the deployment: number of replicas, resources of each, and bounds on requests.

    A replica receives as many requests as it can decode together; the rest waits for the first free replica, and
    requests beyond that queue are refused. Between two bounds the number of replicas follows running and waiting
    requests.
    """
    together = chosen.rows * MODELS
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": chosen.replica_cpus, "num_gpus": chosen.replica_gpus}
        | {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads(chosen))}}},
        "max_ongoing_requests": together, "max_queued_requests": max(1, chosen.max_queue * MODELS),
        "graceful_shutdown_timeout_s": chosen.drain, "health_check_period_s": 5, "health_check_timeout_s": 60,
    }  # fmt: skip
    if most_replicas(chosen) == chosen.replicas:
        return options | {"num_replicas": chosen.replicas}
    return options | {
        "autoscaling_config": {
            "min_replicas": chosen.replicas, "max_replicas": most_replicas(chosen),
            "target_ongoing_requests": chosen.rows,
        }
    }  # fmt: skip


def front_options(chosen: ServerSettings) -> dict[str, Any]:
    return {
        "num_replicas": 1, "ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": CALLS,
        "max_queued_requests": CALLS, "backpressure_config": {"status_code": 429, "retry_after_s": WAIT},
        "graceful_shutdown_timeout_s": chosen.drain,
    }  # fmt: skip


def threads(chosen: ServerSettings) -> int:
    return chosen.threads or max(1, math.floor(chosen.replica_cpus))
