"""Measure the pauses of the synthesiser's voices at commas, which parts of a cut sentence are joined with.

    python -m polydraft.apps.lab.recipes.speech.corpus.pauses assets/models/tiny-speech --write    # into the manifest

A pause is the quiet around a pause phone of the synthesiser, in everyday sentences with commas, of a voice at the
models' loudness. The table has medians in seconds.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

import numpy as np

from polydraft.apps.bench.speech.product import FRAME, voiced
from polydraft.apps.data.sentences.sentences import corpus
from polydraft.apps.lab.recipes.speech.corpus import flite
from polydraft.apps.lab.recipes.speech.corpus.data import render_sentence
from polydraft.apps.lab.recipes.speech.corpus.flite import SAMPLE_RATE, VOICES
from polydraft.apps.measure.manifest import store
from polydraft.modalities.manifest import MANIFEST
from polydraft.modalities.speech.text.reading import normalise_text

SENTENCES = 40


def sentences_with_commas(count: int, seed: int = 0) -> list[list[str]]:
    """Return the words of training sentences that have a comma."""
    lengths = (words for text in corpus(seed) for words in normalise_text(text).undivided_sentences if "," in words)
    return list(islice(lengths, count))


def pause_lengths(words: list[str], voice: str) -> list[float]:
    """Return the seconds of quiet at every pause inside a sentence."""
    samples, phones = render_sentence(words, voice)
    loud, lengths = voiced(samples.astype(np.float32) * np.float32(1 / 32768), SAMPLE_RATE), []
    for phone in flite.inner_pauses(phones):
        middle = (phone.start + phone.end) / 2 / FRAME
        if loud[0] < middle < loud[-1]:
            after = int(np.searchsorted(loud, middle))
            lengths.append(float(loud[after] - loud[after - 1] - 1) * FRAME)
    return lengths


def median_pauses(count: int = SENTENCES) -> dict[str, float]:
    sentences = sentences_with_commas(count)
    return {
        voice: round(float(np.median([pause for words in sentences for pause in pause_lengths(words, voice)])), 3)
        for voice in VOICES
    }


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder")
    parser.add_argument("--write", action="store_true", help="write the table into the model's manifest")
    args: argparse.Namespace = parser.parse_args()
    measured: dict[str, float] = median_pauses()
    print(json.dumps(measured))
    if args.write:
        store(args.model / MANIFEST, {"commas": measured})
