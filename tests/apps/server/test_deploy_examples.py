"""Kubernetes and compose files: every variable, option, path, port and metric that they name exists in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from polydraft.apps.cli.main import app
from polydraft.apps.server.api.metrics import COUNTERS
from polydraft.apps.server.settings import OPTIONS, ServerSettings

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "deploy"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="only a checkout has it")
FILES = sorted(EXAMPLES.rglob("*.yaml"))
OTHER_VARIABLES = {"POLYDRAFT_CACHE", "POLYDRAFT_NATIVE"}  # read elsewhere than in the server's settings
METRICS = {
    f"polydraft:{name}"
    for name in (*(f"{name}_total" for name in COUNTERS), "num_requests_waiting", "num_requests_running")
} | {"polydraft:compute_seconds_total", "polydraft:steps_total"}


def documents() -> list[dict[str, Any]]:
    """Return every YAML document."""
    return [value for file in FILES for value in yaml.safe_load_all(file.read_text())]


def known_variables() -> set[str]:
    """Return the environment variables that the server reads."""
    return {f"POLYDRAFT_{name.upper()}" for name in (*ServerSettings.model_fields, *OPTIONS)} | OTHER_VARIABLES


def unknown_variables(text: str) -> set[str]:
    return set(re.findall(r"\bPOLYDRAFT_\w+", text)) - known_variables()


def resource(kind: str) -> dict[str, Any]:
    """Return the one manifest of a kind."""
    (found,) = [value for value in documents() if value.get("kind") == kind]
    return found


def container() -> dict[str, Any]:
    """Return the container of the deployment."""
    (found,) = resource("Deployment")["spec"]["template"]["spec"]["containers"]
    return found


def environment() -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container()["env"]}


def values_of(value: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key anywhere in a document."""
    if isinstance(value, dict):
        yield from (inner for name, inner in value.items() if name == key)
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from values_of(inner, key)


TEXTS = [*FILES, EXAMPLES / "README.md", ROOT / "docs" / "sizing.md"]


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_variables_and_metrics_exist(file: Path) -> None:
    text = file.read_text()
    assert unknown_variables(text) == set()
    assert set(re.findall(r"polydraft:\w+", text)) - {"polydraft:latest"} <= METRICS
    assert unknown_variables("POLYDRAFT_ROWS POLYDRAFT_ROW POLYDRAFT_API_KEY") == {"POLYDRAFT_ROW"}


def test_settings_accept_the_values() -> None:
    names = {f"POLYDRAFT_{option.upper()}": field for option, field in OPTIONS.items()}
    values = {
        names.get(name, name.removeprefix("POLYDRAFT_").lower()): value for name, value in environment().items()
        if name.startswith("POLYDRAFT_") and name not in OTHER_VARIABLES
    }  # fmt: skip
    assert set(values) >= {"models", "rows", "drain"}
    ServerSettings(**values)


def test_arguments_are_options_of_serve() -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"].values()
    for given in (container()["args"], *(service["command"] for service in services)):
        assert {word for word in given if word.startswith("--")} <= known


def test_probes_ask_for_paths_of_the_server() -> None:
    routes = (ROOT / "apps" / "server" / "api" / "routes" / "service.py").read_text()
    probes = {name: container()[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["path"] for probe in probes.values()} == {"/health", "/ready"}
    assert all(f'"{probe["path"]}"' in routes for probe in probes.values())
    assert probes["livenessProbe"]["path"] == "/health"  # a server that drains or loads is not to be killed


def test_ports_are_those_of_the_image() -> None:
    image = (ROOT / "apps" / "server" / "deploy" / "Dockerfile").read_text()
    (port,) = re.findall(r"^EXPOSE (\d+)$", image, re.MULTILINE)
    assert [given["containerPort"] for given in container()["ports"]] == [int(port)]
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"].values()
    assert all(mapping.split(":")[-1] == port for service in compose for mapping in service["ports"])
    assert resource("Service")["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]


def test_pods_live_longer_than_their_drain() -> None:
    pod = resource("Deployment")["spec"]["template"]["spec"]
    pause = float(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + float(environment()["POLYDRAFT_DRAIN"]) + 5
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]["polydraft"]
    assert float(compose["stop_grace_period"].removesuffix("s")) > float(compose["environment"]["POLYDRAFT_DRAIN"])


def test_files_that_are_named_exist() -> None:
    for file in FILES:
        value = yaml.safe_load(file.read_text())
        assert all((file.parent / name).exists() for names in values_of(value, "resources") if isinstance(names, list)
                   for name in names)  # fmt: skip
        for build in values_of(value, "build"):
            assert (file.parent / build["context"] / build["dockerfile"]).is_file()
        for path in re.findall(r"apps/server/[\w/]+", file.read_text()):
            assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def test_key_comes_from_the_secret() -> None:
    secret = resource("Secret")
    assert set(secret["stringData"]) == {"POLYDRAFT_API_KEY"}
    assert container()["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
