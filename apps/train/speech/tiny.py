"""Make `tiny-speech` from nothing: `polydraft train tiny-speech --out runs/tiny-speech` (about 15 hours on two cores).

Sentences are said by flite (Debian: `apt install flite`), a codec learns to write the sound as codes and has to be
understood before anything learns from it, a language model learns to write codes from text, and drafters to guess it.
Each stage is also a command of its own in this folder, and goes on where it was stopped. For 200,000 sentences flite
takes about 1.7 hours, WORLD one more for the fifth of them that the codec learns from, encoding about half an hour, and
all of it 30 GB of disk; the rest is the minutes given. A trial of the whole chain:

    polydraft train tiny-speech --out runs/trial --sentences 200 --minutes 3 --anyway

The finished model folder is `<out>/model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from tqdm import tqdm

from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.speech import drafters, writing
from polydraft.apps.train.speech.codes import code
from polydraft.apps.train.speech.corpus.data import Job, render_many, shards_of
from polydraft.apps.train.speech.corpus.flite import VOICES
from polydraft.apps.train.speech.sound import codec as codecs
from polydraft.apps.train.speech.sound import gate
from polydraft.apps.train.speech.sound.analysis import measure_many
from polydraft.apps.train.together import on_every_core
from polydraft.modalities.output import write_text
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SpeechCodec
from polydraft.modalities.speech.corpus.sentences import corpus
from polydraft.modalities.speech.text.lexicon import SYMBOLS
from polydraft.modalities.speech.text.reading import read

SENTENCES = 200_000
A_SHARD = 500  # sentences
ANALYSED = 0.2  # of the shards, which the codec learns from
WRITTEN = 0.1  # sentences by the target, of those by flite
MINUTES = 720.0
SHARES = {  # of the minutes
    "codec": 0.2, "decoder": 0.05, "target": 0.47, "writing": 0.08, "hydra": 0.1, "heads": 0.03, "lm": 0.02,
    "block": 0.05,
}  # fmt: skip
TOKENS = 4608  # of a batch of the language model
WORKERS = 2


def jobs(seed: int) -> Iterator[Job]:
    """Training sentences, the voices in turns.

    All at one tempo: a model that has heard several draws one a sentence, and lengthens what is short of a pause.
    """
    sentences = (words for text in corpus(seed) for words in read(text).sentences)
    return map(Job, sentences, cycle(VOICES))


def render(out: Path, sentences: int = SENTENCES, seed: int = 0) -> list[Path]:
    """Shards of speech in `out`; no text is written where all are there."""
    shards = shards_of(out, sentences, A_SHARD)
    if all(shard.exists() for shard in shards):
        return shards
    wanted = list(tqdm(islice(jobs(seed), sentences), total=sentences, desc="write", unit="sentence"))
    said = render_many(wanted, out, workers=WORKERS, per_file=A_SHARD)
    return list(tqdm(said, total=len(shards), desc="render", unit="shard"))


def analyse(speech: list[Path], out: Path) -> None:
    """Measure what some of the speech does."""
    some = speech[: max(1, round(ANALYSED * len(speech)))]
    for _ in tqdm(measure_many(some, out, WORKERS), total=len(some), desc="analyse", unit="shard"):
        pass


def encode(speech: list[Path], out: Path) -> None:
    """Write all speech as codes of the codec as it is now, and the vocabulary of the language model."""
    coded, target = out / "coded", out / "target"
    for folder in (coded, target):
        folder.mkdir(parents=True, exist_ok=True)
    trained, stamp, now = SpeechCodec.from_folder(out / "codec"), coded / "codec.txt", gate.weights(out / "codec")
    if stamp.exists() and stamp.read_text() != now:
        for old in coded.glob("*.npz"):
            old.unlink()
    write_text(stamp, now)
    tokenizer = vocabulary.build(list(VOICES), list(SYMBOLS), trained.config.codebook_size)
    tokenizer.save(str(target / "tokenizer.json"))
    for index, shard in enumerate(tqdm(speech, desc="encode", unit="shard")):
        if not (coded / shard.name).exists():
            code(shard, trained, tokenizer, coded / shard.name, index)


def run(
    out: Path, minutes: float = MINUTES, seed: int = 0, sentences: int = SENTENCES, anyway: bool = False
) -> None:  # fmt: skip
    """Train all parts within about `minutes` and put them together in `out/model`.

    anyway: train on codes of a codec that has not passed its gate. Raises InvalidArgument where it has not, and what is
    there waits for a better one.
    """
    spent = {stage: minutes * share for stage, share in SHARES.items()}
    speech = render(out / "speech", sentences, seed)
    analyse(speech, out / "analysed")
    codecs.run(out / "analysed", out / "codec", spent["codec"], seed)
    codecs.run(out / "analysed", out / "codec", spent["decoder"], seed, decoder=True, often=codecs.OFTEN)
    gate.run(out / "codec", each=max(1, min(20, sentences // 500)))
    gate.check(out / "codec", anyway)
    encode(speech, out)
    on_every_core(
        "polydraft.apps.train.speech.target", TOKENS, "--tokens", "--runs", out, "--minutes", spent["target"],
        "--seed", seed, *(["--anyway"] if anyway else []),
    )  # fmt: skip
    assemble(out, out / "model")
    writing.run(out, max(64, round(WRITTEN * sentences)), spent["writing"], seed)
    for kind in drafters.KINDS:
        drafters.run(kind, out, spent[kind], seed)
    assemble(out, out / "model")
