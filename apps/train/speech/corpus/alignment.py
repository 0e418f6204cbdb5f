"""When each symbol of a sentence is spoken: our symbols laid along the phones flite has said.

flite says words a little differently in a sentence ("the" before a vowel) and pauses where it likes, so its phones are
matched with the lexicon's by edit distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.train.speech.corpus.flite import PAUSE, Heard
from polydraft.modalities.speech.text.lexicon import BOUNDARY, LETTERS, PHONES, PUNCTUATION, VOWELS, symbols

MOST_WRONG = 0.15  # of a sentence's phones; beyond, the sentence is not what was said
WRONG, OTHER_VOWEL = 1.0, 0.5
LETTER = 0.1  # a letter may be any phone, or none, or several
Floats = NDArray[np.float64]

VOWEL = np.arange(len(PHONES)) < len(VOWELS)
# `[phone wanted, phone said]`; the last row is for letters
SUBSTITUTION = np.pad(
    np.where(VOWEL[:, None] & VOWEL, OTHER_VOWEL, WRONG) * (1 - np.eye(len(PHONES))), ((0, 1), (0, 0))
)


def aligned(sentence: Sequence[str], heard: Sequence[Heard]) -> Floats | None:
    """Start and end in seconds of every symbol of `symbols(sentence)`, `[S, 2]`; None if flite said something else.

    Spans follow each other without gaps from the first phone on: a pause belongs to the punctuation or the boundary
    where it is made, and a symbol that was not said lasts 0 s. Letters of a word share its time evenly.
    """
    written = symbols(sentence)
    sounded = [at for at, symbol in enumerate(written) if symbol != BOUNDARY and symbol not in PUNCTUATION]
    said = [phone for phone in heard if phone.phone != PAUSE]
    if not sounded or not said:
        return None
    cost, first = match([written[at] for at in sounded], [phone.phone for phone in said])
    if cost > MOST_WRONG * len(said):
        return None
    starts = np.append([phone.start for phone in said], said[-1].end)
    ends = np.append(said[0].start, [phone.end for phone in said])
    times = np.empty((len(written), 2))
    times[sounded, 0] = np.where(first[:-1] < first[1:], starts[first[:-1]], ends[first[:-1]])
    times[sounded, 1] = ends[first[1:]]
    share_letters(written, times)
    close_gaps(written, times, sounded, heard[-1].end)
    return times


def match(wanted: list[str], said: list[str]) -> tuple[float, NDArray[np.int64]]:
    """Edit distance, and where in `said` each of `wanted` begins: `[W + 1]`, ending with len(said)."""
    letters = np.array([symbol in LETTERS for symbol in wanted])
    heard = np.array([PHONES.index(phone) for phone in said])
    replace = SUBSTITUTION[[PHONES.index(symbol) if symbol in PHONES else -1 for symbol in wanted]][:, heard]
    gap = np.where(letters, LETTER, WRONG)  # for leaving a symbol out, and for a phone more than it has
    steps = np.arange(len(said) + 1)
    table = np.empty((len(wanted) + 1, len(said) + 1))
    table[0] = steps * WRONG
    for row, insert in enumerate(gap):
        table[row + 1] = table[row] + insert
        np.minimum(table[row + 1, 1:], table[row, :-1] + replace[row], out=table[row + 1, 1:])
        table[row + 1] = np.minimum.accumulate(table[row + 1] - insert * steps) + insert * steps
    return float(table[-1, -1]), trace(table, replace, gap)


def trace(table: Floats, replace: Floats, gap: Floats) -> NDArray[np.int64]:
    """The way back through `table`: where each symbol begins."""
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


def close_gaps(written: list[str], times: Floats, sounded: list[int], end: float) -> None:
    """Give boundaries and punctuation the time between their neighbours, in place; end: of the sound, in seconds."""
    following = np.append(times[sounded, 0], end)
    for at in sorted({*range(len(written))} - {*sounded}):
        times[at] = times[at - 1, 1] if at else 0.0, following[np.searchsorted(sounded, at)]
