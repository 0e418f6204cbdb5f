"""Folders of tiny random models, made once, and what is loaded from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from .folders import FOLDERS, SIZES

Loaded = Callable[..., ImagePipeline]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny model; not to be written to."""

    @lru_cache
    def made(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family) / f"tiny-{family}"
        folder.mkdir()
        FOLDERS[family](folder)
        return folder

    return made


@pytest.fixture(scope="session")
def loaded(folder_of: Callable[[str], Path]) -> Loaded:
    """Its pipeline: `loaded("janus", "float64")`."""

    @lru_cache
    def made(family: str, dtype: str = "float32") -> ImagePipeline:
        return load(str(folder_of(family)), dtype=dtype, modality="image").sized(SIZES.get(family))

    return made
