"""Coded speech, and batches of it: what the language model of `tiny-speech` learns from.

    for shard in render_many(…): code(shard, codec, tokenizer, folder / shard.name)
    batch = Coded(folder, letters, codes_from).batch(rng, tokens=4608)

A folder of .npz shards, each with symbols (ids), their start and end in seconds, codes and a voice for every utterance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.apps.train.speech.corpus.data import load_shard, respelled
from polydraft.core.errors import DataUnavailable
from polydraft.core.training.examples import Examples
from polydraft.modalities.output import whole
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SAMPLES, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import SAMPLE_RATE
from polydraft.modalities.speech.text.lexicon import LETTERS

LENGTHS = (160, 224, 288, 384, 512, 640)  # padded: few shapes compile once each; what is longer is left out
NOTHING = -1
FEWEST = 10  # utterances to one that is held out
SPELLED = 0.06  # share of words given as letters, so that words no lexicon has can be said


def code(shard: Path, codec: SpeechCodec, tokenizer: Tokenizer, out: Path, seed: int) -> None:
    """Encode a shard of rendered speech; some words, drawn by `seed`, are spelled."""
    rng, rows = np.random.default_rng(seed), []
    for said in load_shard(shard):
        spelled = np.flatnonzero(rng.random(len(said.sentence)) < SPELLED).tolist()
        symbols, times = respelled(said.sentence, said.times, spelled)
        ids = vocabulary.prompt_ids(tokenizer, said.voice, symbols)
        codes = codec.encode(torch.from_numpy(said.samples[None].astype(np.float32) / 32768))[0]
        rows.append((ids[0], ids[1:-1], times, codes.numpy()))
    voices, symbols, times, codes = zip(*rows, strict=True)
    with whole(out) as file:
        np.savez(
            file, voices=np.array(voices, np.uint16), symbols=np.concatenate(symbols).astype(np.uint16),
            times=np.concatenate(times), codes=np.concatenate(codes).astype(np.uint16),
            symbol_counts=np.array([len(one) for one in symbols]), code_counts=np.array([len(one) for one in codes]),
        )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Sequences `<|voice|> symbols <|speech_start|> codes <|speech_end|>`, right-padded.

    ids: `[B, L]`. judged: `[B, L - 1]` bool, whose next token is a code or the end. part: `[B, L]`, which symbol stands
    here (letters of a word count as one), or NOTHING. spoken: `[B, L]`, which one the next code is said for.
    """

    ids: Tensor
    judged: Tensor
    part: Tensor
    spoken: Tensor


class Coded:
    """Utterances in memory; `held` of them, spread over all and at most one in ten, are kept for validation."""

    def __init__(self, folder: Path, letters: frozenset[int], codes_from: int, held: int = 128) -> None:
        """letters: ids of symbols that are letters; codes_from: id of code 0."""
        self.letters, self.codes_from = np.array(sorted(letters)), codes_from
        shards = [np.load(path) for path in sorted(folder.glob("shard-?????.npz"))]
        if not shards:
            raise DataUnavailable(f"{folder} holds no coded speech; render and encode some first.")

        def joined(name: str) -> np.ndarray:
            return np.concatenate([shard[name] for shard in shards])

        self.symbols, self.times, self.codes = joined("symbols"), joined("times"), joined("codes")
        self.voices, self.written, self.lasting = joined("voices"), joined("symbol_counts"), joined("code_counts")
        self.symbols_from = np.cumsum(self.written) - self.written
        self.first_code = np.cumsum(self.lasting) - self.lasting
        self.lengths = self.written + self.lasting + 3
        fitting = np.flatnonzero(self.lengths <= LENGTHS[-1])
        apart = fitting[:: max(FEWEST, len(fitting) // held)][:held]
        self.held_out, train = apart, np.setdiff1d(fitting, apart)
        self.train = train[np.argsort(self.lengths[train], kind="stable")]

    @staticmethod
    def of(runs: Path) -> Coded:
        """What lies in `runs/coded`, in the vocabulary of `runs/target`."""
        words = vocabulary.load(runs / "target")
        letters = frozenset(vocabulary.id_of(words, letter) for letter in LETTERS)
        return Coded(runs / "coded", letters, vocabulary.code_offset(words))

    def batch(self, rng: np.random.Generator, tokens: int) -> Batch:
        """Utterances of about one length, `tokens` in all with padding; every utterance is as likely as another."""
        place = int(rng.integers(len(self.train)))
        length = next(size for size in LENGTHS if size >= self.lengths[self.train[place]])
        first, end = np.searchsorted(self.lengths[self.train], [previous(length), length], side="right")
        return self.rows(self.train[rng.integers(first, end, tokens // length)], length)

    def validation(self, tokens: int) -> list[Batch]:
        """The held-out utterances."""
        order = self.held_out[np.argsort(self.lengths[self.held_out])]
        parts = np.array_split(order, min(len(order), 1 + int(self.lengths[order].sum()) // tokens))
        return [self.rows(part, int(self.lengths[part].max())) for part in parts]

    def examples(self, rng: np.random.Generator, tokens: int) -> Iterator[Examples]:
        """Endless batches, as drafters learn from them."""
        while True:
            batch = self.batch(rng, tokens)
            yield Examples(batch.ids, F.pad(batch.judged, (0, 1)))

    def rows(self, chosen: np.ndarray, length: int) -> Batch:
        ids = np.zeros((len(chosen), length), np.int64)
        judged = np.zeros((len(chosen), length - 1), bool)
        part, spoken = (np.full((len(chosen), length), NOTHING) for _ in range(2))
        for row, index in enumerate(chosen):
            at, first = self.symbols_from[index], self.first_code[index]
            symbols, times = (x[at : at + self.written[index]] for x in (self.symbols, self.times))
            codes = self.codes[first : first + self.lasting[index]]
            prompt, end = len(symbols) + 2, len(symbols) + 2 + len(codes)
            ids[row, :prompt] = [self.voices[index], *symbols, vocabulary.START]
            ids[row, prompt:end], ids[row, end] = codes.astype(np.int64) + self.codes_from, vocabulary.END
            judged[row, prompt - 1 : end] = True
            letter = np.isin(symbols, self.letters)
            names = np.cumsum(~(letter & np.roll(letter, 1) & (np.arange(len(symbols)) > 0)))
            part[row, 1 : prompt - 1] = names
            middles = (np.arange(len(codes)) + 0.5) * SAMPLES / SAMPLE_RATE
            saying = np.searchsorted(times[:, 1], middles, side="right")
            known = (saying < len(symbols)) & (middles >= times[0, 0])
            spoken[row, prompt - 1 : end - 1] = np.where(known, names[saying.clip(max=len(symbols) - 1)], NOTHING)
        return Batch(*(torch.from_numpy(x) for x in (ids, judged, part, spoken)))


def previous(length: int) -> int:
    """The next shorter padded length, 0 before the first."""
    place = LENGTHS.index(length)
    return LENGTHS[place - 1] if place else 0
