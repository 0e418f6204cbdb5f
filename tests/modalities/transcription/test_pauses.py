"""Pieces of a recording: cut in pauses, none too long, nothing but silence left out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from polydraft.modalities.transcription import pauses
from polydraft.modalities.transcription.features import LogMel, LogMelStream
from polydraft.modalities.transcription.pauses import MIN_PAUSE, cut_at_pauses, recording_loudness

MAX_FRAMES = 3000
SAMPLE_RATE = 16_000


def loudness_of(*runs: tuple[int, float]) -> torch.Tensor:
    """Return loudness of runs of frames, given with their dB."""
    return torch.cat([torch.full((length,), level) for length, level in runs])


def test_pieces_end_in_longest_pause_near_window_end():
    sound = loudness_of((1000, 0.0), (80, -50.0), (1450, 0.0), (40, -50.0), (300, 0.0), (20, -50.0), (900, 0.0))
    assert cut_at_pauses(sound, MAX_FRAMES) == [(0, 2550), (2550, len(sound))]


def test_earlier_pause_is_found_without_later_one():
    sound = loudness_of((900, 0.0), (150, -50.0), (800, 0.0), (30, -50.0), (3000, 0.0), (150, -50.0))
    assert cut_at_pauses(sound, MAX_FRAMES)[:1] == [(0, 1865)]


def test_window_without_pause_is_cut_where_least_loud():
    sound = loudness_of((2600, 0.0), (5, -2.0), (3000, 0.0))
    first, *_ = cut_at_pauses(sound, MAX_FRAMES)
    assert first == (0, 2600)


def test_pauses_of_louder_parts_are_found_too():
    """Later background noise is as loud as the quiet speech before it, which is not left out."""
    before = loudness_of((2900, -20.0), (100, -60.0), (2900, -20.0), (100, -60.0))
    sound = torch.cat([before, loudness_of((2700, 0.0), (50, -20.0), (3000, 0.0))])
    ends = [end for _, end in cut_at_pauses(sound, MAX_FRAMES)]
    assert ends[:3] == [2950, 5925, 8725]


def test_only_long_silence_is_left_out():
    sound = loudness_of((500, -60.0), (800, 0.0), (150, -60.0), (700, 0.0), (4000, -60.0), (900, 0.0), (600, -60.0))
    margin = pauses.MARGIN
    assert cut_at_pauses(sound, MAX_FRAMES) == [(500 - margin, 2150 + margin), (6150 - margin, 7050 + margin)]


def test_silence_is_no_piece_and_steady_sound_is():
    assert cut_at_pauses(torch.full((7000,), -100.0), MAX_FRAMES) == []
    pieces = cut_at_pauses(torch.full((7000,), -40.0), MAX_FRAMES)
    assert pieces[0][0] == 0 and pieces[-1][1] == 7000
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(pieces))


@settings(max_examples=200, deadline=None)
@given(some.lists(some.tuples(some.integers(1, 1200), some.booleans()), min_size=1, max_size=30), some.integers(0, 9))
def test_pieces_cover_all_sound_in_order(runs, seed):
    sound = loudness_of(*((length, 0.0 if is_loud else -50.0) for length, is_loud in runs))
    sound += torch.rand(len(sound), generator=torch.Generator().manual_seed(seed))
    pieces = cut_at_pauses(sound, MAX_FRAMES)
    covered = torch.zeros(len(sound), dtype=torch.long)
    for first, end in pieces:
        assert 0 <= first < end <= len(sound) and end - first <= MAX_FRAMES
        covered[first:end] += 1
    assert pieces == sorted(pieces) and int(covered.max()) <= 1
    assert bool(covered[sound > -20].all()), "sound is lost"
    for first, end in pieces[:-1]:
        reach = sound[first + MAX_FRAMES // 2 : first + MAX_FRAMES] < -20
        is_pause_in_reach = longest_run(reach) >= MIN_PAUSE and 0.05 < float(reach.float().mean()) < 0.95
        assert not is_pause_in_reach or bool((sound[end - 1 : end + 1] < -20).any()), "cut within a word"


def longest_run(flags: torch.Tensor) -> int:
    """Return the length of the longest run of True."""
    return max((len(list(run)) for flag, run in itertools.groupby(flags.tolist()) if flag), default=0)


def sound_with_silences(seconds: float, *silences: tuple[float, float]) -> NDArray[np.float32]:
    """Return noise that is silent at times."""
    sound = 0.1 * np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE)).astype(np.float32)
    for start, end in silences:
        sound[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] *= 1e-3
    return sound


def features_of(sound: NDArray[np.float32]) -> LogMelStream:
    features = LogMel().stream()
    features.push(sound)
    return features


def test_loudness_of_recordings_finds_their_silences(monkeypatch):
    with features_of(sound_with_silences(70.0, (20.0, 24.0), (26.0, 26.4), (50.0, 50.3), (52.0, 60.0))) as features:
        loudness = recording_loudness(features)
        monkeypatch.setattr(pauses, "FRAMES_AT_ONCE", 777)
        assert torch.allclose(recording_loudness(features), loudness, atol=1e-3)
    assert loudness.shape == (7000,) and float(loudness[1000] - loudness[2200]) == pytest.approx(60, abs=3)
    bounds = [bound for piece in cut_at_pauses(loudness, MAX_FRAMES) for bound in piece]
    assert bounds == pytest.approx([0, 2620, 2620, 5230, 5970, 7000], abs=10)


def test_loudness_leaves_out_padding_of_short_sound():
    with features_of(sound_with_silences(2.0)) as features:
        assert recording_loudness(features).shape == (200,)
        assert cut_at_pauses(recording_loudness(features), MAX_FRAMES) == [(0, 200)]
