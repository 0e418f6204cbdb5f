"""Chunked decoding: independent of arrival, equal to whole decoding for local codecs, crossfaded for others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.speech.codecs.chunks import ChunkStream, DecodeWindow
from polydraft.modalities.speech.codecs.stretch import TimeStretcher

SAMPLES, REACH = 8, 3
CODES = torch.randint(50, (80,), generator=torch.Generator().manual_seed(0))
KERNEL = torch.hann_window(2 * REACH * SAMPLES + 1, periodic=False)


def decode_local(codes: torch.Tensor, first: int) -> torch.Tensor:
    """Decode with a codec whose context is `REACH` codes on either side."""
    audio = codes.float().repeat_interleave(SAMPLES) - 25
    return torch.conv1d(audio[None, None], KERNEL[None, None], padding=REACH * SAMPLES)[0, 0]


def decode_global(codes: torch.Tensor, first: int) -> torch.Tensor:
    """Decode with a codec whose audio depends on all given codes."""
    return decode_local(codes, first) + codes.float().mean()


def error_db(error: torch.Tensor, signal: torch.Tensor) -> float:
    return 20 * math.log10(float(error.std() / signal.std()) + 1e-15)


def decode_streamed(stream: ChunkStream, lengths: list[int]) -> torch.Tensor:
    codes = CODES[: sum(lengths)]
    return torch.cat([*(stream.push(part) for part in codes.split(lengths)), stream.finish()])


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=4)


@settings(max_examples=40)
@given(lengths, st.integers(1, 9), st.integers(1, 20))
def test_chunk_stream_of_local_codec_equals_whole(lengths: list[int], first: int, chunk: int):
    window = DecodeWindow(SAMPLES, REACH, REACH)
    whole, joined = (
        decode_local(CODES[: sum(lengths)], 0),
        decode_streamed(ChunkStream(window, decode_local, first, chunk), lengths),
    )
    assert joined.shape == whole.shape and error_db(joined - whole, whole) < -100


def test_chunk_stream_without_context_has_audible_seams():
    """Plant a bug: chunks that are decoded without their context."""
    whole, joined = (
        decode_local(CODES, 0),
        decode_streamed(ChunkStream(DecodeWindow(SAMPLES, 1, 0), decode_local, 5, 10), [80]),
    )
    assert error_db(joined - whole, whole) > -40


@settings(max_examples=40)
@given(lengths, st.integers(0, 2), st.integers(0, 12))
def test_chunk_stream_is_independent_of_arrival(lengths: list[int], fade: int, lead: int):
    def build_stream() -> ChunkStream:
        return ChunkStream(DecodeWindow(SAMPLES, 10, 4, fade), decode_global, 3, 7, lead=CODES[50 : 50 + lead])

    whole = decode_streamed(build_stream(), [sum(lengths)])
    assert len(whole) == SAMPLES * sum(lengths) and decode_streamed(build_stream(), lengths).equal(whole)


def test_chunk_stream_crossfades_adjacent_chunks():
    """Compare with two windows that are decoded and crossfaded by hand."""
    stream = ChunkStream(DecodeWindow(SAMPLES, 10, 4, 1), decode_global, 20, 20, lead=CODES[60:70])
    audio = torch.cat([stream.push(CODES[:40]), stream.finish()])
    first = decode_global(torch.cat([CODES[60:70], CODES[:24]]), -10)[10 * SAMPLES :]
    second = decode_global(CODES[10:40], 10)[10 * SAMPLES :]
    fade_in = torch.arange(1, SAMPLES + 1) / (SAMPLES + 1)
    faded = first[20 * SAMPLES : 21 * SAMPLES] * (1 - fade_in) + second[:SAMPLES] * fade_in
    assert audio[: 20 * SAMPLES].equal(first[: 20 * SAMPLES])
    assert audio[20 * SAMPLES : 21 * SAMPLES].allclose(faded) and audio[21 * SAMPLES :].equal(second[SAMPLES:])


def test_chunk_stream_emits_chunk_after_look_ahead():
    stream = ChunkStream(DecodeWindow(SAMPLES, REACH, REACH), decode_local, 5, 10)
    assert len(stream.push(CODES[: 4 + REACH])) == 0 and len(stream.push(CODES[4 + REACH : 5 + REACH])) == 5 * SAMPLES


def synthetic_voice(rate: int, seconds: float) -> np.ndarray:
    """Return a tone of 150 Hz with overtones and varying loudness."""
    times = np.arange(int(rate * seconds)) / rate
    tone = sum(np.sin(2 * np.pi * 150 * k * times) / k for k in (1, 2, 3, 5))
    return (0.3 * tone * (0.6 + 0.4 * np.sin(5 * times))).astype(np.float32)


def stretch_in_pieces(audio: np.ndarray, rate: int, speed: float, sizes: list[int]) -> np.ndarray:
    stretch, parts, begin = TimeStretcher(rate, speed), [], 0
    while begin < len(audio):
        size = sizes[len(parts) % len(sizes)]
        parts.append(stretch.push(audio[begin : begin + size]))
        begin += size
    return np.concatenate([*parts, stretch.finish()])


@pytest.mark.parametrize("rate", [16_000, 24_000])
@pytest.mark.parametrize("speed", [0.25, 0.6, 1.0, 1.5, 4.0])
def test_time_stretch_keeps_pitch_and_level(rate: int, speed: float):
    audio = synthetic_voice(rate, 3)
    out = stretch_in_pieces(audio, rate, speed, [len(audio)])
    assert abs(len(out) - len(audio) / speed) <= 1
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out)), 16 * rate))
    assert abs(spectrum[: 16 * 220].argmax() / 16 - 150) < 3
    assert 0.7 < out.std() / audio.std() < 1.2
    if speed == 1:
        assert np.abs(out - audio).max() < 0.02  # tolerance for windows that align one period further on


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=6), st.floats(0.25, 4), st.floats(0.01, 0.8))
def test_time_stretch_of_pieces_equals_whole(sizes: list[int], speed: float, seconds: float):
    audio = synthetic_voice(16_000, seconds)
    assert np.array_equal(
        stretch_in_pieces(audio, 16_000, speed, sizes), stretch_in_pieces(audio, 16_000, speed, [len(audio)])
    )


def test_time_stretch_keeps_steady_tone_pure():
    """Check a steady tone, which windows without alignment would break."""
    times = np.arange(48_000) / 24_000
    out = stretch_in_pieces((0.5 * np.sin(2 * np.pi * 180 * times)).astype(np.float32), 24_000, 1.3, [999])[1000:-2000]
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out)))) ** 2
    peak = spectrum.argmax()
    assert spectrum[max(0, peak - 40) : peak + 40].sum() / spectrum.sum() > 0.99
