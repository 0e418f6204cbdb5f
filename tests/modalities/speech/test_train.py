"""Training of every kind of drafter on a speech model; trained drafters match plain decoding."""

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
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few prompts and short evaluations."""
    monkeypatch.setattr("polydraft.apps.data.built_in_prompts.ROWS", 4)
    monkeypatch.setattr("polydraft.apps.train.evaluation.LONGEST", 12)


METHODS = {
    "lm": "draft", "eagle": "eagle2", "heads": "vadusa", "hydra": "hydra", "kangaroo": "kangaroo",
    "block": "speechspec",
}  # fmt: skip


@pytest.mark.parametrize("kind", METHODS)
def test_trained_drafter_matches_plain_decoding(folder: Path, tmp_path: Path, kind: str):
    drafter.run(str(folder), kind, tmp_path / kind, minutes=0.005)
    model = shutil.copytree(folder, tmp_path / "model")
    shutil.copytree(tmp_path / kind, model / kind)
    manifest = json.loads((model / "polydraft.json").read_text())
    tuned = {METHODS[kind]: json.loads((model / kind / "fitted.json").read_text())}
    (model / "polydraft.json").write_text(json.dumps(manifest | {"drafters": {kind: kind}, "fitted": tuned}))
    pipe = load(str(model), dtype="float32", modality="speech")
    plain = pipe("We meet again.", speculative=False, seed=1)
    drafted = pipe("We meet again.", method=METHODS[kind], seed=1)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


def test_training_resumed_run_reuses_its_samples(folder: Path, tmp_path: Path):
    drafter.run(str(folder), "heads", tmp_path / "heads", minutes=0.004)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "heads" / "samples").glob("*.safetensors")}
    drafter.run(str(folder), "heads", tmp_path / "heads", minutes=0.005)
    assert before and all(path.stat().st_mtime_ns == mtime for path, mtime in before.items())


def test_samples_cached_outputs_equal_recomputed_outputs(folder: Path, tmp_path: Path):
    """Check that outputs cached on disk equal outputs that are computed again because the cache is too small."""
    pipe = load(str(folder), dtype="float32")
    target, rows = pipe.target(), [3, 0, 2]
    samples = Samples(target, tmp_path)
    samples.draw(pipe.method(parse("ar")), BUILT_IN_PROMPTS["speech"](pipe, 0).prompts, "taught", 0.0)
    with samples.remembering(samples.bytes_seen - 1):
        fresh = samples.examples(rows)
    with samples.remembering(samples.bytes_seen):
        cached, size = samples.examples(rows), sum(file.stat().st_size for file in (tmp_path / "features").iterdir())
    assert cached.ids.equal(fresh.ids) and cached.cached_outputs is not None and fresh.cached_outputs is None
    assert samples.bytes_seen < size < 1.1 * samples.bytes_seen and not (tmp_path / "features").exists()
    for actual, expected in zip(run_target(target, cached), run_target(target, fresh), strict=True):
        assert torch.allclose(actual[fresh.loss_mask], expected[fresh.loss_mask], atol=1e-5)


def test_drafter_training_on_user_texts_succeeds(folder: Path, tmp_path: Path):
    """Use lines of a file, in the model's voices in turn or in the voice that a line names."""
    file = tmp_path / "texts.jsonl"
    records = [{"text": "Good morning."}, {"text": "We meet again.", "voice": "rms"}, {"text": "It is five. So it is."}]
    file.write_text("\n".join(map(json.dumps, records)))
    report = drafter.run(str(folder), "heads", tmp_path / "out", minutes=0.002, data=str(file))
    assert report.trial.same and report.answers >= 2 and "polydraft speech" in report.load
    file.write_text('{"text": "Good morning."}\n{"text": "Hello.", "voice": "nobody"}')
    with pytest.raises(InvalidArgument, match="nobody"):
        drafter.run(str(folder), "heads", tmp_path / "other", minutes=0.002, data=str(file))


def test_training_unknown_kind_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(UnsupportedMethod, match="lm, eagle, heads, kangaroo, hydra, above, local, block"):
        drafter.run(str(folder), "oracle", tmp_path / "oracle", minutes=0.004)
