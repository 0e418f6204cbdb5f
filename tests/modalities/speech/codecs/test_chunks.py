"""Sound in chunks: the same whatever arrives when, as if whole where the codec is local, and faded where it is not."""

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


def local(codes: torch.Tensor, first: int) -> torch.Tensor:
    """A codec that looks `REACH` codes to either side."""
    sound = codes.float().repeat_interleave(SAMPLES) - 25
    return torch.conv1d(sound[None, None], KERNEL[None, None], padding=REACH * SAMPLES)[0, 0]


def unbounded(codes: torch.Tensor, first: int) -> torch.Tensor:
    """A codec whose sound depends on everything it is given."""
    return local(codes, first) + codes.float().mean()


def decibels(error: torch.Tensor, signal: torch.Tensor) -> float:
    return 20 * math.log10(float(error.std() / signal.std()) + 1e-15)


def streamed(stream: ChunkStream, lengths: list[int]) -> torch.Tensor:
    codes = CODES[: sum(lengths)]
    return torch.cat([*(stream.push(part) for part in codes.split(lengths)), stream.finish()])


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=4)


@settings(max_examples=40)
@given(lengths, st.integers(1, 9), st.integers(1, 20))
def test_a_local_codec_sounds_as_if_whole(lengths: list[int], first: int, chunk: int):
    window = DecodeWindow(SAMPLES, REACH, REACH)
    whole, joined = local(CODES[: sum(lengths)], 0), streamed(ChunkStream(window, local, first, chunk), lengths)
    assert joined.shape == whole.shape and decibels(joined - whole, whole) < -100


def test_without_context_the_seams_would_be_heard():
    """The planted bug: chunks that know nothing of each other."""
    whole, joined = local(CODES, 0), streamed(ChunkStream(DecodeWindow(SAMPLES, 1, 0), local, 5, 10), [80])
    assert decibels(joined - whole, whole) > -40


@settings(max_examples=40)
@given(lengths, st.integers(0, 2), st.integers(0, 12))
def test_what_arrives_when_is_not_heard(lengths: list[int], fade: int, lead: int):
    def made() -> ChunkStream:
        return ChunkStream(DecodeWindow(SAMPLES, 10, 4, fade), unbounded, 3, 7, lead=CODES[50 : 50 + lead])

    whole = streamed(made(), [sum(lengths)])
    assert len(whole) == SAMPLES * sum(lengths) and streamed(made(), lengths).equal(whole)


def test_chunks_fade_into_each_other():
    """Window by window, by hand."""
    stream = ChunkStream(DecodeWindow(SAMPLES, 10, 4, 1), unbounded, 20, 20, lead=CODES[60:70])
    sound = torch.cat([stream.push(CODES[:40]), stream.finish()])
    first = unbounded(torch.cat([CODES[60:70], CODES[:24]]), -10)[10 * SAMPLES :]
    second = unbounded(CODES[10:40], 10)[10 * SAMPLES :]
    rising = torch.arange(1, SAMPLES + 1) / (SAMPLES + 1)
    faded = first[20 * SAMPLES : 21 * SAMPLES] * (1 - rising) + second[:SAMPLES] * rising
    assert sound[: 20 * SAMPLES].equal(first[: 20 * SAMPLES])
    assert sound[20 * SAMPLES : 21 * SAMPLES].allclose(faded) and sound[21 * SAMPLES :].equal(second[SAMPLES:])


def test_a_chunk_sounds_before_what_follows_is_known():
    stream = ChunkStream(DecodeWindow(SAMPLES, REACH, REACH), local, 5, 10)
    assert len(stream.push(CODES[: 4 + REACH])) == 0 and len(stream.push(CODES[4 + REACH : 5 + REACH])) == 5 * SAMPLES


def voice(rate: int, seconds: float) -> np.ndarray:
    """A tone of 150 Hz with overtones, louder and softer."""
    places = np.arange(int(rate * seconds)) / rate
    tone = sum(np.sin(2 * np.pi * 150 * k * places) / k for k in (1, 2, 3, 5))
    return (0.3 * tone * (0.6 + 0.4 * np.sin(5 * places))).astype(np.float32)


def stretched(sound: np.ndarray, rate: int, speed: float, sizes: list[int]) -> np.ndarray:
    stretch, parts, at = TimeStretcher(rate, speed), [], 0
    while at < len(sound):
        size = sizes[len(parts) % len(sizes)]
        parts.append(stretch.push(sound[at : at + size]))
        at += size
    return np.concatenate([*parts, stretch.finish()])


@pytest.mark.parametrize("rate", [16_000, 24_000])
@pytest.mark.parametrize("speed", [0.25, 0.6, 1.0, 1.5, 4.0])
def test_another_speed_keeps_the_pitch_and_the_level(rate: int, speed: float):
    sound = voice(rate, 3)
    out = stretched(sound, rate, speed, [len(sound)])
    assert abs(len(out) - len(sound) / speed) <= 1
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out)), 16 * rate))
    assert abs(spectrum[: 16 * 220].argmax() / 16 - 150) < 3
    assert 0.7 < out.std() / sound.std() < 1.2
    if speed == 1:
        assert np.abs(out - sound).max() < 0.02  # where a period further on is as like


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=6), st.floats(0.25, 4), st.floats(0.01, 0.8))
def test_pieces_join_to_the_whole(sizes: list[int], speed: float, seconds: float):
    sound = voice(16_000, seconds)
    assert np.array_equal(stretched(sound, 16_000, speed, sizes), stretched(sound, 16_000, speed, [len(sound)]))


def test_joins_are_not_heard():
    """Windows laid down where they fall, unmatched, would break a steady tone: it stays a tone."""
    places = np.arange(48_000) / 24_000
    out = stretched((0.5 * np.sin(2 * np.pi * 180 * places)).astype(np.float32), 24_000, 1.3, [999])[1000:-2000]
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out)))) ** 2
    peak = spectrum.argmax()
    assert spectrum[max(0, peak - 40) : peak + 40].sum() / spectrum.sum() > 0.99
