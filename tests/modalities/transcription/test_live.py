"""Live captions: final words never change, and drafts from the transcript before change none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.transcription.live import Caption, LiveOptions, LiveTranscript
from polydraft.modalities.transcription.pipeline import WhisperPipeline

from .tiny_whisper import tone


def chunks(seconds: float, size: int = 700) -> Iterator[NDArray[np.float32]]:
    """Yield a sound in pieces that fit no interval."""
    sound = tone(seconds, 3)
    for start in range(0, len(sound), size):
        yield sound[start : start + size]


def captions(pipe: WhisperPipeline, seconds: float, size: int = 700, **options: object) -> list[Caption]:
    return list(pipe.listen(chunks(seconds, size), language="en", interval=0.25, **options))  # type: ignore[arg-type]


def test_drafted_captions_equal_plain_ones(pipe):
    drafted, plain = captions(pipe, 5.0), captions(pipe, 5.0, speculative=False)
    assert [(each.final, each.tentative) for each in drafted] == [(each.final, each.tentative) for each in plain]
    assert drafted[-1].seconds == pytest.approx(5.0) and not drafted[-1].tentative
    assert len(drafted) == 21, "one an interval, and the end"
    passes = [sum(each.stats.target_passes for each in every) for every in (drafted, plain)]
    assert passes[0] < passes[1] == sum(each.stats.tokens for each in plain)


def test_captions_do_not_depend_on_chunks(pipe):
    whole = captions(pipe, 3.0, size=10**9)
    for size in (1600, 4001):
        assert [each.final for each in captions(pipe, 3.0, size)] == [each.final for each in whole]


def build_live(pipe: WhisperPipeline, transcripts: list[list[int]], monkeypatch) -> LiveTranscript:
    """Return a live transcript whose windows have the given transcripts, one after the other."""
    live = LiveTranscript(pipe, pipe.method(pipe.parse_method("ar")), LiveOptions("en", "transcribe", 0.25, 0))
    coming = iter(transcripts)
    decode_window = live.decode_window
    monkeypatch.setattr(live, "decode_window", lambda: (next(coming), decode_window()[1]))
    return live


def test_words_are_final_once_two_transcripts_agree(pipe, monkeypatch):
    first = pipe.control_tokens.first_timestamp
    live = build_live(
        pipe, [[first, 1, 2, 3], [first, 1, 2, 4, 5], [first, 1, 2, 4, 5], [first, 9, 2, 4, 5, 6]], monkeypatch
    )
    found = list(live.push(tone(1.0)))
    letters = [pipe.decode_text([token]) for token in range(10)]
    assert [each.final for each in found] == ["", letters[1] + letters[2], letters[4] + letters[5], ""]
    assert [each.tentative for each in found] == [
        letters[1] + letters[2] + letters[3], letters[4] + letters[5], "", letters[6],
    ]  # fmt: skip


def test_window_begins_after_final_segments(pipe, monkeypatch):
    """At 1.75 of 2 s the window is long: the segment that ends at 0.8 s leaves it, and its words are not told again."""
    first = pipe.control_tokens.first_timestamp
    transcript = [first, 1, 2, first + 40, first + 40, 3, 4]
    live = build_live(pipe, [transcript] * 6 + [[first, 3, 4], [first, 3, 4, 5]], monkeypatch)
    found = list(live.push(tone(2.0)))
    assert live.first_frame == 80 and live.num_frames == 120
    text = "".join(each.final for each in found) + next(live.finish()).final
    assert text == pipe.decode_text([1, 2, 3, 4, 5])


def test_full_window_without_final_segment_leaves_whole(pipe, monkeypatch):
    first = pipe.control_tokens.first_timestamp
    live = build_live(pipe, [[first, 1]] * 8 + [[first, 2]], monkeypatch)
    found = list(live.push(tone(2.25)))
    assert live.first_frame == 200
    assert "".join(each.final for each in found) + next(live.finish()).final == pipe.decode_text([1, 2])


@pytest.mark.parametrize(("options", "message"), [({}, "give the language"), ({"interval": 0}, "interval")])
def test_impossible_options_are_refused(pipe, options, message):
    with pytest.raises(InvalidArgument, match=message):
        pipe.listen([], **({"language": "en"} if options else {}) | options)
