"""`polydraft train tiny-image` with a finished tokenizer: it is not trained, and its minutes go to other stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from polydraft.apps.lab.recipes.image import tiny
from polydraft.core.errors import PolydraftError
from polydraft.modalities.model_card import load_card


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Replace all stages; return their names and minutes when they are called."""
    calls: list[tuple[str, float]] = []
    monkeypatch.setattr(tiny.tokenizer, "run", lambda out, minutes, *_, **__: calls.append(("tokenizer", minutes)))
    monkeypatch.setattr(tiny.code_counts, "run", lambda folder, seed, minutes: calls.append(("shows", minutes)))
    monkeypatch.setattr(tiny.decoder, "run", lambda given, out, minutes, **__: calls.append(("decoder", minutes)))
    monkeypatch.setattr(
        tiny, "launch_on_all_cores",
        lambda module, batch, share, *given: calls.append(("target", given[given.index("--minutes") + 1])),
    )  # fmt: skip
    monkeypatch.setattr(tiny.drafter, "run", lambda model, kind, out, minutes, *_: calls.append((kind, minutes)))
    monkeypatch.setattr(tiny, "assemble", lambda *_: None)
    monkeypatch.setattr(tiny.costs, "run", lambda **_: None)
    return calls


@pytest.mark.parametrize("world", ["flat", "settings"])
def test_run_finished_tokenizer_is_not_trained(world: str, stages: list, flat_elder: Path, tmp_path: Path) -> None:
    ready = flat_elder / "tokenizer"
    tiny.run(tmp_path, 100, world=world, ready=ready, begin=flat_elder if world == "settings" else None)
    assert "tokenizer" not in dict(stages) and sum(minutes for _, minutes in stages) == pytest.approx(100)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "tokenizer", ready))
    assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)
    stages.clear()
    tiny.run(tmp_path, 100, world=world)
    assert stages[0][0] == "tokenizer" and ("decoder" in dict(stages)) == (world == "settings")
    assert sum(minutes for _, minutes in stages) == pytest.approx(100)
    assert [name for name, _ in stages].count("target") == (2 if world == "settings" else 1)  # the flat world first


def test_run_invalid_parts_are_refused_before_training(stages: list, flat_elder: Path, tmp_path: Path) -> None:
    with pytest.raises(PolydraftError, match=f"{tmp_path / 'nothing'} has no config.json"):
        tiny.run(tmp_path, 100, ready=tmp_path / "nothing")
    with pytest.raises(PolydraftError, match="give a model of the flat world"):
        tiny.run(tmp_path, 100, world="settings", begin=Path(load_card("tiny-vlm").path))
    with pytest.raises(PolydraftError, match="leave out --begin"):
        tiny.run(tmp_path, 100, world="flat", begin=flat_elder)
    assert not stages
