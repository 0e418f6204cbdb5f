"""Pipelines that public functions keep loaded are loaded again once any file of their folder has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polydraft
from polydraft.modalities import loading

CALLS: dict[str, Callable[[str], Any]] = {
    "chat": lambda model: polydraft.chat(None, "Why?", model=model),
    "generate_image": lambda model: polydraft.generate_image("a cat", model=model),
    "generate_speech": lambda model: polydraft.generate_speech("Yes.", model=model),
}
FILES = [
    "model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "codec/model.safetensors",
    "drafter/head/config.json", "preprocessor_config.json",
]  # fmt: skip


@pytest.mark.parametrize("function", CALLS)
def test_changed_folder_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("{}")
    call = CALLS[function]
    loads: list[str] = []
    monkeypatch.setattr(loading, "load", lambda name, **_: loads.append(name) or (lambda *_, **__: len(loads)))
    loading.clear_cached_pipelines()
    try:
        assert call(str(tmp_path)) == call(str(tmp_path)) == 1
        for count, file in enumerate(FILES, 2):
            (tmp_path / file).write_text('{"a": 1}')
            assert call(str(tmp_path)) == call(str(tmp_path)) == count, file
    finally:
        loading.clear_cached_pipelines()


def test_changed_codec_elsewhere_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("model", "codec"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    loads: list[str] = []
    monkeypatch.setattr(loading, "load", lambda name, **_: loads.append(name) or (lambda *_, **__: len(loads)))
    loading.clear_cached_pipelines()
    try:
        for count, text in enumerate(("{}", '{"a": 1}'), 1):
            (tmp_path / "codec" / "config.json").write_text(text)
            for _ in range(2):
                model, codec = (str(tmp_path / part) for part in ("model", "codec"))
                num_loads: Any = polydraft.generate_speech("Yes.", model=model, codec=codec)
                assert num_loads == count
    finally:
        loading.clear_cached_pipelines()
