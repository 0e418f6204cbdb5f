"""Folders of tiny random models, built once, and pipelines loaded from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from polydraft.modalities.image.families.glm_image.family import GlmImage
from polydraft.modalities.image.families.liquid import family as liquid
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ....mapped import no_new_mapped_files
from .folders import FOLDERS, LIQUID_SIDE, SIZES

Loaded = Callable[..., ImagePipeline]


@pytest.fixture(scope="session", autouse=True)
def small_glm_image() -> Iterator[None]:
    """Set small sizes of images and previews, which no file of a GLM-Image holds."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"grid": (4, 4), "preview_side": 2, "diffusion_steps": 2}.items():
            patched.setattr(GlmImage, name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def small_liquid() -> Iterator[None]:
    """Set a small image size, which no file of a Liquid holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liquid, "SIDE", LIQUID_SIDE)
        yield


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a family's tiny model; it must not be written to."""

    @lru_cache
    def build(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family) / f"tiny-{family}"
        folder.mkdir()
        FOLDERS[family](folder)
        return folder

    return build


@pytest.fixture(scope="session")
def loaded(folder_of: Callable[[str], Path]) -> Loaded:
    """Return a family's pipeline: `loaded("janus", "float64")`."""

    @lru_cache
    def build(family: str, dtype: str = "float32") -> ImagePipeline:
        with no_new_mapped_files(folder_of(family)):
            pipe = load(str(folder_of(family)), dtype=dtype, modality="image")
        return pipe.with_size(SIZES.get(family))

    return build
