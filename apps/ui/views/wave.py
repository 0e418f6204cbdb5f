"""A recording as a wave along time: its segments, and under them the runs in the colours of their passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.ui.views.runs import SHADES
from polydraft.apps.ui.views.sound import ticks
from polydraft.modalities.transcription.committed_text import CommittedText, OpenSegment
from polydraft.modalities.transcription.result import Segment
from polydraft.modalities.transcription.sound import SAMPLE_RATE

BIN = SAMPLE_RATE // 200  # samples of one peak
LINES_PER_SECOND, FEWEST_LINES, MOST_LINES = 5, 180, 3000  # vertical lines that the wave is drawn with
SMALLEST_PEAK = 0.02  # what is softer all along is drawn as silence
SECONDS_PER_LETTER = 0.06  # of a segment whose end is not known yet
SECONDS_PER_TICK, MOST_TICKS = 10, 120  # of a long recording, which is wider than the stage
MOST_TITLES = 400  # runs that have a title of their own; more are drawn as one shape a colour


class Envelope:
    """Loudness of a recording that is being read; one thread adds, another draws."""

    def __init__(self) -> None:
        self.parts: list[NDArray[np.float32]] = []  # peaks
        self.rest: NDArray[np.float32] = np.zeros(0, np.float32)  # samples that fill no bin
        self.drawn: tuple[int, str] = (0, "")  # number of parts of the last path, and the path

    @property
    def peaks(self) -> NDArray[np.float32]:
        """Return the largest absolute sample of every bin, `[N]`."""
        return np.concatenate([np.zeros(0, np.float32), *self.parts])

    @property
    def seconds(self) -> float:
        return sum(map(len, self.parts)) * BIN / SAMPLE_RATE

    def add(self, samples: NDArray[np.float32]) -> None:
        """Append sound `[S]` at 16 kHz."""
        samples = np.concatenate([self.rest, samples])
        count = len(samples) // BIN
        self.parts.append(np.abs(samples[: count * BIN]).reshape(count, BIN).max(1, initial=0.0))
        self.rest = samples[count * BIN :]

    def path(self) -> str:
        """Return the SVG path of the wave: vertical lines around 50, with a second as the unit of width."""
        num_parts = len(self.parts)
        if num_parts > self.drawn[0]:
            self.drawn = num_parts, draw_peaks(np.concatenate(self.parts[:num_parts]))
        return self.drawn[1]


def draw_peaks(peaks: NDArray[np.float32]) -> str:
    """Return the SVG path of peaks `[N]`."""
    if not len(peaks):
        return ""
    seconds = len(peaks) * BIN / SAMPLE_RATE
    count = min(len(peaks), MOST_LINES, max(FEWEST_LINES, round(LINES_PER_SECOND * seconds)))
    edges = np.linspace(0, len(peaks), count + 1).astype(int)
    tops = np.maximum.reduceat(peaks, edges[:-1])
    heights = 44 * (tops / max(float(tops.max()), SMALLEST_PEAK)) ** 0.75
    width = seconds / count
    return "".join(
        f"M{(index + 0.5) * width:.2f} {50 - height:.1f}V{50 + height:.1f}" for index, height in enumerate(heights)
    )


class TimedRun(NamedTuple):
    """Run of text with the time that it takes, in seconds; the words of a segment have no times of their own."""

    start: float
    end: float
    text: CommittedText

    @property
    def shade(self) -> int:
        return (self.text.target_pass - 1) % SHADES

    def __str__(self) -> str:
        tokens = self.text.num_tokens
        return f"pass {self.text.target_pass}: {tokens} token{'s' if tokens != 1 else ''}"


def span_of(segment: Segment | OpenSegment, length: float) -> tuple[float, float]:
    """Return start and end of a segment within the recording, since a model may write on after its end.

    An end that is not known yet is a guess by the length of the text.
    """
    letters = sum(len(run.text) for run in segment.runs)
    end = segment.start + SECONDS_PER_LETTER * letters if segment.end is None else segment.end
    start = min(segment.start, length)
    return start, max(start, min(end, length))


def timed_runs(segments: Sequence[Segment | OpenSegment], length: float) -> Iterator[TimedRun]:
    """Yield the runs of all segments, each as long as its part of the segment's text."""
    for segment in segments:
        shown = [run for run in segment.runs if run.text.strip()]
        letters = sum(len(run.text) for run in shown)
        start, last = span_of(segment, length)
        seconds = last - start
        for run in shown:
            end = start + seconds * len(run.text) / letters
            yield TimedRun(start, end, run)
            start = end


def segment_box(segment: Segment | OpenSegment, length: float) -> str:
    """Return a segment as a box behind the wave, with its text as title."""
    start, end = span_of(segment, length)
    text = escape("".join(run.text for run in segment.runs).strip())
    place = f'x="{start:.2f}" width="{end - start:.2f}" y="0" height="100"'
    return f'<rect class="segment" {place}><title>{text}</title></rect>'


def band(runs: Sequence[TimedRun]) -> str:
    """Return runs as boxes, each with a title, or as one shape of each colour where there are very many."""
    if len(runs) <= MOST_TITLES:
        return "".join(
            f'<rect class="run shade-{run.shade}" x="{run.start:.3f}" width="{run.end - run.start:.3f}" y="0" '
            f'height="1"><title>{run}</title></rect>'
            for run in runs
        )
    shapes = [""] * SHADES
    for run in runs:
        shapes[run.shade] += f"M{run.start:.2f} 0H{run.end:.2f}V1H{run.start:.2f}Z"
    return "".join(f'<path class="run shade-{shade}" d="{shape}"/>' for shade, shape in enumerate(shapes) if shape)


def wave(
    path: str, segments: Sequence[Segment | OpenSegment], length: float, source: str = "", is_going: bool = False
) -> str:
    """Return the wave of a recording with its segments and runs.

    Args:
        path: of the wave, as `Envelope.path` returns it.
        segments: in the order of time.
        length: seconds of the recording.
        source: address that the page's player plays it from.
        is_going: whether more segments will follow, so that what has none yet is dimmed.
    """
    length = max(length, 0.1)
    front = max((span_of(segment, length)[1] for segment in segments), default=0.0) if is_going else length
    shades = "".join(segment_box(segment, length) for segment in segments)
    rest = f'<rect class="unheard" x="{front:.2f}" width="{length - front:.2f}" y="0" height="100"/>'
    played = f' data-sound="{escape(source)}" data-source="{escape(source)}"' if source else ""
    front_mark = f' data-front="{front / length:.4f}"' if is_going else ""
    return (
        f'<div class="sound recording"{played} data-length="{length:.3f}"{front_mark} tabindex="0" role="group" '
        'aria-label="Recording">'
        f'<div class="reel" style="--seconds:{length:.2f}">'
        f'<div class="wave" role="img" aria-label="Wave of {length:.1f} seconds of sound">'
        f'<svg viewBox="0 0 {length:.4f} 100" preserveAspectRatio="none" aria-hidden="true">'
        f'{shades}<path class="line" d="{path}"/>{rest}</svg></div>'
        f'<svg class="band" viewBox="0 0 {length:.4f} 1" preserveAspectRatio="none" aria-hidden="true">'
        f"{band(list(timed_runs(segments, length)))}</svg>"
        f'<div class="ticks" aria-hidden="true">{ticks(length, num_ticks(length))}</div>'
        '<span class="playhead" aria-hidden="true"></span></div></div>'
    )


def num_ticks(length: float) -> float:
    """Return the most ticks along a wave of `length` seconds, of which there are more where it is wider."""
    return min(max(8, length / SECONDS_PER_TICK), MOST_TICKS)
