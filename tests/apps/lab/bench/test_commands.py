"""Benches of the lab: one true run of each command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.apps.lab.bench import costs
from polydraft.modalities.model_card import embedded_models_dir

from ....covering import first

runner = CliRunner()


def test_fidelity_command(tmp_path: Path) -> None:
    done = runner.invoke(app, ["bench", "fidelity", "--n", "2", "-o", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert set(value["shares"]) >= {"ok", "objects", "count", "relation", "background"}
    assert len(value["missed"]) == round(2 * (1 - value["shares"]["ok"]))
    assert (tmp_path / "fidelity.png").exists()


def test_costs_write_changes_window_acceptance_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "NODES", (0, 4))
    monkeypatch.setattr(costs, "WINDOWS", (8,))
    monkeypatch.setattr(costs, "REPEATS", 1)
    model = shutil.copytree(embedded_models_dir() / "tiny-image", tmp_path / "model")
    before = json.loads((model / "polydraft.json").read_text())
    arguments = ["--model", str(model), "--prompts", "1", "--write", "-o", str(tmp_path / "out"), "--json"]
    done = runner.invoke(app, ["bench", "costs", *arguments])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    measured = {name: value[name] for name in ("jacobi_committed", "local_committed")}
    assert all(list(taus) == ["8"] and taus["8"] > 1.2 for taus in measured.values())
    assert set(value["pass_ms"]) == {"1", f"{before['defaults']['guidance_scale']:g}"}
    assert all(set(column) == {"0", "4"} for column in value["pass_ms"].values())
    after = json.loads((model / "polydraft.json").read_text())
    assert after == before | measured and list(after) == list(before)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"costs.json", "costs.md", "costs.png"}


@pytest.mark.thorough
def test_depth_command(tmp_path: Path) -> None:
    done = runner.invoke(
        app,
        ["bench", "depth", "--prompts", "1", "--temperature", "1", "--guidance", "1", "--methods",
         "jacobi(window=8),sjd(window=8)", "-o", str(tmp_path), "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["sampling"]["temperature"] == 1
    assert [row["guarantee"] for row in value["rows"]] == ["identical", "exact"]
    for row in value["rows"]:
        shares = row["acceptance"]
        assert len(shares) <= 8 and shares == sorted(shares, reverse=True)
        assert 1 + sum(shares) == pytest.approx(row["tau"], abs=0.05) and row["tau"] > 1.2
    assert {path.name for path in tmp_path.iterdir()} == {"depth.json", "depth.md", "depth.png"}


@pytest.mark.thorough
def test_frontier_command(tmp_path: Path) -> None:
    arguments = ["--n", "2", "--timed", "1", "--batch", "2", "--guidance", "1"]
    arguments += ["--methods", "jacobi(window=8),top-k(k=10)"]
    done = runner.invoke(app, ["bench", "frontier", *arguments, "-o", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    plain, jacobi, lossy = json.loads(done.stdout)["rows"]
    assert (plain["tau"], plain["S"], plain["delta"]) == (1, 1, 0)
    assert jacobi["same"] == 1 and jacobi["delta"] == 0 and jacobi["tau"] > 1.2
    assert lossy["same"] < 1 and lossy["tau"] > jacobi["tau"]
    files = {"frontier.json", "frontier.md", "frontier.png", "strips", "strips.png"}
    assert {path.name for path in tmp_path.iterdir()} == files
    strips = sorted(path.name for path in (tmp_path / "strips").iterdir())
    assert strips == ["00-ar.png", "01-jacobi_window_8.png", "02-top-k_k_10.png"]


@pytest.mark.parametrize(
    ("world", "entropies", "sure"), first(1, [("textured", (1.5, 4), (0, 0.4)), ("flat", (0, 0.5), (0.9, 1))])
)
def test_certainty_command(
    tmp_path: Path, world: str, entropies: tuple[float, float], sure: tuple[float, float]
) -> None:
    """A model has low entropy on flat colours, and high entropy on backgrounds of settings."""
    sampling = ["--temperature", "1", "--min-p", "0", "--world", world]
    arguments = ["bench", "certainty", "--n", "2", *sampling, "-o", str(tmp_path)]
    done = runner.invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    things, ground = value["things"], value["ground"]
    assert things["codes"] + ground["codes"] == 2 * 256 and things["codes"] > 10
    assert 0 < things["entropy"] < 2 and 0.5 < things["sure"] <= 1
    assert entropies[0] < ground["entropy"] < entropies[1] and sure[0] <= ground["sure"] <= sure[1]
    assert {path.name for path in tmp_path.iterdir()} == {"certainty.json", "certainty.md", "certainty.png"}
    wrong = runner.invoke(app, ["bench", "certainty", "--n", "1", "--model", "tiny-vlm"])
    assert wrong.exit_code == 2 and "draws no codes of the emoji world" in wrong.stderr
