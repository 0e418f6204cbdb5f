"""`polydraft train drafters`: a budget over kinds, shared answers, stopping and resuming, and the table after it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polydraft.apps.data import built_in_prompts
from polydraft.apps.measure.peers import baseline
from polydraft.apps.train import drafters, evaluation
from polydraft.apps.train.drafter import similar_rows
from polydraft.apps.train.drafters import USUAL, Budget, usual_kinds
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.modalities.model_card import ModelCard, load_card

from ..command_line import run


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit training to few prompts and short answers."""
    monkeypatch.setattr(built_in_prompts, "ROWS", 2)
    monkeypatch.setattr(built_in_prompts, "MOST", 8)
    monkeypatch.setattr(evaluation, "LONGEST", 6)
    monkeypatch.setattr(evaluation, "WARM", 2)


def stop_at(kind: str) -> Callable[..., Any]:
    """Return a `train_student` that Ctrl-C stops at a kind."""
    train = drafters.train_student

    def stopped(answers: Any, name: str, *arguments: Any, **options: Any) -> Any:
        if name == kind:
            raise KeyboardInterrupt
        return train(answers, name, *arguments, **options)

    return stopped


def test_stopped_run_resumes_with_same_answers(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, kinds = str(random_model), ["hydra", "kangaroo"]
    with monkeypatch.context() as patch:
        patch.setattr(drafters, "train_student", stop_at("kangaroo"))
        with pytest.raises(KeyboardInterrupt):
            drafters.run(target, tmp_path, 0.0, kinds)
    drawn = {file: file.stat().st_mtime_ns for file in (tmp_path / "samples").glob("*.safetensors")}
    first = (tmp_path / "hydra" / "report.json").read_text()
    done = drafters.run(target, tmp_path, 0.0, kinds)
    assert list(done.reports) == kinds and not done.failed and not done.broken
    assert json.loads(first) == done.reports["hydra"] and done.reports["kangaroo"]["steps"] == 1
    assert drawn == {file: file.stat().st_mtime_ns for file in (tmp_path / "samples").glob("*.safetensors")}
    assert all((tmp_path / kind / "README.md").exists() for kind in kinds)
    assert f"--drafter {tmp_path / 'hydra'} --drafter {tmp_path / 'kangaroo'} --methods ar,spd," in done.load
    with pytest.raises(InvalidArgument, match="seed"):
        drafters.run(target, tmp_path, 0.0, kinds, seed=1)


def test_kind_that_fails_leaves_the_others(random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = drafters.build_student

    def refuse(answers: Any, kind: str, settings: dict[str, Any]) -> Any:
        if kind == "lm":
            raise UnsupportedMethod("there is no smaller model of this architecture; train another kind.")
        return build(answers, kind, settings)

    monkeypatch.setattr(drafters, "build_student", refuse)
    monkeypatch.setattr(Budget, "divide", lambda minutes, kinds: Budget(0.0, drafters.KindBudget(0.0, 0.0)))
    done = run("train", "drafters", random_model, "--kinds", "lm,heads", "--out", tmp_path, "--json")
    value = json.loads(done.stdout)
    assert done.exit_code == 1 and list(value["drafters"]) == ["heads"] and "no smaller model" in value["failed"]["lm"]


@pytest.mark.parametrize("kinds", ["", "hidra"])
def test_unknown_kinds_are_refused_before_generation(kinds: str, tmp_path: Path) -> None:
    done = run("train", "drafters", "tiny-vlm", "--kinds", kinds, "--out", tmp_path / "out")
    assert done.exit_code == 2 and "hydra" in done.stderr and not (tmp_path / "out").exists()


def test_budget_is_divided_over_kinds() -> None:
    budget = Budget.divide(100, 5)
    assert budget.answers + 5 * (budget.kind.training + budget.kind.trial) == pytest.approx(100)
    assert budget.answers == 25 and budget.kind.training == pytest.approx(13)


def test_usual_kinds_fit_the_target() -> None:
    image = ModelCard("emu3", Path("emu3"), {"modality": "image", "family": "emu3", "drafters": {}, "defaults": {}})
    assert usual_kinds(load_card("tiny-vlm")) == list(USUAL) and usual_kinds(image) == ["heads", "hydra", "eagle"]


@pytest.mark.thorough
def test_table_uses_all_drafters(random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "NOISE", math.inf)
    made = drafters.run(str(random_model), tmp_path, 0.0)
    assert list(made.reports) == list(USUAL)
    short = ["--tasks", "emoji-qa:1", "--max-new-tokens", "4", "--min-new-tokens", "1", "--json"]
    done = run(*made.load.split()[1:], *short)
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["missing"] == {str(random_model): {}} and value["failed"] == 0
    assert {row["method"] for row in value["rows"] if row["tau"]} == set(drafters.COMPARED.split(","))


@pytest.mark.parametrize("num_rows, count", [(100, 8), (20, 16), (5, 16)])
def test_similar_rows_are_of_similar_length(num_rows: int, count: int) -> None:
    sizes = np.random.default_rng(0).permutation(num_rows + 3)  # distinct
    batches = list(islice(similar_rows(np.random.default_rng(1), sizes, 3, count), 60))
    seen = np.unique(np.concatenate(batches))
    assert seen.tolist() == list(range(3, num_rows + 3))  # every row, and none of the first three
    assert all(len(np.unique(batch)) == min(count, num_rows) for batch in batches)
    if num_rows >= 4 * count:
        assert max(np.ptp(sizes[batch]) for batch in batches) < num_rows / 4
