"""The front: the same FastAPI application as `polydraft serve`, behind Ray Serve's proxy and before the replicas.

from ray import serve
serve.run(application({"speech": "tiny-speech", "replicas": 2}))       # or: serve run apps/ray/serve.yaml

There is one front; it computes nothing. The page at /ui needs the models in its own process, so it is not here.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from polydraft.apps.ray.cluster import needs_ray
from polydraft.apps.ray.named import Named
from polydraft.apps.server.engine.engine import Engine
from polydraft.apps.server.settings import Settings, settings

FRONT, REPLICA = "Front", "Replica"
NAME = "polydraft"  # of the application
MODELS = 3  # modalities, each with rows of its own
CALLS = 1000  # requests that the front has open; its own admission is narrower, and /health is exempt from it
LAST_WORDS, PAUSE = 5.0, 0.2  # seconds for answers to leave the front after all work is done, and between looks
BUILT: list[tuple[Named, Engine]] = []  # applications of this process, with their engines
WAIT = 2  # seconds that Serve tells a client to wait whom the front cannot even hear


def application(given: dict[str, Any] | None = None) -> Any:
    """What Serve runs. given: settings, as in a TOML file; whatever is missing comes from the environment."""
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
            """replicas: bound so that Serve deploys them; `front` finds them by name."""

        async def drain(self, seconds: float) -> None:
            """Finish what this process accepted; the command calls it before it shuts Serve down."""
            from polydraft.apps.ray import ingress  # this class travels by value, and with it copies of what it names

            for app, engine in ingress.BUILT:
                await drained(app, engine, seconds)

    bound: Any = Front
    return bound.bind(replica)


async def drained(app: Named, engine: Engine, seconds: float) -> None:
    """Take nothing new, wait for what was accepted, and for its answers to leave; as `polydraft serve` does."""
    await engine.drain(seconds)
    end = asyncio.get_running_loop().time() + LAST_WORDS
    while app.open and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(PAUSE)
    await asyncio.sleep(PAUSE)  # in which the proxy hands on the last of them


def front(given: dict[str, Any]) -> Any:
    """The application in the front's process, whose event loop runs."""
    from ray import serve

    from polydraft.apps.ray.remote import RemoteEngine
    from polydraft.apps.server import logs
    from polydraft.apps.server.api.app import create_app, guarded
    from polydraft.apps.server.api.metrics import PrometheusMeter
    from polydraft.apps.server.engine.engine import Limits

    chosen = Settings(**given)
    logs.configure(chosen.log_level)
    limits = Limits(chosen.rows, chosen.max_queue, chosen.deadline, chosen.draft_rows)
    meter = PrometheusMeter()
    handle = serve.get_deployment_handle(REPLICA)
    engine = RemoteEngine(handle, limits, meter, most_replicas(chosen), chosen.alias)
    meter.watch(engine)
    app = create_app(chosen, engine)
    app.state.attaching = asyncio.ensure_future(engine.attach())
    named = Named(guarded(app, chosen))
    BUILT.append((named, engine))
    return named


def as_given(chosen: Settings) -> dict[str, Any]:
    """Settings as plain data, which replicas on other machines take without a look at their own environment."""
    return chosen.model_dump() | {"api_key": chosen.key}


def most_replicas(chosen: Settings) -> int:
    return max(chosen.replicas, chosen.max_replicas or 1)


def replica_options(chosen: Settings) -> dict[str, Any]:
    """How many processes there are, what each needs, and how many requests go to one and wait for any.

    A replica is sent as many requests as it can decode together, the rest waits for whichever is free first; what finds
    no place in that queue is refused. Between two bounds replicas follow the requests under way and waiting.
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


def front_options(chosen: Settings) -> dict[str, Any]:
    return {
        "num_replicas": 1, "ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": CALLS,
        "max_queued_requests": CALLS, "backpressure_config": {"status_code": 429, "retry_after_s": WAIT},
        "graceful_shutdown_timeout_s": chosen.drain,
    }  # fmt: skip


def threads(chosen: Settings) -> int:
    return chosen.threads or max(1, math.floor(chosen.replica_cpus))
