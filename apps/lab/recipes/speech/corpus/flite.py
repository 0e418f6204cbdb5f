"""flite, the synthesiser of the training speech: words, phones and audio through its command line.

Only training needs it (Debian: `apt install flite`); its licence is BSD-like.
"""

from __future__ import annotations

import subprocess
import tempfile
import wave
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polydraft.core.errors import PolydraftError

VOICES = ("slt", "rms", "awb", "kal16")
SAMPLE_RATE = 16000  # of all of them
QUICKEST = "kal16"  # for word queries, whose results do not depend on the voice
PAUSE = "pau"
STRETCH = 1.0  # of durations; one for all voices, of which kal16 would have 1.1


class FliteError(PolydraftError, OSError):
    """flite is not installed, or failed."""


class TimedPhone(NamedTuple):
    """Phone or pause with its start and end in seconds."""

    phone: str
    start: float
    end: float


def run_flite(text: str, *options: str, voice: str = QUICKEST, out: Path | None = None) -> list[str]:
    """Run flite on `text`, write its audio to `out`, and return its output split at blanks."""
    command = ["flite", "-voice", voice, *options, "-t", text, "-o", "none" if out is None else str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise FliteError("flite says the training sentences and is missing; `apt install flite` brings it.") from error
    if done.returncode or not done.stdout:
        raise FliteError(f"flite failed on {text[:60]!r} with {done.stderr[-200:]!r}; leave that sentence out.")
    return done.stdout.split()


def words_read_verbatim(words: list[str]) -> list[str]:
    """Return the words that flite does not read as others, as it reads "st" as "street" and "kg" as two letters."""
    words_read = [word.removeprefix("_") for word in run_flite(", ".join(words), "-pr", "Word")]
    blocks = SequenceMatcher(None, words, words_read, autojunk=False).get_matching_blocks()
    return [word for block in blocks for word in words[block.a : block.a + block.size]]


def phones_by_word(words: list[str]) -> dict[str, list[str]]:
    """Return the phones of every word, synthesised with pauses between them."""
    phones: list[list[str]] = [[]]
    for phone in run_flite(", ".join(words), "-ps"):
        if phone != PAUSE:
            phones[-1].append(phone)
        elif phones[-1]:
            phones.append([])
    if len(phones) != len(words) + 1:
        raise FliteError(f"flite said {len(phones) - 1} words for the {len(words)} from {words[0]!r}; ask for fewer.")
    return dict(zip(words, phones, strict=False))


def inner_pauses(words_read: list[TimedPhone]) -> list[TimedPhone]:
    """Return the pauses inside an utterance, which begins and ends with one."""
    return [heard for heard in words_read[1:-1] if heard.phone == PAUSE]


def synthesise(text: str, voice: str) -> tuple[NDArray[np.int16], list[TimedPhone]]:
    """Synthesise `text` at 16 kHz; return samples, and phones and pauses with their times."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "speech.wav"
        printed = run_flite(text, "--setf", f"duration_stretch={STRETCH}", "-psdur", voice=voice, out=out)
        with wave.open(str(out)) as file:
            if file.getframerate() != SAMPLE_RATE:
                raise FliteError(f"voice {voice} speaks at {file.getframerate()} Hz; use one of {', '.join(VOICES)}.")
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    ends = [min(float(item.partition(":")[2]), len(samples) / SAMPLE_RATE) for item in printed]
    phones = [item.partition(":")[0] for item in printed]
    return samples, [TimedPhone(*spoken) for spoken in zip(phones, [0.0, *ends], ends, strict=False)]
