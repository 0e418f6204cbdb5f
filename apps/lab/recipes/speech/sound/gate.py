"""Gate of a codec before a language model is trained on it: intelligibility of flite's speech through the codec.

    python -m polydraft.apps.lab.recipes.speech.sound.gate --codec runs/tiny-speech/codec

Word errors by voice of flite and of flite through the codec, without a language model, on held-out sentences of five
kinds. The codec passes if no voice loses more than `MOST`; the result is saved beside it, and training of the target
checks it (`check_gate`).
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

from polydraft.apps.bench.speech.listener import Listener, plain_words
from polydraft.apps.data.sentences.sentences import held_out_sentences
from polydraft.apps.lab.bench.reference_speech import render_texts
from polydraft.apps.lab.recipes.speech.corpus.flite import VOICES
from polydraft.apps.measure.word_errors import count_word_edits, words_of
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.output import write_text
from polydraft.modalities.speech.codecs.tiny import SpeechCodec

MOST = 0.04  # word errors that a codec may add to flite's
KINDS = ("everyday", "prose", "figures", "names", "questions")
FILE = "gate.json"


@dataclass(frozen=True)
class CodecGate:
    """Word errors by voice."""

    flite: dict[str, float]
    codec: dict[str, float]  # of flite through the codec
    sentences: int
    of: str  # hash of the measured weights

    @property
    def worst(self) -> tuple[str, float]:
        """Return the voice that loses most, and its loss."""
        voice = max(self.flite, key=lambda voice: self.codec[voice] - self.flite[voice])
        return voice, self.codec[voice] - self.flite[voice]

    @property
    def has_passed(self) -> bool:
        return self.worst[1] <= MOST

    @property
    def line(self) -> str:
        each = ", ".join(f"{voice} {self.flite[voice]:.3f} → {self.codec[voice]:.3f}" for voice in self.flite)
        verdict = "passed" if self.has_passed else f"not passed, {self.worst[0]} pays {self.worst[1]:.3f}"
        return f"codec alone, word errors of {self.sentences} sentences a voice: {each}; {verdict} (at most {MOST})"


def held_out_texts(each: int) -> list[str]:
    return [text for kind in KINDS for text in held_out_sentences(each, kind)]


def measure_word_errors(codec: SpeechCodec, texts: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return word error rates by voice of flite, and of flite through `codec`."""
    listener, errors_by_voice, words = (
        Listener(),
        {"flite": dict.fromkeys(VOICES, 0), "codec": dict.fromkeys(VOICES, 0)},
        0,
    )
    for text in tqdm(texts, desc="listen", unit="sentence"):
        wanted = plain_words(words_of(text))
        words += len(wanted)
        for (_, voice), utterance in render_texts([text], list(VOICES)).items():
            through = codec.decode(
                codec.encode(torch.from_numpy(utterance.audio)[None])[0], VOICES.index(voice)
            ).numpy()
            for name, audio in (("flite", utterance.audio), ("codec", through)):
                transcript = listener.hear(np.asarray(audio, np.float32))
                errors_by_voice[name][voice] += count_word_edits(wanted, transcript).errors
    return error_rates(errors_by_voice["flite"], words), error_rates(errors_by_voice["codec"], words)


def error_rates(errors: Mapping[str, int], words: int) -> dict[str, float]:
    return {voice: count / words for voice, count in errors.items()}


def run(folder: Path, each: int = 20) -> CodecGate:
    """Measure the codec in `folder` and write `gate.json` there; a result of the same weights is kept."""
    texts = held_out_texts(each)
    gate = load_gate(folder)
    if gate is None or gate.sentences < len(texts):
        flite, through = measure_word_errors(SpeechCodec.from_folder(folder), texts)
        gate = CodecGate(flite, through, len(texts), weights_hash(folder))
        write_text(folder / FILE, json.dumps(vars(gate), indent=2) + "\n")
    print(gate.line, flush=True)
    return gate


def load_gate(folder: Path) -> CodecGate | None:
    """Return the result for the current weights of the codec in `folder`, or None."""
    if not (folder / FILE).exists():
        return None
    gate = CodecGate(**json.loads((folder / FILE).read_text()))
    return gate if gate.of == weights_hash(folder) else None


def weights_hash(folder: Path) -> str:
    """Return a hash of the weights in `folder`."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def check_gate(folder: Path, anyway: bool) -> None:
    """Print the result for the codec in `folder`.

    Raises:
        InvalidArgument: it has no result or has not passed, and `anyway` is false.
    """
    gate = load_gate(folder)
    line = f"nothing is known of the codec in {folder} as it is now" if gate is None else gate.line
    if not anyway and (gate is None or not gate.has_passed):
        command = f"python -m polydraft.apps.lab.recipes.speech.sound.gate --codec {quote(str(folder))}"
        raise InvalidArgument(f"{line}; measure it ({command}), train it on, or give --anyway.")
    print(line, flush=True)


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--each", type=int, default=20, help="sentences of each kind")
    args: argparse.Namespace = parser.parse_args()
    run(args.codec, args.each)
