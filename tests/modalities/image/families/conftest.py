"""Folders of tiny random models, made once, and what is loaded from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from polydraft.modalities.image.families import liquid
from polydraft.modalities.image.families.glm_image import GlmImage
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ....mapped import maps_no_more
from .folders import FOLDERS, LIQUID_SIDE, SIZES

Loaded = Callable[..., ImagePipeline]


@pytest.fixture(scope="session", autouse=True)
def small_glm_image() -> Iterator[None]:
    """The size that is usual, of a preview and of a picture, stands in no file of a GLM-Image."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"grid": (4, 4), "small": 2, "steps": 2}.items():
            patched.setattr(GlmImage, name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def small_liquid() -> Iterator[None]:
    """Its pictures have no size of their own anywhere in its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liquid, "ACROSS", LIQUID_SIDE)
        yield


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
        with maps_no_more(folder_of(family)):
            pipe = load(str(folder_of(family)), dtype=dtype, modality="image")
        return pipe.sized(SIZES.get(family))

    return made
