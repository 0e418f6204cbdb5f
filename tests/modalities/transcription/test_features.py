"""Streamed log-mel features equal those of transformers' WhisperFeatureExtractor."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor, WhisperProcessor
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from polydraft.core.errors import InvalidArgument, SystemRefusal, WeightsError
from polydraft.modalities.transcription import features
from polydraft.modalities.transcription.features import LogMel, LogMelStream

from ...live_tensors import LiveTensors

RATE, CHUNK = 16_000, 480_000
TOLERANCE = 1e-5
EDGES = (  # where a frame is begun, completed, padded or mirrored
    1, 2, 159, 160, 161, 200, 201, 360, 399, 400,
    *(CHUNK + offset for offset in (-200, -42, -41, -40, -39, -1, 0, 1, 39, 40, 41, 160)),
)  # fmt: skip


@cache
def extractor(num_mels: int) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(num_mels)


def reference(samples: NDArray[np.float32], num_mels: int = 80) -> Tensor:
    """Return features `[mels, F]` as transformers' pipeline asks for them: padded to 30 seconds, or not at all."""
    padding = "max_length" if len(samples) <= CHUNK else "longest"
    inputs = extractor(num_mels)(samples, sampling_rate=RATE, truncation=False, padding=padding, return_tensors="pt")
    return inputs.input_features[0]


def make_sound(kind: str, length: int, seed: int = 0) -> NDArray[np.float32]:
    """Return sound whose loudest part is not where the stream begins."""
    random = np.random.default_rng(seed)
    if kind == "silence":
        return np.zeros(length, np.float32)
    if kind == "clicks":
        sound = np.zeros(length, np.float32)
        sound[random.integers(0, length, 1 + length // 20_000)] = random.uniform(0.1, 1.0)
        sound[-1] = -0.5
        return sound
    if kind == "sine":
        return (np.sin(np.arange(length) * 0.07) * np.linspace(0.01, 0.9, length)).astype(np.float32)
    return (random.normal(0, 0.1, length) * np.linspace(1e-4, 1, length)).astype(np.float32)


def pieces(samples: NDArray[np.float32], sizes: Iterator[int]) -> Iterator[NDArray[np.float32]]:
    start = 0
    while start < len(samples):
        size = next(sizes)
        yield samples[start : start + size]
        start += size


def stream_features(samples: NDArray[np.float32], num_mels: int = 80, size: int = 80_000) -> Tensor:
    with LogMel(num_mels).stream() as stream:
        for piece in pieces(samples, iter(lambda: size, None)):
            stream.push(piece)
        return stream.window(0, stream.num_frames)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype == torch.float32
    assert (actual - expected).abs().max().item() < TOLERANCE


@pytest.mark.parametrize(("kind", "num_mels"), [("noise", 80), ("clicks", 128)])
def test_features_equal_transformers_at_all_edges(kind: str, num_mels: int) -> None:
    for length in EDGES:
        samples = make_sound(kind, length)
        assert_equal(stream_features(samples, num_mels), reference(samples, num_mels))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 500) | st.integers(1, 1_600_000),
    st.sampled_from(["noise", "sine", "clicks", "silence"]),
    st.sampled_from([80, 128]),
    st.integers(0, 2**32 - 1),
)
def test_pieces_of_any_size_change_nothing(length: int, kind: str, num_mels: int, seed: int) -> None:
    samples, random = make_sound(kind, length, seed), np.random.default_rng(seed)
    largest = 2 + length // 3
    with LogMel(num_mels).stream() as stream:
        for piece in pieces(samples, iter(lambda: int(random.integers(0, largest)), None)):
            stream.push(piece)
        assert_equal(stream.window(0, stream.num_frames), reference(samples, num_mels))


