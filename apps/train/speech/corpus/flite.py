"""flite, the synthesiser the training speech comes from: asked for words, phones and sound through its command line.

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
QUICKEST = "kal16"  # for questions about words, which all voices answer alike
PAUSE = "pau"
STRETCH = 1.0  # of durations; one for all voices, of which kal16 would have 1.1


class FliteError(PolydraftError, OSError):
    """flite is not installed, or failed."""


class Heard(NamedTuple):
    """A phone flite has said, or a pause; start and end in seconds."""

    phone: str
    start: float
    end: float


def flite(text: str, *options: str, voice: str = QUICKEST, out: Path | None = None) -> list[str]:
    """What flite prints about `text`, split at blanks; its sound goes to `out`."""
    command = ["flite", "-voice", voice, *options, "-t", text, "-o", "none" if out is None else str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise FliteError("flite says the training sentences and is missing; `apt install flite` brings it.") from error
    if done.returncode or not done.stdout:
        raise FliteError(f"flite failed on {text[:60]!r} with {done.stderr[-200:]!r}; leave that sentence out.")
    return done.stdout.split()


def taken_as_written(words: list[str]) -> list[str]:
    """Those of `words` that flite does not read as others, as it reads "st" as "street" and "kg" as two letters."""
    said = [word.removeprefix("_") for word in flite(", ".join(words), "-pr", "Word")]
    blocks = SequenceMatcher(None, words, said, autojunk=False).get_matching_blocks()
    return [word for block in blocks for word in words[block.a : block.a + block.size]]


def phones_of(words: list[str]) -> dict[str, list[str]]:
    """Phones of every word, said with pauses between."""
    phones: list[list[str]] = [[]]
    for phone in flite(", ".join(words), "-ps"):
        if phone != PAUSE:
            phones[-1].append(phone)
        elif phones[-1]:
            phones.append([])
    if len(phones) != len(words) + 1:
        raise FliteError(f"flite said {len(phones) - 1} words for the {len(words)} from {words[0]!r}; ask for fewer.")
    return dict(zip(words, phones, strict=False))


def pauses(said: list[Heard]) -> list[Heard]:
    """Those inside what was said; it begins and ends with one."""
    return [heard for heard in said[1:-1] if heard.phone == PAUSE]


def render(text: str, voice: str) -> tuple[NDArray[np.int16], list[Heard]]:
    """Sound of `text` at 16 kHz, and the phones and pauses in it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "speech.wav"
        printed = flite(text, "--setf", f"duration_stretch={STRETCH}", "-psdur", voice=voice, out=out)
        with wave.open(str(out)) as file:
            if file.getframerate() != SAMPLE_RATE:
                raise FliteError(f"voice {voice} speaks at {file.getframerate()} Hz; use one of {', '.join(VOICES)}.")
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    ends = [min(float(item.partition(":")[2]), len(samples) / SAMPLE_RATE) for item in printed]
    phones = [item.partition(":")[0] for item in printed]
    return samples, [Heard(*spoken) for spoken in zip(phones, [0.0, *ends], ends, strict=False)]
