"""WAV streams: the length is written to the header afterwards where the output can seek, else it stays unknown."""

from __future__ import annotations

import os
import wave
from pathlib import Path

import pytest

from polydraft.apps.cli.wav_stream import sized_wav
from polydraft.modalities.speech.result import UNKNOWN_SIZE, wav_header

SAMPLES = bytes(range(200))


def test_sized_wav_file_header_has_length(tmp_path: Path) -> None:
    with (tmp_path / "a.wav").open("wb") as file, sized_wav(file, 16_000) as out:
        out.write(SAMPLES)
    assert (tmp_path / "a.wav").read_bytes() == wav_header(16_000, 200) + SAMPLES
    with wave.open(str(tmp_path / "a.wav")) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.readframes(999)) == (16_000, 100, SAMPLES)


def test_sized_wav_after_other_bytes_keeps_them(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(b"before")
        with sized_wav(file, 24_000) as out:
            out.write(SAMPLES)
        file.write(b"behind")
    assert (tmp_path / "a").read_bytes() == b"before" + wav_header(24_000, 200) + SAMPLES + b"behind"


def test_sized_wav_interrupted_header_has_written_length(tmp_path: Path) -> None:
    with (tmp_path / "a.wav").open("wb") as file, pytest.raises(KeyboardInterrupt), sized_wav(file, 16_000) as out:
        out.write(SAMPLES)
        raise KeyboardInterrupt
    assert (tmp_path / "a.wav").read_bytes() == wav_header(16_000, 200) + SAMPLES


def test_sized_wav_appended_to_a_file_only_grows(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"before")
    with (tmp_path / "a.wav").open("ab") as file, sized_wav(file, 16_000) as out:
        out.write(SAMPLES)
    assert (tmp_path / "a.wav").read_bytes() == b"before" + wav_header(16_000) + SAMPLES


def test_sized_wav_pipe_header_has_unknown_length() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        with os.fdopen(writing, "wb") as end, sized_wav(end, 16_000) as out:
            out.write(SAMPLES)
        assert pipe.read() == wav_header(16_000) + SAMPLES


def test_wav_header_four_gigabytes_has_unknown_length() -> None:
    assert wav_header(16_000, 2**33) == wav_header(16_000)
    assert wav_header(16_000).count(UNKNOWN_SIZE.to_bytes(4, "little")) == 2
