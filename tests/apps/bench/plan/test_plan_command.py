"""`polydraft bench plan`: costs of a tiny shape, saved and read back; files that hold something else are refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from polydraft.apps.bench.plan.check import checked_clients
from polydraft.apps.bench.plan.measured import MeasuredModel
from polydraft.apps.bench.plan.run import row_counts
from polydraft.apps.bench.plan.server_costs import ClientLoad, client_counts
from polydraft.apps.measure import shapes
from polydraft.core.errors import DataUnavailable

from ...command_line import assert_refused, run

TINY = LlamaConfig(
    vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
)  # fmt: skip
SHAPE = ("--shape", "tiny", "--prompt", "20", "--tokens", "40", "--tau", "3", "--rows", "4", "--device", "cpu")
DEMAND = ("--rate", "100", "--gpus", "1,1000", "--price", "2", "--latency", "60")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that a plan of a tiny shape was saved to."""
    folder = tmp_path_factory.mktemp("plan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.CONFIGS, "tiny", TINY)
        done = run("bench", "plan", *SHAPE, "--dtype", "float32", *DEMAND, "--json", "-o", folder)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((folder / "plan.json").read_text())
    return folder


def test_shape_has_prescribed_tau_and_rows(folder: Path) -> None:
    measured = MeasuredModel.from_file(folder / "measured.json")
    plain, drafted = measured.ways["plain"], measured.ways["drafted"]
    assert [step.rows for step in plain.steps] == [1, 2, 4] == [step.rows for step in drafted.steps]
    assert {step.tau for step in plain.steps} == {1.0} and {step.tau for step in drafted.steps} == {3.0}
    assert {step.nodes for step in drafted.steps} == {16} and plain.tokens == (40,) and plain.outside_seconds == 0
    assert measured.row_bytes == 2 * 2 * 32 * 4 * (20 + 40)  # keys and values, layers, width, float32, positions
    assert {path.name for path in folder.iterdir()} == {"plan.json", "plan.md", "plan.png", "measured.json"}


def test_saved_costs_give_the_same_plan(folder: Path) -> None:
    saved = json.loads((folder / "plan.json").read_text())
    done = run("bench", "plan", "--measured", folder / "measured.json", "--rows", "4", *DEMAND, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == saved


def test_table_has_both_ways_side_by_side(folder: Path) -> None:
    done = run("bench", "plan", "--measured", folder / "measured.json", "--rows", "4", *DEMAND)
    cells = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in cells if row[:1] in (["1"], ["1000"])] == [
        ["1", "plain"], ["1", "drafted"], ["1000", "plain"], ["1000", "drafted"]
    ]  # fmt: skip
    assert "memory: weights" in done.stderr


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"format": "other"}, "format"), ({"version": 2}, "version"), ({"shape": 3}, "shape"),
        ({"ways": {}}, "plain and drafted"), ({"row_bytes": None}, "row_bytes"), ({"machine": ...}, "machine is mi"),
    ],
)  # fmt: skip
def test_other_files_are_refused(folder: Path, tmp_path: Path, change: dict[str, Any], word: str) -> None:
    value = json.loads((folder / "measured.json").read_text()) | change
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({name: field for name, field in value.items() if field is not ...}))
    with pytest.raises(DataUnavailable, match=word):
        MeasuredModel.from_file(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("steps", 0, "tau"), 0), (("steps", 0, "seconds"), "fast"), (("steps", 0, "rows"), 3), (("tokens",), []),
        (("steps",), []), (("join_seconds",), -1), (("max_rows",), 0.5), (("steps", 1), 7),
    ],
)  # fmt: skip
def test_broken_costs_are_refused(folder: Path, tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    contents = json.loads((folder / "measured.json").read_text())
    place = contents["ways"]["drafted"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(contents))
    assert_refused(run("bench", "plan", "--measured", file, "--rate", "1"), "measured")


def test_contradicting_options_are_refused(folder: Path) -> None:
    measured = ("--measured", folder / "measured.json")
    assert_refused(run("bench", "plan", "--rate", "1"), "--shape")
    assert_refused(run("bench", "plan", "--rate", "1", *measured, "--shape", "small"), "--measured")
    assert_refused(run("bench", "plan", "--rate", "1", *measured, "--check"), "--check")
    assert_refused(run("bench", "plan", "--rate", "1", *measured, "--rows", "5"), "4 rows")
    assert_refused(run("bench", "plan", "--rate", "1", "--shape", "small", "--method", "auto"), "--method")
    assert_refused(run("bench", "plan", "--rate", "1", "--shape", "tiny-vlm", "--tau", "2"), "--tau")
    assert_refused(run("bench", "plan", "--rate", "1", "--shape", "tiny-vml"), "tiny-vlm")
    assert_refused(run("bench", "plan", "--rate", "1", "--measured", folder / "none.json"), "no file")


def test_counters_become_the_cost_of_a_step() -> None:
    grown = Counter({
        "requests_total{done}": 10, "steps_total": 50, "target_passes_total": 200,
        "spec_decode_num_draft_tokens_total": 1600, "generation_tokens_total": 600,
        "compute_seconds_total{join}": 1.0, "compute_seconds_total{step}": 2.0, "compute_seconds_total{publish}": 0.5,
    })  # fmt: skip
    seen = ClientLoad(1, 0.4, grown)
    step = seen.step_cost()
    assert (step.rows, step.nodes, step.seconds, step.tau) == (4.0, 8.0, 0.04, 3.0)
    assert seen.seconds("join") == 0.1 and seen.outside_seconds == pytest.approx(0.05)


def test_loads_of_the_check_are_new_ones() -> None:
    assert client_counts(8) == [1, 2, 4, 12] and client_counts(1) == [1, 2] and client_counts(2) == [1, 3]
    assert row_counts(8) == [1, 2, 4, 8] and row_counts(6) == [1, 2, 4, 6]
    assert checked_clients(8) == [3, 6, 16]
    assert not set(checked_clients(8)) & set(client_counts(8))
