"""Pieces of a recording that are decoded together: cut at pauses, long silence left out.

    pieces = cut_at_pauses(recording_loudness(features), max_frames=3000)      # [(first frame, end frame), ...]

What counts as quiet is relative: a share of the way from the noise floor to the level of speech, both percentiles of
the loudness (energy-based voice activity detection). A piece ends at the longest pause near the end of its window, as
those of WhisperX do (Bain et al. 2023, arXiv 2303.00747, section 2.2), whose pauses a network finds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.modalities.transcription.features import LogMelStream

FRAMES_AT_ONCE = 6000  # of the features that are in memory: 2 MB
SMOOTHED_FRAMES = 11  # over which power is averaged, so that the closure of a plosive is no pause
FLOOR, LEVEL = 0.01, 0.95  # shares of the frames that are less loud than the noise floor, and than loud speech
SILENCE_SHARE, PAUSE_SHARE = 0.2, 0.35  # of the way from floor to level, below which frames are silent, or in a pause
MIN_RANGE = 6.0  # dB from floor to level, below which the sound is steady, and nothing tells pauses from speech
DIGITAL_SILENCE = -85.0  # dB, in which nothing can be heard: 16-bit dither
MIN_PAUSE = 10  # frames of smoothed quiet
MIN_SILENCE = 200  # frames of a pause that is left out
MARGIN = 30  # frames of it that are kept on either side
REACHES = (0.8, 0.5)  # shares of a window after which its longest pause is looked for, one after the other


def recording_loudness(features: LogMelStream) -> Tensor:
    """Return the loudness of every frame of a recording, without the padding after it.

    Args:
        features (LogMelStream): the whole recording.

    Returns:
        Tensor: [F] float32, in dB.
    """
    num_frames = features.num_sound_frames
    firsts = range(0, num_frames, FRAMES_AT_ONCE)
    windows = (features.window(first, min(FRAMES_AT_ONCE, num_frames - first)) for first in firsts)
    return smoothed_loudness(torch.cat([frame_power(window) for window in windows]))


def frame_power(window: Tensor) -> Tensor:
    """Return the mean power of the mel bands of every frame `[F]` of features `[mels, F]`, as models read them."""
    return (10.0 ** (4 * window - 4)).mean(0)  # features are log10 of power, plus 4, over 4


def smoothed_loudness(power: Tensor) -> Tensor:
    """Return the loudness of frames in dB `[F]`, their power `[F]` averaged over neighbours."""
    averaged = F.avg_pool1d(
        power[None], SMOOTHED_FRAMES, stride=1, padding=SMOOTHED_FRAMES // 2, count_include_pad=False
    )
    return 10 * averaged[0].log10()


def cut_at_pauses(loudness: Tensor, max_frames: int) -> list[tuple[int, int]]:
    """Return pieces of a recording as pairs of first and end frame, in order; none where there is silence alone.

    Args:
        loudness (Tensor): [F], result of `recording_loudness`.
        max_frames (int): frames of the longest piece.
    """
    parts = sounding_parts(loudness)
    pieces: list[tuple[int, int]] = []
    while parts:
        first, last = parts[0][0], parts[-1][1]
        cut = last if last - first <= max_frames else first + find_cut(loudness[first : first + max_frames])
        begun = bisect_left(parts, cut, key=lambda part: part[0])  # parts that begin before the cut
        end = parts[begun - 1][1]
        pieces.append((first, min(cut, end)))
        parts = [(cut, end), *parts[begun:]] if cut < end else parts[begun:]
    return with_margins(pieces, len(loudness), max_frames)


def with_margins(pieces: Sequence[tuple[int, int]], num_frames: int, max_frames: int) -> list[tuple[int, int]]:
    """Return pieces that begin and end in the silence around them, as far as they have room for it."""
    previous_ends, next_firsts = [0, *(end for _, end in pieces)], [*(first for first, _ in pieces[1:]), num_frames]
    extended = []
    for (first, end), previous, following in zip(pieces, previous_ends, next_firsts, strict=False):
        margin = min(MARGIN, (max_frames - (end - first)) // 2)
        extended.append((max(first - margin, previous), min(end + margin, following)))
    return extended


def sounding_parts(loudness: Tensor) -> list[tuple[int, int]]:
    """Return what is left of a recording without long silence, as pairs of first and end frame."""
    silences = quiet_runs(loudness, quiet_threshold(loudness, SILENCE_SHARE), MIN_SILENCE)
    firsts, ends = [0, *(end for _, end in silences)], [*(start for start, _ in silences), len(loudness)]
    return [(first, end) for first, end in zip(firsts, ends, strict=True) if first < end]


def find_cut(loudness: Tensor) -> int:
    """Return the frame before which a window of loudness `[F]` is cut: in a late long pause, or where it is quietest.

    Pauses are told by the end of the window itself, since another part of the recording may be louder or noisier.
    """
    for reach in REACHES:
        start = int(len(loudness) * reach)
        tail = loudness[start:]
        if runs := quiet_runs(tail, quiet_threshold(tail, PAUSE_SHARE), MIN_PAUSE):
            first, end = max(runs, key=lambda run: run[1] - run[0])
            return start + (first + end) // 2
    return start + int(tail.argmin())


def quiet_threshold(loudness: Tensor, share: float) -> float:
    """Return the loudness in dB below which frames are quiet: a share of the way from the noise floor to the level."""
    floor, level = percentile(loudness, FLOOR), percentile(loudness, LEVEL)
    return max(floor + share * (level - floor) if level - floor >= MIN_RANGE else -torch.inf, DIGITAL_SILENCE)


def quiet_runs(loudness: Tensor, threshold: float, min_frames: int) -> list[tuple[int, int]]:
    """Return runs of at least `min_frames` frames below a threshold, as pairs of first and end frame."""
    is_quiet = F.pad((loudness < threshold).byte(), (1, 1))
    changes = is_quiet.diff().nonzero()[:, 0].view(-1, 2)
    return [(first, end) for first, end in changes.tolist() if end - first >= min_frames]


def percentile(values: Tensor, share: float) -> float:
    """Return the value below which a share of the values `[N]` lies."""
    return float(values.kthvalue(1 + int(share * (len(values) - 1))).values)
