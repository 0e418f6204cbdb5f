"""How long the synthesiser's voices pause at a comma: what a cut sentence is joined with.

    python -m polydraft.apps.train.speech.corpus.pauses assets/models/tiny-speech --write    # into the model's manifest

Of everyday sentences with commas; a pause is the quiet around what the synthesiser itself calls one, of a voice at the
models' loudness. The table has medians, in seconds.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

import numpy as np

from polydraft.apps.bench.measure.manifest import store
from polydraft.apps.bench.speech.product import FRAME, voiced
from polydraft.apps.train.speech.corpus import flite
from polydraft.apps.train.speech.corpus.data import render
from polydraft.apps.train.speech.corpus.flite import SAMPLE_RATE, VOICES
from polydraft.modalities.manifest import MANIFEST
from polydraft.modalities.speech.corpus.sentences import corpus
from polydraft.modalities.speech.text.reading import read

SENTENCES = 40


def with_commas(count: int, seed: int = 0) -> list[list[str]]:
    """Words of training sentences that have a comma."""
    found = (words for text in corpus(seed) for words in read(text).whole if "," in words)
    return list(islice(found, count))


def pauses(words: list[str], voice: str) -> list[float]:
    """Seconds of quiet at every pause inside a sentence."""
    samples, said = render(words, voice)
    loud, found = voiced(samples.astype(np.float32) * np.float32(1 / 32768), SAMPLE_RATE), []
    for heard in flite.pauses(said):
        middle = (heard.start + heard.end) / 2 / FRAME
        if loud[0] < middle < loud[-1]:
            after = int(np.searchsorted(loud, middle))
            found.append(float(loud[after] - loud[after - 1] - 1) * FRAME)
    return found


def table(count: int = SENTENCES) -> dict[str, float]:
    sentences = with_commas(count)
    return {
        voice: round(float(np.median([pause for words in sentences for pause in pauses(words, voice)])), 3)
        for voice in VOICES
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder")
    parser.add_argument("--write", action="store_true", help="write the table into the model's manifest")
    args = parser.parse_args()
    measured = table()
    print(json.dumps(measured))
    if args.write:
        store(args.model / MANIFEST, {"commas": measured})
