"""Fixtures that most tests of transcription share."""

from __future__ import annotations

from pathlib import Path

import pytest

from polydraft.modalities.loading import load
from polydraft.modalities.transcription.pipeline import WhisperPipeline

from .tiny_whisper import write_tiny_whisper


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Whisper."""
    return write_tiny_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> WhisperPipeline:
    loaded: WhisperPipeline = load(folder, dtype="float32")
    return loaded
