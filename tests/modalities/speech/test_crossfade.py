"""Parts of a sentence joined by the pause of their mark, voices at one loudness: whole or streamed, to the bit."""

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


class Played:
    """A stream whose codes are samples' places: code i sounds as samples i · 320 and on, the last two are held back."""

    look_ahead = 2

    def __init__(self, sound: Tensor) -> None:
        self.sound, self.codes, self.done = sound, 0, 0

    def push(self, codes: Tensor) -> Tensor:
        self.codes += len(codes)
        return self._until(max(self.done, (self.codes - self.look_ahead) * SAMPLES))

    def finish(self) -> Tensor:
        return self._until(len(self.sound))

    def _until(self, end: int) -> Tensor:
        begin, self.done = self.done, end
        return self.sound[begin:end].clone()


def said(seconds: float, quiet: float = 0.2, hiss: float = 1e-3) -> Tensor:
    """A tone with quiet before and behind it."""
    samples = round((seconds + 2 * quiet) * RATE / SAMPLES) * SAMPLES
    sound = hiss * torch.sin(torch.arange(samples) * 1.7)
    edge = round(quiet * RATE)
    sound[edge:-edge] += 0.2 * torch.sin(torch.arange(samples - 2 * edge) * 0.1)
    return sound


def heard(stream: object, codes: int, sizes: list[int]) -> Tensor:
    """All a stream gives for codes that come in pieces of these sizes."""
    pieces, left = [], codes
    for size in [*sizes, codes]:
        size = min(size, left)
        pieces.append(stream.push(torch.zeros(size, dtype=torch.long)))  # type: ignore[attr-defined]
        left -= size
    return torch.cat([*pieces, stream.finish()])  # type: ignore[attr-defined]


def silence(sound: Tensor) -> float:
    """Seconds of the longest quiet between the first and the last loud sample."""
    loud = (sound.abs() > 0.02).nonzero()[:, 0]
    return float(loud.diff().max()) / RATE


@pytest.mark.parametrize(("mark", "pause"), [(",", COMMA_PAUSE), (",", 0.2), ("", UNMARKED_PAUSE)])
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_the_pause_at_a_cut_is_that_of_its_mark(mark: str, pause: float, speed: float) -> None:
    first, second = said(0.5), said(0.6)
    streams = crossfade_parts([Played(first), Played(second)], [mark, "."], RATE, speed, pause if mark else COMMA_PAUSE)
    sounds = [heard(stream, len(sound) // SAMPLES, []) for stream, sound in zip(streams, (first, second), strict=True)]
    wanted = max(pause / speed, LEAD)
    assert abs(silence(torch.cat(sounds)) - wanted) <= 2 * FRAME
    assert silence(torch.cat([first, second])) > 0.39  # what it would be
    assert sounds[0][: round(0.2 * RATE)].equal(first[: round(0.2 * RATE)])  # the sentence's own start stays
    assert sounds[1][-round(0.2 * RATE) :].equal(second[-round(0.2 * RATE) :])  # and its own end


def test_sentences_keep_their_quiet() -> None:
    streams = [Played(said(0.5)), Played(said(0.5))]
    assert crossfade_parts(streams, [".", "?"], RATE) == streams


def test_soft_sound_before_a_voice_is_kept_and_clicks_are_not() -> None:
    soft = said(0.5, hiss=4e-3)
    (_, stream) = crossfade_parts([Played(soft), Played(soft)], ["", "."], RATE)
    sound = heard(stream, len(soft) // SAMPLES, [])
    lead = round(LEAD * RATE)
    assert sound[0].abs() < 1e-3 and sound[lead // 2 : lead].abs().max() > 3e-3


@pytest.mark.parametrize("mark", [",", ""])
def test_a_seam_is_silent(mark: str) -> None:
    loudest = said(0.5, hiss=7.5e-3)  # quiet as it may be to pass for quiet: -45 dBFS
    streams = crossfade_parts([Played(loudest), Played(loudest)], [mark, "."], RATE)
    before, after = (heard(stream, len(loudest) // SAMPLES, []) for stream in streams)
    half = round(0.015 * RATE)
    seam = torch.cat([before[-half:], after[:half]])
    assert 10 * seam.square().mean().log10() < -60
    assert 10 * loudest[:half].square().mean().log10() > -46


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([",", "", "."]), st.booleans())
def test_streamed_is_whole(sizes: list[int], mark: str, follows: bool) -> None:
    sound = said(0.3)

    def stream() -> object:
        played = LoudnessNormalisedStream(Played(sound), 1.5, RATE)
        return crossfade_parts([Played(sound), played], ["," if follows else ".", mark], RATE)[1]

    codes = len(sound) // SAMPLES
    assert heard(stream(), codes, sizes).equal(heard(stream(), codes, []))


def test_a_part_of_silence_ends() -> None:
    quiet = torch.zeros(3200)
    streams = crossfade_parts([Played(quiet), Played(quiet), Played(quiet)], [",", ",", "."], RATE)
    lengths = [len(heard(stream, 10, [3, 3])) for stream in streams]
    assert lengths == [3200 + round((COMMA_PAUSE - LEAD) * RATE), round((COMMA_PAUSE - LEAD) * RATE), 3200]


def test_a_level_and_a_silent_start() -> None:
    sound = said(0.3, hiss=0.01)
    levelled = heard(
        LoudnessNormalisedStream(Played(sound), loudness_gain(LOUDNESS + 6), RATE), len(sound) // SAMPLES, [1, 1, 2]
    )
    edge = round(SETTLING * RATE)
    assert levelled[:edge].abs().max() == 0 and levelled[edge : edge + 160].abs().max() < 0.01
    assert torch.allclose(levelled[1600:], sound[1600:] * 10 ** (-6 / 20))
