"""Crossfading of the parts of a long sentence, so that it sounds as if it was synthesised at once.

A model begins and ends its audio with silence, so that concatenated parts would pause for 0.4 s wherever a sentence was
cut. That silence is replaced by the pause of the punctuation mark at the cut.

    streams = crossfade_parts([first, second], [",", "."], 16_000)   # streams of the parts, marks after them
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

    Frames are counted from the first sample, so the result does not depend on how the audio arrives.

    Args:
        inner (AudioStream): audio of the part.
        sample_rate (int): in Hz.
        is_continuation (bool): whether a part of the same sentence precedes.
        pause (float | None): seconds of pause after this part; None keeps its end.
    """

    def __init__(self, inner: AudioStream, sample_rate: int, is_continuation: bool, pause: float | None) -> None:
        self.inner: AudioStream = inner
        self.is_continuation: bool = is_continuation
        self.pause: float | None = pause
        self.sample_rate: int = sample_rate
        self.frame: int = round(FRAME * sample_rate)
        self.partial_frame: Tensor = torch.empty(0)  # samples of an incomplete frame
        self.pending: Tensor = torch.empty(0)  # quiet samples that may be removed
        self.has_speech: bool = False  # set once a frame is loud

    @property
    def look_ahead(self) -> int:
        return self.inner.look_ahead

    def push(self, codes: Tensor) -> Tensor:
        return self._trim_silence(self.inner.push(codes))

    def finish(self) -> Tensor:
        audio = self._trim_silence(self.inner.finish())
        if self.pause is None:
            return torch.cat([audio, self.pending, self.partial_frame])
        # The next part keeps LEAD seconds of the quiet before its speech.
        after = round(self.pause * self.sample_rate) - self._samples(LEAD)
        quiet = torch.zeros(max(0, after))
        tail = torch.cat([self.pending, self.partial_frame])[: min(len(quiet), self._samples(FALL))]
        quiet[: len(tail)] = tail * fade_in(len(tail)).flip(0)
        return torch.cat([audio, quiet])

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.sample_rate)

    def _trim_silence(self, audio: Tensor) -> Tensor:
        """Return the part of `audio` that is certain to stay."""
        audio = torch.cat([self.partial_frame, audio])
        complete = len(audio) // self.frame * self.frame
        audio, self.partial_frame = audio[:complete], audio[complete:]
        loud_frames = (audio.view(-1, self.frame).square().mean(1) > QUIET).nonzero()[:, 0]
        if self.has_speech and self.pause is None:
            return audio
        if not len(loud_frames):
            if not self.has_speech and not self.is_continuation:
                return audio
            self.pending = torch.cat([self.pending, audio])
            return audio[:0]
        audio = torch.cat([self.pending, audio])
        begin, end = 0, len(audio)
        if not self.has_speech and self.is_continuation:
            first = len(self.pending) + int(loud_frames[0]) * self.frame
            begin = max(0, first - self._samples(LEAD))
            audio[begin:first] *= fade_in(first - begin)
        if self.pause is not None:
            end = len(self.pending) + (int(loud_frames[-1]) + 1) * self.frame
        self.has_speech, self.pending = True, audio[end:]
        return audio[begin:end]


def fade_in(length: int) -> Tensor:
    """Return quadratic fade-in factors `[length]`, so that a seam lies in the quieter half."""
    return torch.linspace(0, 1, length + 2)[1:-1].square()
