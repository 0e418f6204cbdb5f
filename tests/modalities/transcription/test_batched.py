"""Recordings cut at pauses: the same text for every size of a batch, in the order and in the time of the recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polydraft.core.errors import InvalidArgument
from polydraft.core.target.encoder_decoder import ENCODER_INPUT
from polydraft.modalities.request import BatchScheduler
from polydraft.modalities.transcription.features import LogMelStream
from polydraft.modalities.transcription.pauses import MARGIN
from polydraft.modalities.transcription.segments import FRAME_SECONDS, QualityThresholds

from ...live_tensors import LiveTensors
from .tiny_whisper import SAMPLE_RATE, tone

SILENCES = ((0.0, 3.0), (4.6, 4.8), (6.5, 9.5), (11.0, 11.2), (12.6, 12.7), (15.5, 18.0))  # seconds
SECONDS = 18.0
NUM_PIECES = 6  # of at most 2 s
Sound = tuple[NDArray[np.float32], int]


def sound(seconds: float = SECONDS, seed: int = 0) -> Sound:
    """Return a sound with pauses and long silences."""
    samples = tone(seconds, seed) + 0.2
    for start, end in SILENCES:
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = 0
    return samples, SAMPLE_RATE


def finish(request: Any) -> list[int]:
    """Decode a request and return the number of its rows in every pass."""
    scheduler, live = BatchScheduler(request.method), []
    while not request.is_finished:
        scheduler.add_prompts(request, request.schedulable_prompts(99))
        live.append(scheduler.num_live)
        scheduler.step()
    return live


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("method", ["ar", "hypothesis"])
def test_text_does_not_depend_on_batch_size(pipe, temperature, method):
    options: dict[str, Any] = {"language": "en", "temperature": temperature, "seed": 5, "word_timestamps": True}
    plain = pipe(sound(), batch_size=64, method="ar", **options)
    for size in (2, 3, 8):
        given = pipe(sound(), batch_size=size, method=method, hypothesis=plain.text, **options)
        assert given.segments == plain.segments and given.text == plain.text
    assert len(plain.segments) >= NUM_PIECES and plain.finish_reason == "eos"
    if method == "hypothesis":
        assert given.stats.target_passes < plain.stats.target_passes


def test_batch_has_as_many_windows_as_asked(pipe):
    for size in (2, 4):
        request = pipe.run(sound(), language="en", temperature=0.0, batch_size=size, method="ar")
        assert max(finish(request)) == size
        assert len(request.prompts) == len(request.tracks) == NUM_PIECES


def test_segments_lie_in_their_pieces(pipe):
    request = pipe.run(sound(), language="en", temperature=0.0, batch_size=4)
    bounds = [(track.first_frame, track.end_frame) for track in request.tracks]
    finish(request)
    segments = request.result().segments
    assert [first for first, _ in bounds] == sorted({segment.seek for segment in segments})
    for segment in segments:
        first, end = next(each for each in bounds if each[0] == segment.seek)
        assert first * FRAME_SECONDS <= segment.start <= segment.end <= end * FRAME_SECONDS + 0.005
    for silence_start, silence_end in ((0.0, 3.0), (6.5, 9.5), (15.5, 18.0)):
        inner = round(100 * silence_start) + MARGIN + 10, round(100 * silence_end) - MARGIN - 10
        assert not any(first < inner[1] and inner[0] < end for first, end in bounds)


def test_stream_tells_segments_in_order(pipe):
    stream = pipe.stream(sound(), language="en", temperature=1.5, seed=3, batch_size=3, method="ar")
    segments, finished_early, done = [], 0, []
    for step in stream:
        segments += step.segments
        done.append(step.progress.seconds_done)
        assert segments == stream.result().segments[: len(segments)]
        finished_early += len(stream.result().segments) > len(segments)
    assert segments == stream.result().segments
    assert finished_early, "no piece ended before one in front of it"
    assert done == sorted(done) and done[-1] == pytest.approx(SECONDS)


def test_silence_is_not_decoded(pipe):
    silent = np.zeros(5 * SAMPLE_RATE, np.float32)
    given = pipe((silent, SAMPLE_RATE), batch_size=4)
    assert (given.text, given.segments, given.stats.target_passes) == ("", [], 0)
    assert given.duration == 5 and given.finish_reason == "eos" and given.language


def test_segments_without_timestamps_are_pieces(pipe):
    request = pipe.run(sound(), language="en", temperature=0.0, batch_size=4, timestamps=False)
    bounds = [(track.first_frame, track.end_frame) for track in request.tracks]
    finish(request)
    # an untrained model writes timestamps all the same, and more windows follow in a piece
    assert {first for first, _ in bounds} <= {segment.seek for segment in request.result().segments}


def test_language_is_detected_in_first_piece(pipe):
    samples, rate = sound()
    given = pipe((samples, rate), batch_size=4, temperature=0.0)
    first = pipe.run((samples, rate), language="en", batch_size=4).tracks[0].first_frame
    window = pipe.read_sound((samples, rate))
    assert (given.language, given.language_probability) == pipe.detect_language(
        pipe.encoder_input(window, first, pipe.run((samples, rate), language="en", batch_size=4).tracks[0].num_left)
    )


def test_poor_pieces_are_decoded_again(pipe):
    never_good = QualityThresholds(compression_ratio=None, log_prob=0.0, no_speech=None)
    given = pipe(sound(), language="en", temperature=(0.0, 0.4, 0.8), thresholds=never_good, batch_size=3)
    assert {segment.temperature for segment in given.segments} == {0.8}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"), ({"batch_size": 65}, "batch_size"), ({"batch_size": "many"}, "batch_size"),
        ({"batch_size": 2, "condition_on_previous": True}, "condition_on_previous"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(pipe, options, message):
    with pytest.raises(InvalidArgument, match=message):
        pipe(sound(), **options)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_memory_does_not_grow_with_length(pipe, monkeypatch, batch_size):
    """Frames are on disk; of a recording four times as long, no more than windows in work is in memory."""
    monkeypatch.setattr("polydraft.modalities.transcription.features.SPOOLED_BYTES", 1 << 10)
    peaks = []
    for repeats in (1, 1, 4):
        samples = np.tile(sound()[0], repeats)
        with LiveTensors() as counted:
            pipe((samples, SAMPLE_RATE), language="en", temperature=0.0, method="ar", batch_size=batch_size)
        peaks.append(counted.peak)
    loudness = 3 * 4 * 100 * SECONDS * 3  # bytes of three numbers a frame, of what is longer
    assert peaks[2] < peaks[1] + loudness, peaks


def test_probability_of_silence_is_computed_once(pipe, monkeypatch):
    asked: list[int] = []
    compute = pipe.no_speech_probability
    monkeypatch.setattr(pipe, "no_speech_probability", lambda *given: asked.append(1) or compute(*given))
    never_good = QualityThresholds(compression_ratio=None, log_prob=0.0, no_speech=None)
    request = pipe.run(sound(), language="en", temperature=(0.0, 0.4, 0.8), thresholds=never_good, batch_size=3)
    finish(request)
    windows = {id(prompt.model_kwargs[ENCODER_INPUT]) for prompt in request.prompts}
    assert len(asked) == len(windows) == len(request.prompts) / 3 >= NUM_PIECES


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.full(2000, np.nan, np.float32), tone(1.0)])
def test_features_are_closed_where_reading_fails(pipe, monkeypatch, samples):
    closed: list[LogMelStream] = []
    close = LogMelStream.close

    def fail(*_: object) -> None:
        raise RuntimeError("no sound is heard")

    monkeypatch.setattr(LogMelStream, "close", lambda features: closed.append(features) or close(features))
    monkeypatch.setattr(pipe, "detect_language", fail)
    with pytest.raises(Exception, match="recording|sound"):
        pipe((samples, SAMPLE_RATE))
    assert len(closed) == 1
