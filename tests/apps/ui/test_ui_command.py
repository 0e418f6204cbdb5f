"""`polydraft ui`: refusals before anything is loaded, and serving the page until it is stopped."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ..command_line import ENVIRONMENT, assert_refused, run
from .conftest import PATIENCE


def test_other_hosts_require_open_option() -> None:
    assert_refused(run("ui", "--host", "0.0.0.0", "--port", "0"), "--open")


def test_used_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert_refused(run("ui", "--port", str(taken.getsockname()[1])), "--port")


def test_installed_models_join_the_embedded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_settings")
    from polydraft.apps.cli.ui import with_installed_models
    from polydraft.apps.server.settings import EMBEDDED, settings
    from polydraft.modalities.packaged import PackagedModel

    can_be_loaded = property(lambda model: model.name == "whisper-base")
    monkeypatch.setattr(PackagedModel, "can_be_loaded", can_be_loaded)
    assert with_installed_models(settings({})).models == [*EMBEDDED, "whisper-base"]
    assert with_installed_models(settings({"vlm": "tiny-vlm"})).models == []  # What is named, and nothing else.
    monkeypatch.setattr("polydraft.apps.cli.ui.find_spec", lambda name: None)  # Nothing reads sound files.
    assert with_installed_models(settings({})).models == []


def test_ui_serves_the_page_until_stopped(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")
    command = [sys.executable, "-m", "polydraft", "ui", "--port", "0", "--vlm", "tiny-vlm"]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "POLYDRAFT_API_KEY": "a key of the server, not the page's"}
    notes = tmp_path / "notes.txt"
    with notes.open("w") as log, subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
    ) as page:  # fmt: skip
        try:
            assert page.stdout is not None
            with selectors.DefaultSelector() as waiting:
                waiting.register(page.stdout, selectors.EVENT_READ)
                assert waiting.select(PATIENCE), f"no output in {PATIENCE} s: {notes.read_text()}"
            address = page.stdout.readline().strip()
            assert address.endswith("/ui/"), (address, notes.read_text())
            with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
                assert b"gradio_config" in answer.read()
            os.kill(page.pid, signal.SIGINT)
            assert page.wait(PATIENCE) == 0
        finally:
            page.kill()
    assert "Traceback" not in notes.read_text()
