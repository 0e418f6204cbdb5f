"""How well a recogniser understands what methods say, how like the renderer they sound, and in whose voice.

ears = recogniser("pocketsphinx")
found = judged(pipe, ["ar", "vadusa+tolerance"], texts, {}, ears, others(ears, squim=False))
found.rows, found.product   # a row a method, and what a listener notices besides, a row a voice
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from polydraft.apps.bench.measure import table
from polydraft.apps.bench.speech import product
from polydraft.apps.bench.speech.likeness import Sound, Voices, log_mel_distance
from polydraft.apps.bench.speech.stages import CODEC, VOCODER, stages
from polydraft.apps.bench.speech.torchaudio_judges import Squim, Wav2Vec2
from polydraft.apps.bench.speech.word_errors import Listener, plain_words, word_errors
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.errors import InvalidArgument
from polydraft.core.suggestions import did_you_mean
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.text.reading import read

GROUP = 8  # sentences said together
RENDERER = "flite"
RENDERED_RATE = 16_000
NO_METHODS = (RENDERER, VOCODER, CODEC)
More = Callable[[list[str], Sound, int], dict[str, float]]  # of words, sound and rate, by the name of a column
HEADERS = ["method", "same", "WER", "Δ WER", "mel dB", "own voice"]


class Ears(Protocol):
    """A recogniser."""

    def hear(self, audio: Sound, sample_rate: int) -> list[str]: ...


class Judgement(NamedTuple):
    """Of one sentence: word errors, log-mel distance, whether the voice is the one asked for (both None without
    a reference), and what else was asked about it."""

    errors: int
    distance: float | None
    own: float | None
    more: dict[str, float]


@dataclass
class Heard:
    """What one method said, judged, a value a sentence."""

    judgements: list[Judgement] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    voices: list[str] = field(default_factory=list)

    def add(self, judgement: Judgement, same: bool, voice: str) -> None:
        self.judgements.append(judgement)
        self.same.append(same)
        self.voices.append(voice)


class Spoken(NamedTuple):
    """A text said: its codes, its sound, and the samples where parts after the first begin."""

    codes: torch.Tensor
    audio: Sound
    seams: list[int]


class Judged(NamedTuple):
    """A row a method, and a row a voice."""

    rows: list[dict[str, Any]]
    product: list[dict[str, Any]]


@dataclass
class Judge:
    """Judges speech, every sound once. reference: what the renderer says, `{(sentence, voice): sound}`, or nothing.

    more: what else is asked.
    """

    sample_rate: int
    reference: dict[tuple[str, str], Sound]
    ears: Ears
    more: More
    voices: Voices | None = None
    known: dict[bytes, Judgement] = field(default_factory=dict)

    def __call__(self, sentence: str, voice: str, audio: Sound) -> Judgement:
        key = f"{voice} {sentence} ".encode() + np.asarray(audio).tobytes()
        if key not in self.known:
            words = plain_words(words_of(sentence))
            errors = word_errors(words, self.ears.hear(audio, self.sample_rate))
            theirs = self.reference.get((sentence, voice))
            distance = None if theirs is None else log_mel_distance(audio, theirs, self.sample_rate)
            own = None if self.voices is None else float(self.voices.closest(audio) == voice)
            self.known[key] = Judgement(errors, distance, own, self.more(words, audio, self.sample_rate))
        return self.known[key]


def recogniser(name: str) -> Ears:
    """Refuses what is not installed before anything is said."""
    if name == "pocketsphinx":
        ears = Listener()
        ears.decoder  # noqa: B018
        return ears
    if name == "wav2vec2":
        return Wav2Vec2()
    meant = did_you_mean(name, ("pocketsphinx", "wav2vec2"))
    raise InvalidArgument(f"recogniser {name!r} is unknown{meant}; use pocketsphinx or wav2vec2.")


def others(ears: Ears, squim: bool) -> More:
    """What else can be said of a sound: how surely its words lie in it, and its quality without a reference."""
    quality = Squim() if squim else None

    def judge(words: list[str], audio: Sound, sample_rate: int) -> dict[str, float]:
        found = {} if quality is None else quality(audio, sample_rate)
        return found | ({"aligned": ears.aligned(words, audio, sample_rate)} if isinstance(ears, Wav2Vec2) else {})

    return judge


def judged(
    pipe: SpeechPipeline, names: list[str], texts: list[str], options: dict[str, Any], ears: Ears, more: More,
    kinds: Sequence[str] = (),
) -> Judged:  # fmt: skip
    """Every method over all texts in every voice, and the stages before it; kinds: of the texts."""
    reference = rendered(texts, pipe.voices) if pipe.sample_rate == RENDERED_RATE else {}
    theirs = {key: one.audio for key, one in reference.items()}
    judge = Judge(pipe.sample_rate, theirs, ears, more)
    if theirs:
        judge.voices = Voices(
            {voice: [theirs[text, voice] for text in texts] for voice in pipe.voices}, pipe.sample_rate
        )
    heard: dict[str, Heard] = {}
    sources = ({RENDERER: theirs} if theirs else {}) | stages(pipe.family, theirs)
    for name, sounds in sources.items():
        for (text, voice), audio in sounds.items():
            heard.setdefault(name, Heard()).add(judge(text, voice, audio), False, voice)
    noticed = []
    for voice in pipe.voices:
        product_of: list[product.Heard] = []
        for first in range(0, len(texts), GROUP):
            part = texts[first : first + GROUP]
            plain = said_apart(pipe, table.PLAIN, part, voice, first, options)
            product_of += [
                product.Heard(one.audio, one.seams, len(read(text).whole) == 1)
                for text, one in zip(part, plain, strict=True)
            ]
            for name in names:
                ours = plain if name == table.PLAIN else said_apart(pipe, name, part, voice, first, options)
                for text, one, plainly in zip(part, ours, plain, strict=True):
                    same = torch.equal(one.codes, plainly.codes)
                    heard.setdefault(name, Heard()).add(judge(text, voice, one.audio), same, voice)
            note(f"{voice}: {min(first + GROUP, len(texts))}/{len(texts)} sentences")
        pausing = [reference[text, voice] for text in texts] if reference else None
        noticed.append(product.row(voice, product_of, pausing, pipe.sample_rate))
    wanted = [len(plain_words(words_of(text))) for _ in pipe.voices for text in texts]
    groups = list(kinds) * len(pipe.voices)
    return Judged([row_of(name, one, heard[table.PLAIN], wanted, groups) for name, one in heard.items()], noticed)


def said_apart(
    pipe: SpeechPipeline, name: str, texts: list[str], voice: str, seed: int, options: dict[str, Any]
) -> list[Spoken]:
    """Codes and sound of every text, said together."""
    paragraphs = "\n\n".join(texts)  # a text that ends in "4.8 m." would go on in the next
    stream = pipe.stream(paragraphs, voice=voice, seed=seed, method=name, together=GROUP, **options)
    pieces: dict[int, list[Sound]] = {}
    for chunk in stream:
        pieces.setdefault(chunk.sentence, []).append(chunk.audio)
    result, spoken = stream.result(), []
    sounds = [np.concatenate(pieces.get(part, [np.zeros(0, np.float32)])) for part in range(len(result.counts))]
    codes, at = result.tokens.split(result.counts), 0
    for text in texts:
        end = at + len(pipe.family.read(text).sentences)
        seams = np.cumsum([len(sound) for sound in sounds[at:end]])[:-1].tolist()
        spoken.append(Spoken(torch.cat(codes[at:end]), np.concatenate(sounds[at:end]), seams))
        at = end
    return spoken


def rendered(texts: list[str], voices: list[str]) -> dict[tuple[str, str], product.Rendered]:
    """What flite says, voice by voice; nothing where it is not installed or has no such voice."""
    from polydraft.apps.train.speech.corpus import flite
    from polydraft.apps.train.speech.corpus.data import render

    if not set(voices) <= set(flite.VOICES):
        return {}
    try:
        made = {(text, voice): render(words_of(text).split(), voice) for voice in voices for text in texts}
    except flite.FliteError as error:
        note(f"note: {error} Without it, speech is not compared with the renderer's.")
        return {}
    return {
        key: product.Rendered(np.float32(1 / 32768) * samples.astype(np.float32), len(flite.pauses(said)))
        for key, (samples, said) in made.items()
    }


def words_of(text: str) -> str:
    """As it is read."""
    return " ".join(word for words in read(text).whole for word in words)


def row_of(name: str, heard: Heard, plain: Heard, wanted: list[int], kinds: list[str]) -> dict[str, Any]:
    errors, plainly = (np.asarray([one.errors for one in side.judgements]) for side in (heard, plain))
    gap, words = errors - plainly, np.asarray(wanted)

    def rates(groups: list[str]) -> dict[str, float]:
        found = np.asarray(groups)
        return {
            group: float(errors[found == group].sum() / words[found == group].sum()) for group in dict.fromkeys(groups)
        }

    return {
        "method": name, "wer": errors.sum() / words.sum(), "same": float(np.mean(heard.same)),
        "wer_by_voice": rates(heard.voices), "wer_by_kind": rates(kinds),
        "delta": float(gap.sum() / words.sum()), "error": float(gap.std() / len(gap) ** 0.5 / words.mean()),
        "distance": mean([one.distance for one in heard.judgements]),
        "own_voice": mean([one.own for one in heard.judgements]),
        "more": {
            column: float(np.mean([one.more[column] for one in heard.judgements]))
            for column in heard.judgements[0].more
        },
    }  # fmt: skip


def mean(values: Sequence[float | None]) -> float | None:
    """None where a value is missing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def cells(row: dict[str, Any]) -> list[str]:
    parts = row["wer_by_voice"] | row["wer_by_kind"]
    by = ", ".join(f"{part} {rate:.3f}" for part, rate in parts.items())
    compared = row["method"] not in (*NO_METHODS, table.PLAIN)
    gap = f"{row['delta']:+.3f} ± {row['error']:.3f}" if compared else ""
    same = f"{100 * row['same']:.0f} %" if row["method"] not in NO_METHODS else ""
    distance = "" if row["distance"] is None else f"{row['distance']:.2f}"
    own = "" if row["own_voice"] is None else f"{100 * row['own_voice']:.0f} %"
    more = [f"{value:.2f}" for value in row["more"].values()]
    return [row["method"], same, f"{row['wer']:.3f} ({by})", gap, distance, own, *more]


def headers(rows: list[dict[str, Any]]) -> list[str]:
    return [*HEADERS, *rows[0]["more"]]