@pytest.mark.parametrize("length", [20, 150, 300, 480_041, 500_000])
def test_single_samples_change_nothing(length: int) -> None:
    samples = make_sound("noise", length)
    with LogMel().stream() as stream:
        stream.push(samples[: max(0, length - 300)])
        for sample in samples[max(0, length - 300) :]:
            stream.push(sample[None])
        assert_equal(stream.window(0, stream.num_frames), reference(samples))


def test_growing_sound_has_features_so_far() -> None:
    samples = make_sound("noise", 640_000)
    with LogMel().stream() as stream:
        maxima = []
        for end in (1, 201, 5_000, 479_990, 480_000, 480_030, 640_000):
            stream.push(samples[stream.num_samples : end])
            expected = reference(samples[:end])
            assert stream.num_frames == expected.shape[1] and stream.duration == end / RATE
            assert_equal(stream.window(0, stream.num_frames), expected)
            maxima.append(stream.maximum)
    assert maxima == sorted(maxima) and maxima[0] < maxima[-1]


def test_empty_sound_is_silence() -> None:
    with LogMel().stream() as stream:
        stream.push(np.zeros(0, np.float32))
        assert_equal(stream.window(0, 3000), reference(np.zeros(1, np.float32)))


def test_clamp_keeps_maximum_of_earlier_pieces() -> None:
    samples = make_sound("noise", 1_000_000)
    samples[:1000] = 5 * make_sound("sine", 1000)
    with LogMel().stream() as stream:
        for piece in pieces(samples, iter(lambda: 80_000, None)):
            stream.push(piece)
        assert_equal(stream.window(3000, 3000), reference(samples)[:, 3000:6000])


def test_clamp_follows_maximum_of_later_pieces() -> None:
    samples = make_sound("noise", 1_000_000)
    samples[-1000:] = 5 * make_sound("sine", 1000)
    quiet, whole = reference(samples[:640_000]), reference(samples)
    assert (quiet[:, :3000] - whole[:, :3000]).abs().max() > 0.1  # another clamp, so that the test can fail
    with LogMel().stream() as stream:
        stream.push(samples)
        assert_equal(stream.window(0, 3000), whole[:, :3000])


@pytest.mark.parametrize("length", [100_000, CHUNK, 640_123])
def test_windows_equal_segments_of_generate(length: int) -> None:
    samples = make_sound("noise", length)
    whole = reference(samples)
    num_frames = whole.shape[1]
    with LogMel().stream() as stream:
        stream.push(samples)
        for seek in (0, 1, 624, 625, 700, 2998, 2999, num_frames - 3000, num_frames - 100, num_frames - 1):
            expected = WhisperGenerationMixin._get_input_segment(
                whole[None], torch.tensor([seek]), torch.tensor([min(3000, num_frames - seek)]), 3000, 1, [0]
            )[0]
            assert_equal(stream.window(seek, 3000), expected)
            assert_equal(stream.window(seek, 1), whole[:, seek : seek + 1])
        assert not stream.window(num_frames, 3000).any() and not stream.window(num_frames + 5000, 10).any()


def test_frames_on_disk_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SPOOLED_BYTES", 100_000)
    samples = make_sound("noise", 800_000)
    with LogMel().stream() as stream:
        for start in range(0, len(samples), 7_777):
            stream.push(samples[start : start + 7_777])
            stream.window(0, 10)  # reads between writes move the position of the file
        assert stream._file._rolled
        assert_equal(stream.window(0, stream.num_frames), reference(samples))


