"""Crossfaded sentence parts and loudness normalisation: streamed audio is bitwise equal to whole audio."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polydraft.modalities.speech.crossfade import FRAME, LEAD, UNMARKED_PAUSE, crossfade_parts
from polydraft.modalities.speech.family import COMMA_PAUSE
from polydraft.modalities.speech.loudness import LOUDNESS, SETTLING, LoudnessNormalisedStream, loudness_gain

RATE, SAMPLES = 16_000, 320


class PlaybackStream:
    """Audio stream that plays 320 samples of a given signal per code, with a look-ahead of two codes."""

    look_ahead = 2

    def __init__(self, audio: Tensor) -> None:
        self.audio, self.codes, self.num_emitted = audio, 0, 0

    def push(self, codes: Tensor) -> Tensor:
        self.codes += len(codes)
        return self._emit_until(max(self.num_emitted, (self.codes - self.look_ahead) * SAMPLES))

    def finish(self) -> Tensor:
        return self._emit_until(len(self.audio))

    def _emit_until(self, end: int) -> Tensor:
        begin, self.num_emitted = self.num_emitted, end
        return self.audio[begin:end].clone()


def tone_with_silence(seconds: float, quiet: float = 0.2, hiss: float = 1e-3) -> Tensor:
    """Return a tone with quiet noise before and after it."""
    samples = round((seconds + 2 * quiet) * RATE / SAMPLES) * SAMPLES
    audio = hiss * torch.sin(torch.arange(samples) * 1.7)
    edge = round(quiet * RATE)
    audio[edge:-edge] += 0.2 * torch.sin(torch.arange(samples - 2 * edge) * 0.1)
    return audio


def collect_audio(stream: object, codes: int, sizes: list[int]) -> Tensor:
    """Return all audio of a stream whose codes arrive in pieces of these sizes."""
    pieces, left = [], codes
    for size in [*sizes, codes]:
        size = min(size, left)
        pieces.append(stream.push(torch.zeros(size, dtype=torch.long)))  # type: ignore[attr-defined]
        left -= size
    return torch.cat([*pieces, stream.finish()])  # type: ignore[attr-defined]


def longest_pause(audio: Tensor) -> float:
    """Return the seconds of the longest quiet between the first and the last loud sample."""
    loud = (audio.abs() > 0.02).nonzero()[:, 0]
    return float(loud.diff().max()) / RATE


@pytest.mark.parametrize(("mark", "pause"), [(",", COMMA_PAUSE), (",", 0.2), ("", UNMARKED_PAUSE)])
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_crossfade_cut_has_pause_of_its_mark(mark: str, pause: float, speed: float) -> None:
    first, second = tone_with_silence(0.5), tone_with_silence(0.6)
    streams = crossfade_parts(
        [PlaybackStream(first), PlaybackStream(second)], [mark, "."], RATE, speed, pause if mark else COMMA_PAUSE
    )
    pieces = [
        collect_audio(stream, len(audio) // SAMPLES, []) for stream, audio in zip(streams, (first, second), strict=True)
    ]
    expected = max(pause / speed, LEAD)
    assert abs(longest_pause(torch.cat(pieces)) - expected) <= 2 * FRAME
    assert longest_pause(torch.cat([first, second])) > 0.39  # the pause without crossfading
    assert pieces[0][: round(0.2 * RATE)].equal(first[: round(0.2 * RATE)])  # the start of the sentence is unchanged
    assert pieces[1][-round(0.2 * RATE) :].equal(second[-round(0.2 * RATE) :])  # and so is its end


def test_crossfade_without_cut_returns_streams_unchanged() -> None:
    streams = [PlaybackStream(tone_with_silence(0.5)), PlaybackStream(tone_with_silence(0.5))]
    assert crossfade_parts(streams, [".", "?"], RATE) == streams


def test_crossfade_keeps_soft_onset_and_removes_click() -> None:
    soft = tone_with_silence(0.5, hiss=4e-3)
    (_, stream) = crossfade_parts([PlaybackStream(soft), PlaybackStream(soft)], ["", "."], RATE)
    audio = collect_audio(stream, len(soft) // SAMPLES, [])
    lead = round(LEAD * RATE)
    assert audio[0].abs() < 1e-3 and audio[lead // 2 : lead].abs().max() > 3e-3


@pytest.mark.parametrize("mark", [",", ""])
def test_crossfade_seam_is_silent(mark: str) -> None:
    loudest = tone_with_silence(0.5, hiss=7.5e-3)  # the loudest noise that counts as quiet: -45 dBFS
    streams = crossfade_parts([PlaybackStream(loudest), PlaybackStream(loudest)], [mark, "."], RATE)
    before, after = (collect_audio(stream, len(loudest) // SAMPLES, []) for stream in streams)
    half = round(0.015 * RATE)
    seam = torch.cat([before[-half:], after[:half]])
    assert 10 * seam.square().mean().log10() < -60
    assert 10 * loudest[:half].square().mean().log10() > -46


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([",", "", "."]), st.booleans())
def test_crossfade_streamed_audio_equals_whole_audio(sizes: list[int], mark: str, follows: bool) -> None:
    audio = tone_with_silence(0.3)

    def stream() -> object:
        normalised = LoudnessNormalisedStream(PlaybackStream(audio), 1.5, RATE)
        return crossfade_parts([PlaybackStream(audio), normalised], ["," if follows else ".", mark], RATE)[1]

    codes = len(audio) // SAMPLES
    assert collect_audio(stream(), codes, sizes).equal(collect_audio(stream(), codes, []))


def test_crossfade_silent_part_ends_with_pause() -> None:
    quiet = torch.zeros(3200)
    streams = crossfade_parts(
        [PlaybackStream(quiet), PlaybackStream(quiet), PlaybackStream(quiet)], [",", ",", "."], RATE
    )
    lengths = [len(collect_audio(stream, 10, [3, 3])) for stream in streams]
    assert lengths == [3200 + round((COMMA_PAUSE - LEAD) * RATE), round((COMMA_PAUSE - LEAD) * RATE), 3200]


def test_loudness_stream_scales_and_starts_silent() -> None:
    audio = tone_with_silence(0.3, hiss=0.01)
    normalised = collect_audio(
        LoudnessNormalisedStream(PlaybackStream(audio), loudness_gain(LOUDNESS + 6), RATE),
        len(audio) // SAMPLES,
        [1, 1, 2],
    )
    edge = round(SETTLING * RATE)
    assert normalised[:edge].abs().max() == 0 and normalised[edge : edge + 160].abs().max() < 0.01
    assert torch.allclose(normalised[1600:], audio[1600:] * 10 ** (-6 / 20))
