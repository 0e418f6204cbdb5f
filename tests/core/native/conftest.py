"""The C library of the present sources, with the functions of every instruction set that this processor has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polydraft.core.native import library as native
from polydraft.core.native.build import build
from polydraft.core.native.library import Library


@pytest.fixture(scope="session")
def library_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library; it is compiled if the installed one is missing or of other sources."""
    if not native.supported_instruction_sets():
        pytest.skip("this processor has no AVX2")
    if not native.why_unusable():
        return native.LIBRARY
    built = tmp_path_factory.mktemp("native") / "libdecoder.so"
    if reason := build(built):
        pytest.skip(f"there is no C library: {reason}")
    return built


@pytest.fixture(scope="session", autouse=True)
def tested_library(library_file: Path) -> Iterator[None]:
    """Use the library in these tests, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(native.VARIABLE, raising=False)
        patch.setattr(native, "LIBRARY", library_file)
        patch.setattr(native, "SMALL_WORK", 0)  # tiny products use several threads, too
        native.why_unusable.cache_clear()
        yield
    native.why_unusable.cache_clear()


@pytest.fixture(scope="session")
def libraries(library_file: Path) -> dict[str, Library]:
    """Return the library's functions by instruction set."""
    return {name: native.load(library_file, name) for name in native.supported_instruction_sets()}


@pytest.fixture
def fastest(libraries: dict[str, Library]) -> Library:
    """Return the functions that this processor gets."""
    return next(iter(libraries.values()))