@pytest.mark.parametrize("is_pushed_whole", [True, False])
def test_memory_is_flat(is_pushed_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SPOOLED_BYTES", 100_000)
    peaks = []
    for minutes in (1, 6):
        samples = np.zeros(minutes * 60 * RATE, np.float32)
        settings_of = LogMel()
        with LiveTensors() as counted, settings_of.stream() as stream:
            for start in range(0, len(samples), len(samples) if is_pushed_whole else 80_000):
                stream.push(samples[start : start + (len(samples) if is_pushed_whole else 80_000)])
            stream.window(stream.num_frames - 3000, 3000)
        peaks.append(counted.peak)
    assert peaks[0] == peaks[1] < 16 << 20


def test_result_does_not_share_memory() -> None:
    with LogMel().stream() as stream:
        stream.push(make_sound("noise", 10_000))
        stream.window(0, 3000).fill_(7)
        assert_equal(stream.window(0, 3000), reference(make_sound("noise", 10_000)))


def test_settings_of_an_extractor_are_read() -> None:
    small = WhisperFeatureExtractor(64, chunk_length=10, n_fft=512, hop_length=128)
    samples = make_sound("noise", 100_000)
    with LogMel.from_extractor(small).stream() as stream:
        stream.push(samples)
        expected = small(samples, sampling_rate=RATE, return_tensors="pt").input_features[0]
        assert_equal(stream.window(0, stream.num_frames), expected)
    for settings_of in ({"dither": 0.1}, {"padding_value": 1.0}):
        with pytest.raises(InvalidArgument, match="both must be 0"):
            LogMel.from_extractor(WhisperFeatureExtractor(**settings_of))


def test_folders_of_both_layouts_are_read(tmp_path: Path) -> None:
    extractor(128).save_pretrained(tmp_path / "old")
    file = tmp_path / "old" / "preprocessor_config.json"
    settings_of = json.loads(file.read_text())
    file.write_text(json.dumps(settings_of | {"mel_filters": [[0.0]]}))  # as checkpoints of 2022 have
    assert LogMel.from_folder(tmp_path / "old") == LogMel(128)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "processor_config.json").write_text(
        json.dumps({"feature_extractor": settings_of, "processor_class": WhisperProcessor.__name__})
    )
    assert LogMel.from_folder(tmp_path / "new") == LogMel(128)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "no WhisperFeatureExtractor"),
        ({"feature_size": 0}, "feature_size=0"),
        ({"feature_size": "80"}, "feature_size='80'"),
        ({"sampling_rate": 8000}, "sampling_rate=8000"),
        ({"dither": 0.1}, "dither=0.1"),
        ({"padding_value": 1.0}, "padding_value=1.0"),
        ({"hop_length": 300}, "contradicts itself"),
        ({"n_fft": 401}, "contradicts itself"),
        ({"chunk_length": None}, "chunk_length=None"),
    ],
)
def test_unusable_settings_of_folders_are_named(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    extractor(80).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(WeightsError, match=reason) as caught:
        LogMel.from_folder(tmp_path)
    assert str(file) in str(caught.value)


def test_folders_without_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="has no preprocessor_config.json"):
        LogMel.from_folder(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"feature_extractor": 3}')
    with pytest.raises(WeightsError, match="no WhisperFeatureExtractor"):
        LogMel.from_folder(tmp_path)


@pytest.mark.parametrize("samples", [np.zeros((2, 3)), np.float32(0.5), np.array([0, np.nan]), np.array([np.inf])])
def test_sound_of_another_shape_is_refused(samples: Any) -> None:
    with LogMel().stream() as stream, pytest.raises(InvalidArgument, match="push finite mono samples"):
        stream.push(samples)


@pytest.mark.parametrize(("first", "num"), [(-1, 10), (0, 0), (5, -1)])
def test_impossible_windows_are_refused(first: int, num: int) -> None:
    with LogMel().stream() as stream, pytest.raises(InvalidArgument, match="does not exist"):
        stream.window(first, num)


def test_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SPOOLED_BYTES", 1)
    stream: LogMelStream = LogMel().stream()
    stream.push(make_sound("noise", 1000))
    stream._file._file.close()
    with open("/dev/full", "r+b", buffering=0) if Path("/dev/full").exists() else pytest.skip("no full disk") as full:
        stream._file._file = full
        with pytest.raises(SystemRefusal, match="free some disk space") as caught:
            stream.push(make_sound("noise", 1000))
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
