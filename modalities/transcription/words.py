"""Times of words: where a decoder's attention to the sound moves on from token to token.

    ends = token_end_times(attention)         # seconds, from [H, N, S]
    words = alignment.words(range(5, 20))     # of these tokens

As in Whisper's published code (`whisper/timing.py`) and in transformers 5.24, whose times these are: attention of some
heads is normalised over the tokens and smoothed over time, and dynamic time warping finds the monotone path of most
attention (Sakoe and Chiba 1978). Words are split as there, and do not reach into the silence around them.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.transcription.pauses import SILENCE_SHARE, quiet_runs, quiet_threshold
from polydraft.modalities.transcription.result import Word
from polydraft.modalities.transcription.segments import FRAME_SECONDS, TIME_PRECISION, TimedTokens

MEDIAN_WIDTH = 7  # positions of the encoder that attention is smoothed over
# pairs of 7 values that are put in order, one after the other, after which the fourth is the median (N. Devillard 1998)
MEDIAN_EXCHANGES = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
)  # fmt: skip
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages whose words are not told by spaces
BEFORE_WORD, AFTER_WORD = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # marks that belong to the word after, or before
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a part of a character decodes to
WORD_PAUSE, SHORTEST_WORD = 20, 15  # frames of smoothed quiet that are no part of a word, and of a word beside it
DIAGONAL, UP, LEFT = 0, 1, 2  # steps of a path, backwards

Decode = Callable[[Sequence[int]], str]


def find_alignment_heads(model: Any) -> list[tuple[int, int]]:
    """Return the heads of a model's decoder whose attention follows the sound, as pairs of layer and head.

    Where its generation config names none, they are all of the later half of the layers, as in Whisper's own code.

    Raises:
        WeightsError: it names one that the decoder has not.
    """
    num_layers, num_heads = model.config.decoder_layers, model.config.decoder_attention_heads
    existing = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    given = getattr(model.generation_config, "alignment_heads", None)
    if not given:
        return existing[num_layers // 2 * num_heads :]
    if wrong := [head for head in given if tuple(head) not in existing]:
        raise WeightsError(
            f"alignment_heads in generation_config.json names {wrong[0]}, and the decoder has {num_layers} layers with "
            f"{num_heads} heads; mend the file, or leave the field out."
        )
    return [(layer, head) for layer, head in given]


def token_end_times(attention: Tensor) -> NDArray[np.float64]:
    """Return the seconds from a window's start at which tokens end, each where the next one begins.

    Args:
        attention (Tensor): [H, N, S] float32 of H heads, from the position of each of N tokens to S positions of sound.

    Returns:
        NDArray: [N] float64, which never decreases.
    """
    deviation, mean = attention.std(-2, keepdim=True, unbiased=False), attention.mean(-2, keepdim=True)
    normalised = (attention - mean) / deviation.clamp(min=1e-12)  # one token has no deviation
    scores = median_filter(normalised).mean(0)
    return (path_starts(-scores.double().numpy()) * TIME_PRECISION).astype(np.float64)


def median_filter(values: Tensor) -> Tensor:
    """Return the median of `MEDIAN_WIDTH` neighbours along the last dimension of `[H, N, S]`, mirrored at its ends."""
    half, length = MEDIAN_WIDTH // 2, values.shape[-1]
    if length <= half:
        return values
    padded = F.pad(values, (half, half), mode="reflect")
    shifted = [padded[..., first : first + length] for first in range(MEDIAN_WIDTH)]
    for first, second in MEDIAN_EXCHANGES:  # 5 times as fast as sorting every 7 values
        pair = shifted[first], shifted[second]
        shifted[first], shifted[second] = torch.minimum(*pair), torch.maximum(*pair)
    return shifted[half]


def path_starts(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the columns at which the cheapest monotone path through a matrix enters its rows (dynamic time warping).

    Sums are rounded to float32 and ties go as in transformers. Cells of one anti-diagonal do not depend on each other,
    so they are computed together.

    Args:
        cost (NDArray): [N, S] float64.

    Returns:
        NDArray: [N] int64.
    """
    num_rows, num_columns = cost.shape
    skewed = np.full((num_rows + num_columns + 1, num_rows + 1), np.inf)  # [i + j, i] is cell (i, j), counted from 1
    for row in range(num_rows):
        skewed[row + 2 : row + 2 + num_columns, row + 1] = cost[row]
    steps = np.full(skewed.shape, LEFT, np.int8)
    before, last = np.full((2, num_rows + 1), np.inf, np.float32)  # sums of the two diagonals before
    before[0] = 0  # the path begins before the first cell
    for diagonal in range(2, num_rows + num_columns + 1):
        aslant, above, left = before[:-1], last[:-1], last[1:]
        best, step = left.copy(), steps[diagonal, 1:]
        is_above, is_aslant = (above < aslant) & (above < left), (aslant < above) & (aslant < left)
        best[is_above], step[is_above] = above[is_above], UP
        best[is_aslant], step[is_aslant] = aslant[is_aslant], DIAGONAL
        before, last = last, np.full(num_rows + 1, np.inf, np.float32)
        last[1:] = best + skewed[diagonal, 1:]
    starts = np.zeros(num_rows, np.int64)
    row, column = num_rows, num_columns
    while row > 0 and column > 0:
        starts[row - 1] = column - 1
        step = steps[row + column, row]
        row, column = row - (step != LEFT), column - (step != UP)
    return starts


