"""Alignment of the symbols of a sentence with flite's phones, for the time of every symbol.

flite pronounces words a little differently in a sentence ("the" before a vowel) and adds pauses, so its phones are
matched with the lexicon's by edit distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.lab.recipes.speech.corpus.flite import PAUSE, TimedPhone
from polydraft.modalities.speech.text.lexicon import BOUNDARY, LETTERS, PHONES, PUNCTUATION, VOWELS, sentence_symbols

MOST_WRONG = 0.15  # share of a sentence's phones; above it the audio is another sentence
WRONG, OTHER_VOWEL = 1.0, 0.5
LETTER = 0.1  # a letter may be any phone, or none, or several
Floats = NDArray[np.float64]

VOWEL = np.arange(len(PHONES)) < len(VOWELS)
# [expected phone, spoken phone]; the last row is for letters
SUBSTITUTION = np.pad(
    np.where(VOWEL[:, None] & VOWEL, OTHER_VOWEL, WRONG) * (1 - np.eye(len(PHONES))), ((0, 1), (0, 0))
)


def align_symbols(sentence: Sequence[str], phones: Sequence[TimedPhone]) -> Floats | None:
    """Return start and end in seconds of every symbol of `symbols(sentence)`, [S, 2]; None if the phones do not match.

    Spans follow each other without gaps from the first phone on: a pause belongs to the punctuation or the boundary
    where it occurs, and a symbol without a phone lasts 0 s. Letters of a word share its time evenly.
    """
    written = sentence_symbols(sentence)
    with_phone = [at for at, symbol in enumerate(written) if symbol != BOUNDARY and symbol not in PUNCTUATION]
    spoken_phones = [phone for phone in phones if phone.phone != PAUSE]
    if not with_phone or not spoken_phones:
        return None
    cost, first = align_phones([written[at] for at in with_phone], [phone.phone for phone in spoken_phones])
    if cost > MOST_WRONG * len(spoken_phones):
        return None
    starts = np.append([phone.start for phone in spoken_phones], spoken_phones[-1].end)
    ends = np.append(spoken_phones[0].start, [phone.end for phone in spoken_phones])
    times = np.empty((len(written), 2))
    times[with_phone, 0] = np.where(first[:-1] < first[1:], starts[first[:-1]], ends[first[:-1]])
    times[with_phone, 1] = ends[first[1:]]
    share_letters(written, times)
    close_gaps(written, times, with_phone, phones[-1].end)
    return times


def align_phones(expected: list[str], spoken_phones: list[str]) -> tuple[float, NDArray[np.int64]]:
    """Return the edit distance, and the index [W + 1] of the phone where each symbol starts, and their number."""
    letters = np.array([symbol in LETTERS for symbol in expected])
    phones = np.array([PHONES.index(phone) for phone in spoken_phones])
    replace = SUBSTITUTION[[PHONES.index(symbol) if symbol in PHONES else -1 for symbol in expected]][:, phones]
    gap = np.where(letters, LETTER, WRONG)  # for leaving a symbol out, and for a phone more than it has
    steps = np.arange(len(spoken_phones) + 1)
    table = np.empty((len(expected) + 1, len(spoken_phones) + 1))
    table[0] = steps * WRONG
    for row, insert in enumerate(gap):
        table[row + 1] = table[row] + insert
        np.minimum(table[row + 1, 1:], table[row, :-1] + replace[row], out=table[row + 1, 1:])
        table[row + 1] = np.minimum.accumulate(table[row + 1] - insert * steps) + insert * steps
    return float(table[-1, -1]), backtrack(table, replace, gap)


def backtrack(table: Floats, replace: Floats, gap: Floats) -> NDArray[np.int64]:
    """Trace the edit table back and return the index where each symbol starts."""
    column = table.shape[1] - 1
    first = np.full(len(table), column)
    for row in range(len(gap) - 1, -1, -1):
        while column and np.isclose(table[row + 1, column], table[row + 1, column - 1] + gap[row]):
            column -= 1
        if column and np.isclose(table[row + 1, column], table[row, column - 1] + replace[row, column - 1]):
            column -= 1
        first[row] = column
    first[0] = 0
    return first


def share_letters(written: list[str], times: Floats) -> None:
    """Divide the time of each spelled word evenly among its letters, in place."""
    for spelled, group in groupby(range(len(written)), lambda at: written[at] in LETTERS):
        if spelled:
            run = list(group)
            edges = np.linspace(times[run[0], 0], times[run[-1], 1], len(run) + 1)
            times[run, 0], times[run, 1] = edges[:-1], edges[1:]


def close_gaps(written: list[str], times: Floats, with_phone: list[int], end: float) -> None:
    """Give boundaries and punctuation the time between their neighbours, in place; end: of the sound, in seconds."""
    following = np.append(times[with_phone, 0], end)
    for at in sorted({*range(len(written))} - {*with_phone}):
        times[at] = times[at - 1, 1] if at else 0.0, following[np.searchsorted(with_phone, at)]
