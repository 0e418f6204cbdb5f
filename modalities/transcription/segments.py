"""Segments of one window of sound: what its tokens say about times, where the next window starts, and how good it is.

    segments, num_frames = split_window(tokens, first_timestamp_id, window_frames, time_offset)
    if needs_fallback(ratio, average, no_speech_prob, thresholds):  # decode the window again, at a higher temperature
        ...

Every function equals transformers 5.24's (`WhisperGenerationMixin`) to the bit.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

TIME_PRECISION = 0.02  # seconds of one step of the timestamps, and of one position of the encoder
FRAME_SECONDS = 0.01  # seconds of one frame of the features
FRAMES_PER_STEP = 2  # frames of the features in one step of the timestamps: the stride of the encoder


class TimedTokens(NamedTuple):
    """Tokens between two timestamps."""

    start: float  # seconds from the start of the sound
    end: float  # seconds from the start of the sound
    tokens: list[int]  # timestamps included


@dataclass(frozen=True)
class QualityThresholds:
    """Limits beyond which the text of a window is not trusted; None turns one off."""

    compression_ratio: float | None = 2.4  # above it the text repeats itself
    log_prob: float | None = -1.0  # average log probability of the tokens, below which the model is unsure
    no_speech: float | None = 0.6  # probability of silence, above which an unsure text is dropped


def split_window(
    tokens: Sequence[int], first_timestamp_id: int, window_frames: int, time_offset: float = 0.0
) -> tuple[list[TimedTokens], int]:
    """Split the tokens of one window at pairs of timestamps.

    What follows the last pair is a sentence that the window cuts: it is dropped, and the next window starts there. A
    single timestamp at the end says that nothing is spoken after it, so the next window follows this one; and so it
    does if there is no pair, when all tokens are one segment.

    Args:
        tokens (Sequence[int]): `[N]` generated ids with timestamps, without the end of the text.
        first_timestamp_id (int): id of 0.00 s; all ids from it on are timestamps.
        window_frames (int): frames of the features in the window that hold sound.
        time_offset (float): seconds of the window's start.

    Returns:
        tuple[list[TimedTokens], int]: the segments, and the number of frames after which the next window starts.
    """
    tokens = list(tokens)
    is_timestamp = [token >= first_timestamp_id for token in tokens]
    cuts = [index + 1 for index, both in enumerate(pairwise(is_timestamp)) if all(both)]  # between two timestamps

    def time_of(token: int) -> float:
        """Return the seconds of a timestamp."""
        return time_offset + (token - first_timestamp_id) * TIME_PRECISION

    if not cuts:
        # in float32, as tensors of transformers are: 30 frames are 14 steps, where exact arithmetic has 15
        last_step = int(np.float32(window_frames) * np.float32(FRAME_SECONDS) / np.float32(TIME_PRECISION))
        last_timestamp = next((token for token in reversed(tokens) if token >= first_timestamp_id), first_timestamp_id)
        if last_timestamp != first_timestamp_id:
            last_step = last_timestamp - first_timestamp_id
        return [TimedTokens(time_offset, time_offset + last_step * TIME_PRECISION, tokens)], window_frames

    ends_in_single = is_timestamp[-2:] == [False, True]
    if ends_in_single:
        cuts.append(len(tokens))
    starts = [0, *cuts[:-1]]
    segments = [
        TimedTokens(time_of(tokens[start]), time_of(tokens[stop - 1]), tokens[start:stop])
        for start, stop in zip(starts, cuts, strict=True)
    ]
    if ends_in_single:
        return segments, window_frames
    # the last segment keeps the first timestamp of what was cut off, so that it ends in a pair
    segments[-1] = segments[-1]._replace(tokens=tokens[starts[-1] : cuts[-1] + 1])
    return segments, (tokens[cuts[-1] - 1] - first_timestamp_id) * FRAMES_PER_STEP


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """Return the size of the ids as bytes over their size compressed by zlib; a text that repeats itself has more.

    Args:
        tokens (Sequence[int]): `[N]` generated ids, the end included.
        vocab_size (int): size of the vocabulary, which says how many bytes an id has.
    """
    num_bytes = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(token.to_bytes(num_bytes, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


def average_log_prob(log_probs: Sequence[float]) -> float:
    """Return the mean log probability of the tokens of a window, 0 if there are none.

    Args:
        log_probs (Sequence[float]): `[N]` of every generated token, the end included, after all logits processors and
            at temperature 1.
    """
    if not len(log_probs):
        return 0.0
    # added one by one in float32
    return float(np.cumsum(np.asarray(log_probs, np.float32))[-1] / np.float32(len(log_probs)))


def is_silent(mean_log_prob: float, no_speech_prob: float, thresholds: QualityThresholds) -> bool:
    """Return True if a window is skipped: the model is unsure of its text, and silence is likely.

    Without a threshold for log probabilities the probability of silence alone decides, as in Whisper's published code;
    transformers fails there.

    Args:
        mean_log_prob (float): `average_log_prob` of its tokens.
        no_speech_prob (float): probability of silence.
        thresholds (QualityThresholds): the limits.
    """
    if thresholds.no_speech is None:
        return False
    is_unsure = thresholds.log_prob is None or mean_log_prob < thresholds.log_prob
    return is_unsure and no_speech_prob > thresholds.no_speech


def needs_fallback(ratio: float, mean_log_prob: float, no_speech_prob: float, thresholds: QualityThresholds) -> bool:
    """Return True if a window is decoded again at a higher temperature.

    Its text repeats itself, or the model is unsure of it, and it is not silent.

    Args:
        ratio (float): `compression_ratio` of its tokens.
        mean_log_prob (float): `average_log_prob` of its tokens.
        no_speech_prob (float): probability of silence.
        thresholds (QualityThresholds): the limits.
    """
    repeats = thresholds.compression_ratio is not None and ratio > thresholds.compression_ratio
    is_unsure = thresholds.log_prob is not None and mean_log_prob < thresholds.log_prob
    return (repeats or is_unsure) and not is_silent(mean_log_prob, no_speech_prob, thresholds)
