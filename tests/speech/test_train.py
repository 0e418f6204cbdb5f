"""Every kind of drafter is trained on a speech model, put beside it, and drafts what plain decoding says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from polydraft.apps.train import drafter
from polydraft.apps.train.lessons import LESSONS
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.training.examples import read
from polydraft.modalities.loading import load

METHODS = {
    "lm": "draft", "eagle": "eagle2", "heads": "vadusa", "hydra": "hydra", "kangaroo": "kangaroo",
    "block": "speechspec",
}  # fmt: skip


@pytest.mark.parametrize("kind", METHODS)
def test_a_trained_drafter_says_what_plain_decoding_says(
    folder: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drafter, "ROWS", 4)
    drafter.run(str(folder), kind, tmp_path / kind, minutes=0.02)
    model = shutil.copytree(folder, tmp_path / "model")
    shutil.copytree(tmp_path / kind, model / kind)
    manifest = json.loads((model / "polydraft.json").read_text())
    fitted = {METHODS[kind]: json.loads((model / kind / "fitted.json").read_text())}
    (model / "polydraft.json").write_text(json.dumps(manifest | {"drafters": {kind: kind}, "fitted": fitted}))
    pipe = load(str(model), dtype="float32", modality="speech")
    plain = pipe("We meet again.", speculative=False, seed=1)
    drafted = pipe("We meet again.", method=METHODS[kind], seed=1)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


def test_a_stopped_run_goes_on_with_its_samples(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drafter, "ROWS", 4)
    drafter.run(str(folder), "heads", tmp_path / "heads", minutes=0.01)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "heads" / "samples").iterdir()}
    drafter.run(str(folder), "heads", tmp_path / "heads", minutes=0.02)
    assert before and all(path.stat().st_mtime_ns == told for path, told in before.items())


def test_what_the_target_saw_is_remembered_row_by_row(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drafter, "ROWS", 4)
    pipe = load(str(folder), dtype="float32")
    drawn = drafter.draw(LESSONS["speech"](pipe), tmp_path, 0.0, 0)
    model = pipe.read_target(pipe.card.target).requires_grad_(False)
    remembered = drawn.remembered(model)
    rows = [5, 0, 3]
    told, fresh = remembered.examples(rows, None), drawn.examples(rows, None)
    assert told.ids.equal(fresh.ids) and told.seen is not None and fresh.seen is None
    for mine, theirs in zip(read(model, told), read(model, fresh), strict=True):
        assert torch.allclose(mine[fresh.judged], theirs[fresh.judged], atol=1e-5)


def test_an_unknown_kind_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(UnsupportedMethod, match="lm, eagle, heads, kangaroo, hydra, block"):
        drafter.run(str(folder), "oracle", tmp_path / "oracle", minutes=0.01)
