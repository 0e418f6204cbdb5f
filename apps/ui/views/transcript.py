"""A transcript as it comes: a line a segment with its time, the words of one pass underlined in that pass's colour."""

from __future__ import annotations

from collections.abc import Sequence

from polydraft.apps.ui.views.answer import answer_text
from polydraft.apps.ui.views.sound import clock_time
from polydraft.modalities.transcription.committed_text import OpenSegment
from polydraft.modalities.transcription.result import Segment


def transcript(segments: Sequence[Segment | OpenSegment], is_going: bool = False, is_timed: bool = True) -> str:
    """Return a transcript as HTML.

    Args:
        segments: in the order of time.
        is_going: whether more will follow.
        is_timed: whether segments have times, at which the page's player starts on a click.
    """
    shown = [segment for segment in segments if any(run.text.strip() for run in segment.runs)]
    caret = '<span class="caret" aria-hidden="true"></span>' if is_going else ""
    lines = [line(segment, is_timed, caret if segment is shown[-1] else "") for segment in shown]
    if is_going:
        return f'<div class="transcript">{"".join(lines) or f"<p>{caret}</p>"}</div>'
    return f'<div class="transcript" tabindex="0" role="group" aria-label="Transcript">{"".join(lines)}</div>'


def line(segment: Segment | OpenSegment, is_timed: bool, caret: str) -> str:
    """Return a segment as a paragraph that ends with `caret`."""
    words = "".join(answer_text(run.target_pass, run.text) for run in segment.runs)
    if not is_timed:
        return f'<p class="line"><span class="words">{words}{caret}</span></p>'
    clock = clock_time(segment.start)
    return (
        f'<p class="line timed"><button type="button" class="at" data-seek="{segment.start:.2f}" '
        f'aria-label="Play from {clock}">{clock}</button><span class="words">{words}{caret}</span></p>'
    )
