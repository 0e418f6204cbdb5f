"""`polydraft bench neighbours`: engines, busy loops beside them, and the reported factors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polydraft.apps.bench.engine import against
from polydraft.apps.lab.bench import neighbours

from ...command_line import assert_refused, run

# takes as many seconds as there are busy loops beside it, and one
WORKER = """
import json, os, subprocess, sys
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    method, prompts, settings = json.loads(line)
    listed = subprocess.run(["ps", "-ww", "-o", "args=", "--ppid", str(os.getppid())], capture_output=True, text=True)
    loops = listed.stdout.count("while os.getppid()")
    print(json.dumps([20.0 * (1 + loops), 20, 20]), flush=True)
"""


def test_neighbours_runs_loops_beside_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(against, "WORKER", worker)
    out = tmp_path / "out"
    done = run("bench", "neighbours", "--model", "tiny-vlm", "--loops", "2,1", "--repeats", "1", "--json", "-o", out)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["method"], row["loops"]) for row in rows] == [
        (method, loops) for method in ("ar", "hydra") for loops in (0, 1, 2)
    ]
    for row in rows:
        assert row["seconds_a_token"]["median"] == row["factor"]["median"] == 1 + row["loops"]
    assert {path.name for path in out.iterdir()} == {"neighbours.json", "neighbours.md", "neighbours.png"}


def test_neighbours_invalid_arguments_are_refused(tmp_path: Path) -> None:
    assert_refused(run("bench", "neighbours", "--loops", "many"), "--loops")
    assert_refused(run("bench", "neighbours", "--checkout", tmp_path), "no checkout")


def test_busy_loops_end_with_their_block() -> None:
    with pytest.raises(ValueError), neighbours.busy_loops(1):
        raise ValueError
