"""What `tiny-speech` is trained on: sentences said by flite's voices, with the time of every symbol.

    for path in render_many([Job(["hello", "there", "."], "slt")], Path("runs/speech"), workers=2): load_shard(path)

Sentences are lists of lower-case words and punctuation marks, as `modalities/speech/text/reading.py` makes them.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.train.speech.corpus import flite
from polydraft.apps.train.speech.corpus.alignment import aligned
from polydraft.apps.train.speech.corpus.flite import VOICES, Heard
from polydraft.modalities.output import whole
from polydraft.modalities.speech.text.lexicon import BOUNDARY, PUNCTUATION, symbols, word_symbols


class Job(NamedTuple):
    """A sentence to be said."""

    sentence: Sequence[str]
    voice: str


class Utterance(NamedTuple):
    """A sentence said: int16 samples at 16 kHz, and start and end in seconds of its symbols, `[S, 2]`."""

    sentence: list[str]
    voice: str
    samples: NDArray[np.int16]
    times: NDArray[np.float32]


def render(sentence: Sequence[str], voice: str) -> tuple[NDArray[np.int16], list[Heard]]:
    """Samples at 16 kHz, and flite's phones with their times."""
    return flite.render(written(sentence), voice)


def written(sentence: Sequence[str]) -> str:
    """Words and punctuation as one writes them: "well, yes."."""
    return "".join(word if word in PUNCTUATION else f" {word}" for word in sentence).strip()


def say(job: Job) -> Utterance | None:
    """None where what flite says cannot be laid along the sentence."""
    samples, heard = render(*job)
    times = aligned(job.sentence, heard)
    return None if times is None else Utterance(list(job.sentence), job.voice, samples, times.astype(np.float32))


def respelled(
    sentence: Sequence[str], times: NDArray[np.float32], spelled: Collection[int]
) -> tuple[list[str], NDArray[np.float32]]:
    """Symbols and times of a sentence with the words at these indices as letters, from its times with none."""
    plain, groups = symbols(sentence), word_symbols(sentence)
    pieces, at = [], 0
    for index, group in enumerate(groups):
        if plain[at] == BOUNDARY:
            pieces.append(times[at : at + 1])
            at += 1
        span = times[at : at + len(group)]
        at += len(group)
        if index in spelled and sentence[index] not in PUNCTUATION:
            letters = len(word_symbols(sentence[index : index + 1], (0,))[0])
            edges = np.linspace(span[0, 0], span[-1, 1], letters + 1, dtype=np.float32)
            span = np.stack([edges[:-1], edges[1:]], 1)
        pieces.append(span)
    return symbols(sentence, spelled), np.concatenate(pieces)


def render_many(jobs: Sequence[Job], folder: Path, *, workers: int = 1, per_file: int = 500) -> Iterator[Path]:
    """Say all jobs, `per_file` to a file `shard-00000.npz`; yields the files in order as they are ready.

    Files that are there already are kept, so an interrupted run goes on where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    parts = [list(jobs[start : start + per_file]) for start in range(0, len(jobs), per_file)]
    paths = shards_of(folder, len(jobs), per_file)
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=functools.partial(os.nice, 19)) as pool:
        yield from pool.map(write_shard, paths, parts)


def shards_of(folder: Path, jobs: int, per_file: int) -> list[Path]:
    """Where so many jobs are, or will be."""
    return [folder / f"shard-{index:05d}.npz" for index in range(-(-jobs // per_file))]


def write_shard(path: Path, jobs: list[Job]) -> Path:
    if not path.exists():
        said = [utterance for utterance in map(say, jobs) if utterance is not None]
        with whole(path) as file:
            np.savez(
                file,
                samples=np.concatenate([one.samples for one in said]),
                sample_ends=np.cumsum([len(one.samples) for one in said]),
                times=np.concatenate([one.times for one in said]),
                time_ends=np.cumsum([len(one.times) for one in said]),
                voices=np.array([VOICES.index(one.voice) for one in said], np.uint8),
                sentences=np.array([" ".join(one.sentence) for one in said]),
            )
    return path


def load_shard(path: Path) -> list[Utterance]:
    with np.load(path) as shard:
        return [
            Utterance(sentence.split(), VOICES[voice], samples, times)
            for sentence, voice, samples, times in zip(
                shard["sentences"].tolist(), shard["voices"],
                np.split(shard["samples"], shard["sample_ends"][:-1]),
                np.split(shard["times"], shard["time_ends"][:-1]), strict=True,
            )
        ]  # fmt: skip
