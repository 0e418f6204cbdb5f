"""Every kind of drafter is trained on a speech model, put beside it, and drafts what plain decoding says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from polydraft.apps.data.built_in_prompts import BUILT_IN_PROMPTS
from polydraft.apps.data.samples import Samples
from polydraft.apps.train import drafter
from polydraft.core.distillation.examples import run_target
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.methods.registry import parse
from polydraft.modalities.loading import load


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few prompts, and trials of a few tokens."""
    monkeypatch.setattr("polydraft.apps.data.built_in_prompts.ROWS", 4)
    monkeypatch.setattr("polydraft.apps.train.evaluation.LONGEST", 12)


METHODS = {
    "lm": "draft", "eagle": "eagle2", "heads": "vadusa", "hydra": "hydra", "kangaroo": "kangaroo",
    "block": "speechspec",
}  # fmt: skip


@pytest.mark.parametrize("kind", METHODS)
def test_a_trained_drafter_says_what_plain_decoding_says(folder: Path, tmp_path: Path, kind: str):
    drafter.run(str(folder), kind, tmp_path / kind, minutes=0.005)
    model = shutil.copytree(folder, tmp_path / "model")
    shutil.copytree(tmp_path / kind, model / kind)
    manifest = json.loads((model / "polydraft.json").read_text())
    fitted = {METHODS[kind]: json.loads((model / kind / "fitted.json").read_text())}
    (model / "polydraft.json").write_text(json.dumps(manifest | {"drafters": {kind: kind}, "fitted": fitted}))
    pipe = load(str(model), dtype="float32", modality="speech")
    plain = pipe("We meet again.", speculative=False, seed=1)
    drafted = pipe("We meet again.", method=METHODS[kind], seed=1)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


def test_a_stopped_run_goes_on_with_its_samples(folder: Path, tmp_path: Path):
    drafter.run(str(folder), "heads", tmp_path / "heads", minutes=0.004)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "heads" / "samples").glob("*.safetensors")}
    drafter.run(str(folder), "heads", tmp_path / "heads", minutes=0.005)
    assert before and all(path.stat().st_mtime_ns == told for path, told in before.items())


def test_what_the_target_saw_is_remembered_row_by_row(folder: Path, tmp_path: Path):
    """On disk where it fits there, looked at anew where not; either way the same."""
    pipe = load(str(folder), dtype="float32")
    target, rows = pipe.target(), [3, 0, 2]
    drawn = Samples(target, tmp_path)
    drawn.draw(pipe.method(parse("ar")), BUILT_IN_PROMPTS["speech"](pipe, 0).prompts, "taught", 0.0)
    with drawn.remembering(drawn.bytes_seen - 1):
        fresh = drawn.examples(rows)
    with drawn.remembering(drawn.bytes_seen):
        told, size = drawn.examples(rows), sum(file.stat().st_size for file in (tmp_path / "features").iterdir())
    assert told.ids.equal(fresh.ids) and told.cached_outputs is not None and fresh.cached_outputs is None
    assert drawn.bytes_seen < size < 1.1 * drawn.bytes_seen and not (tmp_path / "features").exists()
    for mine, theirs in zip(run_target(target, told), run_target(target, fresh), strict=True):
        assert torch.allclose(mine[fresh.loss_mask], theirs[fresh.loss_mask], atol=1e-5)


def test_a_drafter_learns_from_texts_of_ones_own(folder: Path, tmp_path: Path):
    """Lines of a file, in the model's voices in turn or the one a row asks for."""
    file = tmp_path / "texts.jsonl"
    said = [{"text": "Good morning."}, {"text": "We meet again.", "voice": "rms"}, {"text": "It is five. So it is."}]
    file.write_text("\n".join(map(json.dumps, said)))
    report = drafter.run(str(folder), "heads", tmp_path / "out", minutes=0.002, data=str(file))
    assert report.trial.same and report.answers >= 2 and "polydraft speech" in report.load
    file.write_text('{"text": "Good morning."}\n{"text": "Hello.", "voice": "nobody"}')
    with pytest.raises(InvalidArgument, match="nobody"):
        drafter.run(str(folder), "heads", tmp_path / "other", minutes=0.002, data=str(file))


def test_an_unknown_kind_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(UnsupportedMethod, match="lm, eagle, heads, kangaroo, hydra, above, local, block"):
        drafter.run(str(folder), "oracle", tmp_path / "oracle", minutes=0.004)
