"""Parts of a long sentence, joined as if it had been said in one go.

A model begins and ends what it says with quiet, so that parts end to end pause for .4 s wherever a sentence was cut.
Here the quiet at a cut is taken away, and the pause of the mark that stands there put in its place.

    streams = joined([first, second], [",", "."], 16_000)   # SoundStreams of the parts, and the marks after them
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polydraft.modalities.speech.family import COMMA_PAUSE, AudioStream

UNMARKED_PAUSE = 0.05  # seconds of pause at a cut where no mark stands
FRAME = 0.005  # seconds; a frame is quiet or not
QUIET = 10 ** (-45 / 10)  # mean square; a voice is at -23 LUFS
LEAD = 0.03  # seconds of quiet kept before a voice, which rises through it: soft sounds begin there
FALL = 0.01  # seconds in which what stands behind a voice falls to silence


def crossfade_parts(
    streams: Sequence[AudioStream],
    marks: Sequence[str],
    sample_rate: int,
    speed: float = 1.0,
    comma: float = COMMA_PAUSE,
) -> list[AudioStream]:
    """`streams`, those at a cut without their quiet there; marks: what stands after each, a comma or nothing at a cut;
    comma: seconds of its pause."""
    pauses = [{",": comma, "": UNMARKED_PAUSE}.get(mark) for mark in marks]
    return [
        stream if before is None and after is None
        else CrossfadedStream(stream, sample_rate, before is not None, None if after is None else after / speed)
        for stream, before, after in zip(streams, [None, *pauses], pauses, strict=False)
    ]  # fmt: skip


class CrossfadedStream:
    """follows: whether a part of the same sentence was said before; pause: seconds after this one, None to leave it.

    Sound is looked at in frames counted from its first sample, so that it is the same however it arrives.
    """

    def __init__(self, inner: AudioStream, sample_rate: int, follows: bool, pause: float | None) -> None:
        self.inner, self.follows, self.pause, self.rate = inner, follows, pause, sample_rate
        self.frame = round(FRAME * sample_rate)
        self.rest = torch.empty(0)  # less than a frame
        self.held = torch.empty(0)  # quiet that may be cut off
        self.heard = False  # whether the voice has begun

    @property
    def look_ahead(self) -> int:
        return self.inner.look_ahead

    def push(self, codes: Tensor) -> Tensor:
        return self._taken(self.inner.push(codes))

    def finish(self) -> Tensor:
        sound = self._taken(self.inner.finish())
        if self.pause is None:
            return torch.cat([sound, self.held, self.rest])
        after = round(self.pause * self.rate) - self._samples(LEAD)  # the next part brings its lead
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
    """Factors from silence to all of it, slow at first: a seam lies in its quieter half."""
    return torch.linspace(0, 1, length + 2)[1:-1].square()
