"""Helpers that run a command in this process and check refusals."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from polydraft.apps.cli.main import app

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


def run(*arguments: str | Path) -> Any:
    """Invoke the command, and keep its log handlers, whose streams close with it, from later tests."""
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        logging.root.handlers[:], logging.root.level = handlers, level


def assert_refused(done: Any, word: str) -> None:
    assert done.exit_code == 2, (done.exit_code, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and lines[0].endswith("."), done.stderr
    assert word in lines[0] and len(lines[0]) < 400
