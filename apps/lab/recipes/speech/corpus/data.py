"""Training data of `tiny-speech`: sentences synthesised by flite's voices, with the time of every symbol.

    jobs = [RenderJob(["hello", "there", "."], "slt")]
    for path in render_many(jobs, Path("runs/speech"), workers=2): load_shard(path)

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

from polydraft.apps.lab.recipes.speech.corpus import flite
from polydraft.apps.lab.recipes.speech.corpus.alignment import align_symbols
from polydraft.apps.lab.recipes.speech.corpus.flite import VOICES, TimedPhone
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.modalities.speech.text.lexicon import BOUNDARY, PUNCTUATION, sentence_symbols, word_symbols


class RenderJob(NamedTuple):
    """Sentence to be synthesised."""

    sentence: Sequence[str]
    voice: str


class Utterance(NamedTuple):
    """Synthesised sentence."""

    sentence: list[str]
    voice: str
    samples: NDArray[np.int16]  # at 16 kHz
    times: NDArray[np.float32]  # [S, 2] start and end of every symbol in seconds


def render_sentence(sentence: Sequence[str], voice: str) -> tuple[NDArray[np.int16], list[TimedPhone]]:
    """Return samples at 16 kHz, and flite's phones with their times."""
    return flite.synthesise(join_words(sentence), voice)


def join_words(sentence: Sequence[str]) -> str:
    """Join words and punctuation as in text: "well, yes."."""
    return "".join(word if word in PUNCTUATION else f" {word}" for word in sentence).strip()


def render_utterance(job: RenderJob) -> Utterance | None:
    """Synthesise a sentence; return None where flite's phones cannot be aligned with it."""
    samples, phones = render_sentence(*job)
    times = align_symbols(job.sentence, phones)
    return None if times is None else Utterance(list(job.sentence), job.voice, samples, times.astype(np.float32))


def spell_words(
    sentence: Sequence[str], times: NDArray[np.float32], spelled: Collection[int]
) -> tuple[list[str], NDArray[np.float32]]:
    """Return symbols and times of a sentence with the words at indices `spelled` as letters."""
    plain, groups = sentence_symbols(sentence), word_symbols(sentence)
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
    return sentence_symbols(sentence, spelled), np.concatenate(pieces)


def render_many(jobs: Sequence[RenderJob], folder: Path, *, workers: int = 1, per_file: int = 500) -> Iterator[Path]:
    """Synthesise all jobs, `per_file` per file `shard-00000.npz`; yield the files in order as they are ready.

    Existing files are kept, so an interrupted run resumes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    parts = [list(jobs[start : start + per_file]) for start in range(0, len(jobs), per_file)]
    paths = shard_paths(folder, len(jobs), per_file)
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=functools.partial(os.nice, 19)) as pool:
        yield from pool.map(write_shard, paths, parts)


def shard_paths(folder: Path, jobs: int, per_file: int) -> list[Path]:
    """Return the paths of the shards of `jobs` sentences."""
    return [folder / f"shard-{index:05d}.npz" for index in range(-(-jobs // per_file))]


def write_shard(path: Path, jobs: list[RenderJob]) -> Path:
    if not path.exists():
        utterances = [utterance for utterance in map(render_utterance, jobs) if utterance is not None]
        with atomic_file(path) as file:
            np.savez(
                file,
                samples=np.concatenate([one.samples for one in utterances]),
                sample_ends=np.cumsum([len(one.samples) for one in utterances]),
                times=np.concatenate([one.times for one in utterances]),
                time_ends=np.cumsum([len(one.times) for one in utterances]),
                voices=np.array([VOICES.index(one.voice) for one in utterances], np.uint8),
                sentences=np.array([" ".join(one.sentence) for one in utterances]),
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
