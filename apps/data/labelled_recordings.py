"""Recordings with the texts that are spoken in them, for benches: the user's, or made with the embedded voices.

read_recordings("meetings", limit=None)      # sound files, each with a text file of its name beside it, or JSON lines
read_aloud(4)                                # passages of prose of a minute and a half, each in another voice
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.data.records import SOUNDS, DataRecord, rows, text_of
from polydraft.apps.data.text_prompts import prompt_file
from polydraft.apps.measure.transcription import LabelledRecording
from polydraft.apps.measure.word_errors import words_of
from polydraft.core.errors import DataUnavailable, InvalidArgument, PromptError
from polydraft.modalities.loading import load
from polydraft.modalities.transcription.sound import SoundSource, open_sound


def read_recordings(data: str, limit: int | None) -> list[LabelledRecording]:
    """Return the user's recordings, all in memory.

    Args:
        data (str): A folder of sound files, a sound file, or a file of JSON lines with `audio`, a path relative to its
            folder, and `text`. The text of a sound file is in a file of its name that ends in .txt; without one it is
            not known.
        limit (int | None): Most recordings, the first ones; None for all.

    Raises:
        DataUnavailable: There are no recordings, or one cannot be read.
    """
    if not Path(data).exists():
        raise DataUnavailable(
            f"there are no recordings at {data}; give a folder, a sound file, or a file of JSON lines."
        )
    recordings = [read_recording(row) for row in islice(rows(data, SOUNDS), limit)]
    if not recordings:
        raise DataUnavailable(f"{data} holds no recordings; give a folder of sound files, or a file of JSON lines.")
    return recordings


def read_recording(row: DataRecord) -> LabelledRecording:
    """Return the recording of a record."""
    audio, text = row.value.get("audio"), row.value.get("text")
    if not isinstance(audio, str):
        raise row.wrong("names no recording", 'write {"audio": "a.wav", "text": "What is said."}')
    if text is not None and not isinstance(text, str):
        raise row.wrong(f"has the text {text!r:.40}", "write what is said as a string, or leave it out")
    file = row.folder / audio
    beside = file.with_suffix(".txt")
    if text is None and beside.is_file():
        text = text_of(beside)
    try:
        return LabelledRecording(audio, read_samples(file), text)
    except PromptError as error:
        raise row.refused("has a recording that cannot be used", error) from error


def read_samples(source: SoundSource) -> NDArray[np.float32]:
    """Return sound of any kind, [S] at 16 kHz.

    Raises:
        PromptError: It is no sound, or holds none.
    """
    with open_sound(source) as sound:
        blocks = list(sound)
    if not blocks:
        raise PromptError("it is empty; give a recording with sound in it.")
    return np.concatenate(blocks)


def read_aloud(count: int) -> list[LabelledRecording]:
    """Return passages of prose in the embedded voices, whose texts are the words that these voices say.

    Args:
        count (int): Number of passages.

    Raises:
        InvalidArgument: There are fewer.
    """
    texts = [passage["text"] for passage in prompt_file()["passages"]]
    if not 1 <= count <= len(texts):
        raise InvalidArgument(
            f"there are {len(texts)} passages to read aloud, and not {count}; give fewer with --limit."
        )
    pipe, recordings = load("tiny-speech", modality="speech"), []
    for index, text in enumerate(texts[:count]):
        voice = pipe.voices[index % len(pipe.voices)]
        speech = pipe(text, voice=voice, seed=index)
        samples = read_samples((speech.audio, speech.sample_rate))
        recordings.append(LabelledRecording(f"passage {index + 1}, {voice}", samples, words_of(text)))
    return recordings
