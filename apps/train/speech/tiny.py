"""Make `tiny-speech` from nothing: `polydraft train tiny-speech --out runs/tiny-speech` (about two hours on two cores).

Sentences are said by flite (Debian: `apt install flite`), a codec learns to write the sound as codes, a language model
to write codes from text, drafters to guess it. Each stage is also a command of its own in this folder; what a stopped
run has rendered or encoded is kept. The finished model folder is `<out>/model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from polydraft.apps.train import drafter
from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.speech.analysis import measure
from polydraft.apps.train.speech.codec import run as train_codec
from polydraft.apps.train.speech.codes import code
from polydraft.apps.train.speech.data import Job, render_many
from polydraft.apps.train.speech.flite import VOICES
from polydraft.apps.train.together import on_every_core
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SpeechCodec
from polydraft.modalities.speech.corpus.sentences import sentence
from polydraft.modalities.speech.text.lexicon import SYMBOLS
from polydraft.modalities.speech.text.reading import read

SENTENCES = 24_000
ANALYSED = 6  # shards the codec learns from
SHARES = {"codec": 0.2, "target": 0.63}  # of the minutes given, beside rendering
TOKENS = 4608  # of a batch of the language model
DRAFTERS = {"hydra": 0.05, "heads": 0.04, "lm": 0.04, "block": 0.04}


def jobs(seed: int) -> Iterator[Job]:
    """Training sentences, the voices in turns, each at a tempo of its own."""
    rng = np.random.default_rng(seed)
    count = 0
    while True:
        for words in read(sentence(rng)).sentences:
            yield Job(words, VOICES[count % len(VOICES)], count)
            count += 1


def render(out: Path, sentences: int = SENTENCES, seed: int = 0, workers: int = 2) -> list[Path]:
    """Shards of speech in `out`."""
    wanted = list(islice(jobs(seed), sentences))
    shards = render_many(wanted, out, workers=workers)
    return list(tqdm(shards, total=-(-sentences // 500), desc="render", unit="shard"))


def codec(speech: list[Path], out: Path, minutes: float, seed: int = 0) -> None:
    """Measure what some of the speech does and train the codec on it."""
    analysed = out / "analysed"
    analysed.mkdir(parents=True, exist_ok=True)
    for shard in tqdm(speech[:ANALYSED], desc="analyse", unit="shard"):
        if not (analysed / shard.name).exists():
            measure(shard, analysed / shard.name)
    train_codec(analysed, out / "codec", minutes, seed)


def encode(speech: list[Path], out: Path) -> None:
    """Write all speech as codes, and the vocabulary of the language model."""
    coded, target = out / "coded", out / "target"
    for folder in (coded, target):
        folder.mkdir(parents=True, exist_ok=True)
    trained = SpeechCodec.from_folder(out / "codec")
    tokenizer = vocabulary.build(list(VOICES), list(SYMBOLS), trained.config.codebook_size)
    tokenizer.save(str(target / "tokenizer.json"))
    for index, shard in enumerate(tqdm(speech, desc="encode", unit="shard")):
        if not (coded / shard.name).exists():
            code(shard, trained, tokenizer, coded / shard.name, index)


def run(out: Path, minutes: float = 120.0, seed: int = 0) -> None:
    """Train all parts within about `minutes` and put them together in `out/model`."""
    speech = render(out / "speech", seed=seed)
    codec(speech, out, minutes * SHARES["codec"], seed)
    encode(speech, out)
    on_every_core(
        "polydraft.apps.train.speech.target", TOKENS, "--tokens", "--data", out / "coded",
        "--tokenizer", out / "target", "--out", out / "target", "--minutes", minutes * SHARES["target"], "--seed", seed,
    )  # fmt: skip
    model = out / "model"
    assemble(out, model)
    for kind, share in DRAFTERS.items():
        learnt = out / "target" / "heads" if kind == "hydra" else None  # what the target was trained with
        drafter.run(str(model), kind, out / f"drafter-{kind}", minutes * share, seed, out / "samples", learnt)
    assemble(out, model)
