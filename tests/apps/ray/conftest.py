"""Fixtures for a Ray cluster of two local nodes with one core each, and the service on it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from polydraft.apps.ray.cluster import quiet

from ..command_line import ROOT
from .farm import OBJECTS, Farm

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.fixture(scope="session")
def nodes() -> Iterator[None]:
    """Start two nodes and connect this process to them."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)  # Ray reads them on import, and so does every process it starts.
    quiet()
    import ray
    from ray.cluster_utils import Cluster

    common = {"num_cpus": 1, "object_store_memory": OBJECTS}
    cluster = Cluster(initialize_head=True, head_node_args=common | {"include_dashboard": False})
    try:
        cluster.add_node(**common)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        cluster.wait_for_nodes(timeout=60)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def farm(nodes: None) -> Iterator[Farm]:
    """Serve with two replicas."""
    serving = Farm({"replicas": 2, "rows": 2, "max_queue": 4})
    try:
        yield serving
    finally:
        serving.close()
