"""Ray cluster: an existing one, or one of this machine alone, as quiet and as closed as Ray allows.

with cluster(address, cpus=2):      # address: "auto" or host:port of a running one; None: start one, and end it
    ...

Ray's processes listen on some ports of all interfaces, whatever address they are given. A cluster that is started here
requires a token that only its processes know; still, keep the machine's firewall shut. No usage is reported.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from polydraft.core.checks.extras import missing_package_error
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument

OBJECTS = 200_000_000  # bytes of shared memory; what crosses is small
LOOPBACK = "127.0.0.1"


def needs_ray() -> None:
    """Raise MissingPackage where Ray is not installed."""
    if find_spec("ray") is None:
        raise missing_package_error("ray", "--ray")


def quiet() -> None:
    """Before Ray is imported: nothing is reported to anybody, nor printed between the results on standard output."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")


def closed() -> None:
    """Before Ray is imported: whoever talks to the cluster must know its token."""
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def cluster(address: str | None, cpus: float, gpus: float = 0) -> Iterator[None]:
    """Connect to a cluster with that many cores and accelerators; one that was started here ends with the block."""
    needs_ray()
    quiet()
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is None:
        closed()
    import ray

    if ray.is_initialized():  # by whoever called
        yield
        return
    try:
        if address is None:
            ray.init(
                address="local", include_dashboard=False, object_store_memory=OBJECTS, log_to_driver=False,
                logging_level=logging.WARNING, _node_ip_address=LOOPBACK,
            )  # fmt: skip
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise system_error(error, "Ray cannot be started") or InvalidArgument(
            f"the Ray cluster {address or 'of this machine'} cannot be used ({first_line(error)}); give the address "
            "of one that runs, or none."
        ) from error
    try:
        enough(ray.cluster_resources(), cpus, gpus)
        yield
    finally:
        ray.shutdown()


def enough(there: dict[str, float], cpus: float, gpus: float) -> None:
    """Refuse a request for resources that the cluster never has."""
    for kind, wanted, name in (("CPU", cpus, "cores"), ("GPU", gpus, "GPUs")):
        if wanted > there.get(kind, 0):
            raise InvalidArgument(
                f"{wanted:g} {name} are asked for and the cluster has {there.get(kind, 0):g}; ask for fewer replicas, "
                "or smaller ones."
            )


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
