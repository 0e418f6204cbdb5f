"""Files of a training run are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from polydraft.core.distillation.export import atomic_dir


def test_files_are_replaced_together_or_not_at_all(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_dir(tmp_path) as made:
        (made / "config.json").write_text("new")
        raise KeyboardInterrupt
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "config.json": "old", "model.safetensors": "old",
    }  # fmt: skip
    with atomic_dir(tmp_path) as made:
        (made / "config.json").write_text("new")
    assert (tmp_path / "config.json").read_text() == "new"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
