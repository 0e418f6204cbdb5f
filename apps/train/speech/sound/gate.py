"""Whether a codec is good enough to train a language model on: what is understood of flite's speech through it.

    python -m polydraft.apps.train.speech.sound.gate --codec runs/tiny-speech/codec

Word errors by voice of flite and of flite through the codec, without a language model, on sentences of five kinds that
are kept from training. The codec passes where no voice pays more than `MOST`; what was found is left beside it, and
training of the target looks there (`check`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from tqdm import tqdm

from polydraft.apps.bench.speech.intelligibility import rendered
from polydraft.apps.bench.speech.word_errors import Listener, plain_words, word_errors, words_of
from polydraft.apps.train.speech.corpus.flite import VOICES
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.output import write_text
from polydraft.modalities.speech.codecs.tiny import SpeechCodec
from polydraft.modalities.speech.corpus.sentences import held_out

MOST = 0.04  # word errors that a codec may add to flite's
KINDS = ("everyday", "prose", "figures", "names", "questions")
FILE = "gate.json"


@dataclass(frozen=True)
class Gate:
    """Word errors by voice, of flite and through the codec; of: the weights that were measured."""

    flite: dict[str, float]
    codec: dict[str, float]
    sentences: int
    of: str

    @property
    def worst(self) -> tuple[str, float]:
        """The voice that pays most, and what it pays."""
        voice = max(self.flite, key=lambda voice: self.codec[voice] - self.flite[voice])
        return voice, self.codec[voice] - self.flite[voice]

    @property
    def passed(self) -> bool:
        return self.worst[1] <= MOST

    @property
    def line(self) -> str:
        each = ", ".join(f"{voice} {self.flite[voice]:.3f} → {self.codec[voice]:.3f}" for voice in self.flite)
        verdict = "passed" if self.passed else f"not passed, {self.worst[0]} pays {self.worst[1]:.3f}"
        return f"codec alone, word errors of {self.sentences} sentences a voice: {each}; {verdict} (at most {MOST})"


def texts(each: int) -> list[str]:
    return [text for kind in KINDS for text in held_out(each, kind)]


def measure(codec: SpeechCodec, asked: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Word errors of flite and through `codec`, by voice."""
    ears, wrong, words = Listener(), {"flite": dict.fromkeys(VOICES, 0), "codec": dict.fromkeys(VOICES, 0)}, 0
    for text in tqdm(asked, desc="listen", unit="sentence"):
        wanted = plain_words(words_of(text))
        words += len(wanted)
        for (_, voice), said in rendered([text], list(VOICES)).items():
            through = codec.decode(codec.encode(torch.from_numpy(said.audio)[None])[0], VOICES.index(voice)).numpy()
            for name, heard in (("flite", said.audio), ("codec", through)):
                wrong[name][voice] += word_errors(wanted, ears.hear(np.asarray(heard, np.float32)))
    return share(wrong["flite"], words), share(wrong["codec"], words)


def share(errors: Mapping[str, int], words: int) -> dict[str, float]:
    return {voice: count / words for voice, count in errors.items()}


def run(folder: Path, each: int = 20) -> Gate:
    """Measure the codec in `folder` and say so in `gate.json` there; one that is there and of these weights stays."""
    asked = texts(each)
    found = read(folder)
    if found is None or found.sentences < len(asked):
        flite, through = measure(SpeechCodec.from_folder(folder), asked)
        found = Gate(flite, through, len(asked), weights(folder))
        write_text(folder / FILE, json.dumps(vars(found), indent=2) + "\n")
    print(found.line, flush=True)
    return found


def read(folder: Path) -> Gate | None:
    """What was found of the codec in `folder` as it is now."""
    if not (folder / FILE).exists():
        return None
    found = Gate(**json.loads((folder / FILE).read_text()))
    return found if found.of == weights(folder) else None


def weights(folder: Path) -> str:
    """A name for what is in `folder`."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def check(folder: Path, anyway: bool) -> None:
    """Say what is known of the codec in `folder`; raises InvalidArgument where it is not good enough, unless told."""
    found = read(folder)
    line = f"nothing is known of the codec in {folder} as it is now" if found is None else found.line
    if not anyway and (found is None or not found.passed):
        command = f"python -m polydraft.apps.train.speech.sound.gate --codec {quote(str(folder))}"
        raise InvalidArgument(f"{line}; measure it ({command}), train it on, or give --anyway.")
    print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--each", type=int, default=20, help="sentences of each kind")
    args = parser.parse_args()
    run(args.codec, args.each)
