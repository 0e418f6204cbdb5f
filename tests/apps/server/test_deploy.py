"""Deployment files: the container and the systemd unit use a command, files and settings that exist."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from polydraft.apps.cli.main import app
from polydraft.apps.server.settings import settings

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "apps" / "server" / "deploy"
pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="only a checkout has it")


def options() -> set[str]:
    """Return the options of `polydraft serve`."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


def is_known_command(command: list[str]) -> bool:
    given = {word.partition("=")[0] for word in command if word.startswith("--")}
    return command[:2][-1] == "serve" and given <= options()


def test_dockerfile_paths_command_and_extras_exist() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert {"src", "core", "modalities", "apps", "assets", "pyproject.toml"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    (entry,) = (json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT"))
    assert entry[0] == "polydraft" and is_known_command(entry) and "USER polydraft" in lines
    extras = re.search(r"\.\[([a-z,]+)\]", "\n".join(lines))
    assert extras and "serve" in extras[1].split(",")


def test_systemd_unit_command_exists_and_awaits_drain() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "polydraft.service")
    service = unit["Service"]
    assert is_known_command(service["ExecStart"].split()) and service["ExecStart"].split()[0].endswith("/bin/polydraft")
    assert float(service["TimeoutStopSec"]) > settings({}, DEPLOY / "server.toml").drain


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "polydraft.service"
    text = (DEPLOY / "polydraft.service").read_text()
    unit.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={shutil.which('true')}", text))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