class Span(NamedTuple):
    """Tokens of a word."""

    text: str
    positions: list[int]  # of its tokens among those of the window


class WindowSegment(NamedTuple):
    """A segment of a window with its words."""

    timed: TimedTokens
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Alignment:
    """Times of the tokens of a window."""

    tokens: Sequence[int]  # [N], timestamps and control tokens among them
    times: Sequence[float]  # [N + 1] seconds from the start of the window at which they begin, and the last one ends
    log_probs: Sequence[float]  # [N]
    loudness: Tensor  # [F] of the window's frames in dB
    offset: float  # seconds from the start of the sound to the window
    first_control: int  # id from which on ids are no text
    decode: Decode
    language: str  # code

    @cached_property
    def threshold(self) -> float:
        """Return the loudness below which frames are quiet."""
        return quiet_threshold(self.loudness, SILENCE_SHARE)

    def words(self, positions: range) -> tuple[Word, ...]:
        """Return the words of the tokens at some positions, with times from the start of the sound."""
        return tuple(self.word(span) for span in self.spans(positions))

    def spans(self, positions: range) -> list[Span]:
        """Return the words of the tokens at some positions."""
        kept = [position for position in positions if self.tokens[position] < self.first_control]
        spans, first = [], 0
        for text, length in split_words([self.tokens[position] for position in kept], self.decode, self.language):
            spans.append(Span(text, kept[first : first + length]))
            first += length
        return spans

    def word(self, span: Span) -> Word:
        """Return a word with its times, which end where a pause begins.

        Attention tells the time between two words, which is anywhere in the pause between them, or a little beside it:
        so a short stretch of sound before the pause is the end of the word before, and what follows it the next word.
        """
        start, end = self.times[span.positions[0]], self.times[span.positions[-1] + 1]
        first, last = round(start / FRAME_SECONDS), round(end / FRAME_SECONDS)
        pauses = quiet_runs(self.loudness[first:last], self.threshold, WORD_PAUSE)
        edges = [0, *(edge for pause in pauses for edge in pause), last - first]
        stretches = list(zip(edges[::2], edges[1::2], strict=True))  # of sound
        begin, stop = next(
            (stretch for stretch in stretches if stretch[1] - stretch[0] >= SHORTEST_WORD),
            max(stretches, key=lambda stretch: stretch[1] - stretch[0]),
        )
        if pauses and begin < stop:
            start, end = (first + begin) * FRAME_SECONDS, (first + stop) * FRAME_SECONDS
        log_probs = [self.log_probs[position] for position in span.positions]
        probability = math.exp(sum(log_probs) / len(log_probs))
        return Word(self.offset + start, self.offset + end, span.text, probability)


def split_words(ids: Sequence[int], decode: Decode, language: str) -> list[tuple[str, int]]:
    """Return the words of a text with the number of their tokens, marks with the word that they belong to.

    Args:
        ids (Sequence[int]): of the text, without timestamps and control tokens.
        decode (Decode): returns the text of ids.
        language (str): code of the language. Where no spaces tell words, every piece of whole characters is one.
    """
    words: list[tuple[str, int]] = []
    for text, length in split_characters(ids, decode):
        is_mark = text.strip() in string.punctuation  # so is a space alone
        if words and not text.startswith(" ") and not is_mark and language not in WITHOUT_SPACES:
            words[-1] = words[-1][0] + text, words[-1][1] + length
        else:
            words.append((text, length))
    return merge_marks(words)


def split_characters(ids: Sequence[int], decode: Decode) -> list[tuple[str, int]]:
    """Return the shortest runs of tokens that are whole characters: their texts and numbers of tokens."""
    whole, offset, first = decode(ids), 0, 0
    pieces: list[tuple[str, int]] = []
    for end in range(1, len(ids) + 1):
        text = decode(ids[first:end])
        broken = text.find(INCOMPLETE)
        # a replacement character that the whole text has too is no part of a character
        if broken < 0 or end == len(ids) or whole[offset + broken : offset + broken + 1] in ("", INCOMPLETE):
            pieces.append((text, end - first))
            offset, first = offset + len(text), end
    return pieces


def merge_marks(words: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Join opening marks with the word after them, and closing ones with the word before."""
    joined: list[tuple[str, int]] = []  # from the last to the first
    for text, length in reversed(words):
        if joined and text.startswith(" ") and text.strip() in BEFORE_WORD:
            joined[-1] = text + joined[-1][0], length + joined[-1][1]
        else:
            joined.append((text, length))
    merged: list[tuple[str, int]] = []
    for text, length in reversed(joined):
        if merged and not merged[-1][0].endswith(" ") and text in AFTER_WORD:
            merged[-1] = merged[-1][0] + text, merged[-1][1] + length
        else:
            merged.append((text, length))
    return merged
