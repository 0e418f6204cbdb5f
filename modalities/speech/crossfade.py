"""Joining of the parts of a long sentence, so that it sounds as if synthesised in one go.

A model begins and ends its audio with silence, so that concatenated parts would pause for 0.4 s wherever a sentence was
cut. That silence is replaced by the pause of the punctuation mark at the cut.

    streams = crossfade_parts([first, second], [",", "."], 16_000)   # AudioStreams of the parts, and the marks after them
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polydraft.modalities.speech.family import COMMA_PAUSE, AudioStream

UNMARKED_PAUSE = 0.05  # seconds of pause at a cut without a mark
FRAME = 0.005  # seconds; frames are classified as quiet or not
QUIET = 10 ** (-45 / 10)  # mean square; a voice is at -23 LUFS
LEAD = 0.03  # seconds of quiet kept before speech and faded in, since soft sounds begin there
FALL = 0.01  # seconds in which the audio after speech is faded out


def crossfade_parts(
    streams: Sequence[AudioStream],
    marks: Sequence[str],
    sample_rate: int,
    speed: float = 1.0,
    comma: float = COMMA_PAUSE,
) -> list[AudioStream]:
    """Wrap the streams of sentence parts so that the silence at cuts is replaced by the pause of the mark there.

    Args:
        streams (Sequence[AudioStream]): one per part.
        marks (Sequence[str]): mark after each part; a comma or an empty string is a cut.
        sample_rate (int): in Hz.
        speed (float): pauses are divided by it.
        comma (float): seconds of pause at a comma.

    Returns:
        list[AudioStream]: streams that touch no cut are returned as they are.
    """
    pauses = [{",": comma, "": UNMARKED_PAUSE}.get(mark) for mark in marks]
    return [
        stream if before is None and after is None
        else CrossfadedStream(stream, sample_rate, before is not None, None if after is None else after / speed)
        for stream, before, after in zip(streams, [None, *pauses], pauses, strict=False)
    ]  # fmt: skip


class CrossfadedStream:
    """Audio stream of a sentence part, without the silence at its cuts.

    `follows` is set if a part of the same sentence precedes; `pause` is the pause after this part in seconds, or None to
    keep its end. Frames are counted from the first sample, so the result does not depend on how the audio arrives.
    """

    def __init__(self, inner: AudioStream, sample_rate: int, follows: bool, pause: float | None) -> None:
        self.inner, self.follows, self.pause, self.rate = inner, follows, pause, sample_rate
        self.frame = round(FRAME * sample_rate)
        self.rest = torch.empty(0)  # samples of an incomplete frame
        self.held = torch.empty(0)  # quiet samples that may be removed
        self.heard = False  # whether speech has begun

    @property
    def look_ahead(self) -> int:
        return self.inner.look_ahead

    def push(self, codes: Tensor) -> Tensor:
        return self._taken(self.inner.push(codes))

    def finish(self) -> Tensor:
        sound = self._taken(self.inner.finish())
        if self.pause is None:
            return torch.cat([sound, self.held, self.rest])
        after = round(self.pause * self.rate) - self._samples(LEAD)  # the next part keeps LEAD seconds of its own
        quiet = torch.zeros(max(0, after))
        tail = torch.cat([self.held, self.rest])[: min(len(quiet), self._samples(FALL))]
        quiet[: len(tail)] = tail * fade_in(len(tail)).flip(0)
        return torch.cat([sound, quiet])

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.rate)

    def _taken(self, sound: Tensor) -> Tensor:
        """Return the part of `sound` that is certain to stay."""
        sound = torch.cat([self.rest, sound])
        whole = len(sound) // self.frame * self.frame
        sound, self.rest = sound[:whole], sound[whole:]
        loud = (sound.view(-1, self.frame).square().mean(1) > QUIET).nonzero()[:, 0]
        if self.heard and self.pause is None:
            return sound
        if not len(loud):
            if not self.heard and not self.follows:
                return sound
            self.held = torch.cat([self.held, sound])
            return sound[:0]
        sound = torch.cat([self.held, sound])
        begin, end = 0, len(sound)
        if not self.heard and self.follows:
            first = len(self.held) + int(loud[0]) * self.frame
            begin = max(0, first - self._samples(LEAD))
            sound[begin:first] *= fade_in(first - begin)
        if self.pause is not None:
            end = len(self.held) + (int(loud[-1]) + 1) * self.frame
        self.heard, self.held = True, sound[end:]
        return sound[begin:end]


def fade_in(length: int) -> Tensor:
    """Return quadratic fade-in factors `[length]`, so that a seam lies in the quieter half."""
    return torch.linspace(0, 1, length + 2)[1:-1].square()
