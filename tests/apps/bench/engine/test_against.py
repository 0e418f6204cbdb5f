"""`polydraft bench against`: two engines decode the same prompts of one model in turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polydraft.apps.bench.engine import against
from polydraft.apps.bench.engine.against import HERE, prompts_of

from ...command_line import assert_refused, run

TREE = "hydra(nodes=6)"
WORKER = """
import json, sys
from pathlib import Path
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    method, prompts, settings = json.loads(line)
    assert all(Path(picture).exists() for picture, question in prompts) and settings == {"temperature": 0.0}
    tokens, passes = {"ar": (20, 20), "hydra": (20, 8)}[method]
    print(json.dumps([%s * passes / 100, tokens, passes]), flush=True)
"""


@pytest.mark.thorough
def test_engine_compared_with_itself_agrees(tmp_path: Path) -> None:
    """Check that both generate the same tokens in equally many passes, and that the report is saved.

    The tree has a fixed size, since one that each engine tunes to its timings may differ between runs.
    """
    done = run(
        "bench", "against", HERE, "--model", "tiny-vlm", "--methods", TREE, "--prompts", "2", "--repeats", "1",
        "--json", "-o", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    plain, drafted = value["rows"]
    assert (plain["method"], drafted["method"]) == ("ar", TREE)
    for row in (plain, drafted):
        assert row["before"]["tau"] == row["after"]["tau"]
        assert row["after"]["seconds_a_token"]["median"] > 0 < row["times_as_fast"]["median"]
    assert plain["after"]["tau"] == plain["after"]["speedup"]["median"] == 1 < drafted["after"]["tau"]
    assert {path.name for path in tmp_path.iterdir()} == {"against.json", "against.md", "against.png"}


def test_times_are_measured_per_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an engine of half the speed is reported as such, with S relative to its own plain decoding."""
    other = tmp_path / "other"
    (other / "src" / "polydraft").mkdir(parents=True)
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER % "(2 if 'other' in str(sys.path) else 1)")
    monkeypatch.setattr(against, "WORKER", worker)
    done = run("bench", "against", other, "--model", "tiny-vlm", "--methods", "hydra", "--repeats", "2", "--json")
    assert done.exit_code == 0, done.stderr
    for row, tau in zip(json.loads(done.stdout)["rows"], (1, 2.5), strict=True):
        assert row["times_as_fast"]["median"] == pytest.approx(2)
        for name in ("before", "after"):
            assert row[name]["tau"] == pytest.approx(tau) == pytest.approx(row[name]["speedup"]["median"])


def test_invalid_comparisons_are_refused(tmp_path: Path) -> None:
    assert_refused(run("bench", "against", tmp_path), "no checkout of polydraft")
    assert_refused(
        run("bench", "against", HERE, "--model", "tiny-vlm", "--guidance-scale", "2"), "for models of images"
    )
    assert_refused(run("bench", "against", HERE, "--model", "tiny-vlm", "--methods", "hydar"), "hydar")
    (tmp_path / "src" / "polydraft").mkdir(parents=True)
    (tmp_path / "src" / "polydraft" / "__init__.py").write_text("raise SystemExit('none of ours')\n")
    assert_refused(run("bench", "against", tmp_path, "--model", "tiny-vlm", "--methods", "hydra"), "has ended")


@pytest.mark.parametrize(("modality", "parts"), [("image", 1), ("speech", 1), ("vlm", 2)])
def test_prompts_of_every_modality(modality: str, parts: int, tmp_path: Path) -> None:
    prompts = prompts_of(modality, 3, tmp_path)
    assert len(prompts) == 3 == len({str(prompt) for prompt in prompts}) and {len(prompt) for prompt in prompts} == {
        parts
    }
