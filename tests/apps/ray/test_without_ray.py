"""Behaviour without the extra `ray`: Ray is not imported, and commands that need it name the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polydraft.apps.bench.vlm.sets import SetOptions
from polydraft.apps.ray import batch, cluster
from polydraft.apps.ray.cluster import enough
from polydraft.core.errors import InvalidArgument

from ..command_line import ENVIRONMENT, assert_refused, run

JOB = {"id": "a", "modality": "image", "prompt": "a cat"}
IMPORTS = """
import sys
class Never:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise AssertionError(f"{name} is imported")
sys.meta_path.insert(0, Never())
import polydraft.apps.cli.main, polydraft.apps.server.run
import polydraft.apps.ray.batch, polydraft.apps.ray.deployment, polydraft.apps.ray.remote, polydraft.apps.ray.run
"""


def test_ray_is_imported_only_on_request() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_asker_loads_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str | None] = []
    monkeypatch.setattr(batch, "load", lambda name, **loading: given.append(loading["reference"]))
    settings = SetOptions("tiny-vlm", ["ar"], "accuracy", 0, 0.0, None, 1, reference="terms.txt")
    batch.Asker(".", settings, batch.BatchArguments("emoji-qa:1", None, None, "cpu", "auto"))
    assert given == ["terms.txt"]


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)


def test_commands_name_the_extra(without_ray: None, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(json.dumps(JOB) + "\n")
    out = tmp_path / "out"
    for command in (
        ["serve", "--ray", "--port", "0"],
        ["batch", "run", jobs, "--out", out, "--ray"],
        ["batch", "vlm", "--tasks", "emoji-qa:2", "--out", out, "--ray"],
    ):
        assert_refused(run(*command), "polydraft[ray]")
    assert not out.exists()


def test_insufficient_cluster_resources_are_refused() -> None:
    enough({"CPU": 2.0}, 2, 0)
    with pytest.raises(InvalidArgument, match="3 cores .* has 2"):
        enough({"CPU": 2.0}, 3, 0)
    with pytest.raises(InvalidArgument, match="1 GPUs .* has 0"):
        enough({"CPU": 2.0}, 1, 1)


def test_serve_yaml_settings_exist() -> None:
    import yaml

    from polydraft.apps.ray import ingress
    from polydraft.apps.ray.ingress import most_replicas, replica_options
    from polydraft.apps.server.settings import settings

    (app,) = yaml.safe_load((Path(ingress.__file__).parent / "serve.yaml").read_text())["applications"]
    chosen = settings(app["args"])
    assert app["import_path"] == "polydraft.apps.ray.ingress:application" and most_replicas(chosen) == 4
    scaling = replica_options(chosen)["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 4)
    assert replica_options(settings({"replicas": 3, "ray": True}))["num_replicas"] == 3
