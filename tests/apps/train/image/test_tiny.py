"""`polydraft train tiny-image` with a tokenizer that is done: it is used as it is, and its minutes go to the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from polydraft.apps.train.image import tiny
from polydraft.core.errors import PolydraftError
from polydraft.modalities.loading import card


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What was trained, and for how long; nothing is."""
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(tiny.tokenizer, "run", lambda out, minutes, *_, **__: told.append(("tokenizer", minutes)))
    monkeypatch.setattr(tiny.shows, "run", lambda folder, seed, minutes: told.append(("shows", minutes)))
    monkeypatch.setattr(tiny.decoder, "run", lambda given, out, minutes, **__: told.append(("decoder", minutes)))
    monkeypatch.setattr(
        tiny, "on_every_core",
        lambda module, batch, share, *given: told.append(("target", given[given.index("--minutes") + 1])),
    )  # fmt: skip
    monkeypatch.setattr(tiny.drafter, "run", lambda model, kind, out, minutes, *_: told.append((kind, minutes)))
    monkeypatch.setattr(tiny, "assemble", lambda *_: None)
    monkeypatch.setattr(tiny.costs, "run", lambda **_: None)
    return told


@pytest.mark.parametrize("world", ["flat", "settings"])
def test_a_tokenizer_that_is_done_is_not_trained(world: str, stages: list, flat_elder: Path, tmp_path: Path) -> None:
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


def test_one_that_cannot_be_read_is_refused_before_anything_is_trained(
    stages: list, flat_elder: Path, tmp_path: Path
) -> None:
    with pytest.raises(PolydraftError, match=f"{tmp_path / 'nothing'} has no config.json"):
        tiny.run(tmp_path, 100, ready=tmp_path / "nothing")
    with pytest.raises(PolydraftError, match="give a model of the flat world"):
        tiny.run(tmp_path, 100, world="settings", begin=Path(card("tiny-vlm").path))
    with pytest.raises(PolydraftError, match="leave out --begin"):
        tiny.run(tmp_path, 100, world="flat", begin=flat_elder)
    assert not stages
