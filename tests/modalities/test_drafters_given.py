"""Drafters that callers give: one, or several of different kinds; unfit ones are refused before weights are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import zeros

import polydraft
from polydraft.core.errors import InvalidArgument, PolydraftError, UnknownModel, UnsupportedMethod
from polydraft.modalities import loading
from polydraft.modalities.loading import check_model, load
from polydraft.modalities.model_card import embedded_models_dir

MODELS = embedded_models_dir()
EAGLE, HYDRA, LM = (MODELS / "tiny-vlm" / f"drafter-{kind}" for kind in ("eagle", "hydra", "lm"))


def test_first_drafter_gives_the_default_method() -> None:
    assert check_model("tiny-vlm").defaults["method"] != "eagle2"
    card = check_model("tiny-vlm", drafter=[EAGLE, str(HYDRA)])
    assert card.defaults["method"] == "eagle2" and card.added_drafters == ("eagle", "hydra")
    assert card.manifest["drafters"]["hydra"] == str(HYDRA) and "lm" in card.drafters
    assert check_model("tiny-vlm", drafter=(HYDRA, EAGLE)).defaults["method"] == "hydra"
    assert check_model("tiny-vlm", drafter=[]) == check_model("tiny-vlm")


def test_all_given_drafters_are_loaded_at_once(tmp_path: Path) -> None:
    pipe = load("tiny-vlm", drafter=[EAGLE, HYDRA], method="hydra", dtype="float32")
    assert pipe.default_method.name == "hydra" and set(pipe._drafters) == {"eagle", "hydra"}
    shutil.copytree(HYDRA, tmp_path / "hydra")
    (tmp_path / "hydra" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(PolydraftError, match="damaged"):
        load("tiny-vlm", drafter=[EAGLE, tmp_path / "hydra"], dtype="float32")


def published_head(folder: Path) -> Path:
    """Write the part of a published EAGLE head that says which target it is for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"fc.weight": zeros(48, 96)}, folder / "model.safetensors")
    return folder


def test_unfit_drafters_are_refused_before_reading_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "import_module", lambda name: pytest.fail("weights would be read"))
    shutil.copytree(HYDRA, tmp_path / "other")
    same, alike = f"drafter {HYDRA} is given twice", f"{HYDRA} and {tmp_path / 'other'} are both of kind 'hydra'"
    unfit: list[tuple[Any, type[PolydraftError], str]] = [
        ([HYDRA, HYDRA], InvalidArgument, same),
        ([HYDRA, LM, tmp_path / "other"], InvalidArgument, alike),
        ([LM, MODELS / "tiny-speech" / "drafter-hydra"], UnsupportedMethod, "another target .hidden_size is 192"),
        (published_head(tmp_path / "head"), UnsupportedMethod, "48 features and this one has 160"),
        ([HYDRA, tmp_path / "nowhere"], UnknownModel, "nowhere is no drafter's folder"),
        ([HYDRA, 3], InvalidArgument, "drafter=3 is not possible"),
    ]
    for drafter, error, words in unfit:
        for call in (load, lambda name, **given: polydraft.chat(None, "Why?", model=name, **given)):
            with pytest.raises(error, match=words) as caught:
                call("tiny-vlm", drafter=drafter)
            assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_one_shot_functions_count_given_drafters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The method is checked with them, and the pipeline is loaded again where they or their files are others."""
    loads: list[Any] = []
    monkeypatch.setattr(loading, "load", lambda name, **given: loads.append(given) or (lambda *_, **__: len(loads)))
    plain = tmp_path / "plain"
    shutil.copytree(HYDRA.parent / "target", plain)
    for kind in ("hydra", "eagle"):
        shutil.copytree(HYDRA.parent / f"drafter-{kind}", tmp_path / kind)

    def ask(drafter: Any, method: str = "hydra") -> Any:
        return polydraft.chat(None, "Why?", model=plain, drafter=drafter, method=method)

    loading.clear_cached_pipelines()
    try:
        with pytest.raises(UnsupportedMethod, match="needs a drafter"):
            ask(None)
        assert ask(tmp_path / "hydra") == ask([str(tmp_path / "hydra")]) == 1
        assert ask([tmp_path / "hydra", tmp_path / "eagle"], "eagle2") == 2
        (tmp_path / "eagle" / "fitted.json").write_text("{}")
        assert ask([tmp_path / "hydra", tmp_path / "eagle"]) == 3
        assert loads[-1]["drafter"] == (str(tmp_path / "hydra"), str(tmp_path / "eagle"))
    finally:
        loading.clear_cached_pipelines()
