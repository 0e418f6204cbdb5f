"""Encoded speech, and batches of it for the language model of `tiny-speech`.

    for shard in render_many(…): encode_shard(shard, codec, tokenizer, folder / shard.name, seed)
    batch = CodedSpeech(folder, letters, codes_from).sample_batch(rng, tokens=4608)

A folder of .npz shards, each with symbols (ids), their start and end in seconds, codes and a voice for every utterance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.apps.lab.recipes.speech.corpus.data import load_shard, spell_words
from polydraft.core.distillation.examples import Examples
from polydraft.core.errors import DataUnavailable
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SAMPLES_PER_CODE, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import SAMPLE_RATE
from polydraft.modalities.speech.text.lexicon import LETTERS

LENGTHS = (160, 224, 288, 384, 512, 640)  # padded lengths: few shapes compile once each; longer utterances are left out
NO_SYMBOL = -1
FEWEST = 10  # utterances per held-out one, at least
SPELLED = 0.06  # share of words given as letters, so that words outside the lexicon can be synthesised


def encode_shard(shard: Path, codec: SpeechCodec, tokenizer: Tokenizer, out: Path, seed: int) -> None:
    """Encode a shard of rendered speech; some words, chosen by `seed`, are spelled."""
    rng, rows = np.random.default_rng(seed), []
    for utterance in load_shard(shard):
        spelled = np.flatnonzero(rng.random(len(utterance.sentence)) < SPELLED).tolist()
        symbols, times = spell_words(utterance.sentence, utterance.times, spelled)
        ids = vocabulary.prompt_ids(tokenizer, utterance.voice, symbols)
        codes = codec.encode(torch.from_numpy(utterance.samples[None].astype(np.float32) / 32768))[0]
        rows.append((ids[0], ids[1:-1], times, codes.numpy()))
    voices, symbols, times, codes = zip(*rows, strict=True)
    with atomic_file(out) as file:
        np.savez(
            file, voices=np.array(voices, np.uint16), symbols=np.concatenate(symbols).astype(np.uint16),
            times=np.concatenate(times), codes=np.concatenate(codes).astype(np.uint16),
            symbol_counts=np.array([len(one) for one in symbols]), code_counts=np.array([len(one) for one in codes]),
        )  # fmt: skip


@dataclass(frozen=True)
class SpeechBatch:
    """Sequences `<|voice|> symbols <|speech_start|> codes <|speech_end|>`, right-padded."""

    ids: Tensor  # [B, L]
    judged: Tensor  # [B, L - 1] bool, the next token is a code or the end
    symbol_index: Tensor  # [B, L] index of the symbol at a position (letters of a word count as one), or NO_SYMBOL
    spoken_symbol: Tensor  # [B, L] index of the symbol that the next code is spoken for, or NO_SYMBOL


class CodedSpeech:
    """Utterances in memory; `held` of them, spread evenly and at most one in ten, are kept for validation."""

    def __init__(self, folder: Path, letters: frozenset[int], codes_from: int, num_held_out: int = 128) -> None:
        """Load all shards of a folder; `letters` are ids of letters, `codes_from` is the id of code 0."""
        self.letters: NDArray[np.int64] = np.array(sorted(letters))
        self.codes_from: int = codes_from
        shards = [np.load(path) for path in sorted(folder.glob("shard-?????.npz"))]
        if not shards:
            raise DataUnavailable(f"{folder} holds no coded speech; render and encode some first.")

        def concatenate(name: str) -> np.ndarray:
            return np.concatenate([shard[name] for shard in shards])

        self.symbols: NDArray[Any] = concatenate("symbols")
        self.times: NDArray[Any] = concatenate("times")
        self.codes: NDArray[Any] = concatenate("codes")
        self.voices: NDArray[Any] = concatenate("voices")
        self.symbol_counts: NDArray[Any] = concatenate("symbol_counts")
        self.code_counts: NDArray[Any] = concatenate("code_counts")
        self.symbols_from: NDArray[Any] = np.cumsum(self.symbol_counts) - self.symbol_counts
        self.first_code: NDArray[Any] = np.cumsum(self.code_counts) - self.code_counts
        self.lengths: NDArray[Any] = self.symbol_counts + self.code_counts + 3
        fitting = np.flatnonzero(self.lengths <= LENGTHS[-1])
        held_out = fitting[:: max(FEWEST, len(fitting) // num_held_out)][:num_held_out]
        self.held_out: NDArray[np.intp] = held_out
        train = np.setdiff1d(fitting, held_out)
        self.train: NDArray[np.intp] = train[np.argsort(self.lengths[train], kind="stable")]

    @staticmethod
    def from_runs(runs: Path) -> CodedSpeech:
        """Load `runs/coded`, in the vocabulary of `runs/target`."""
        words = vocabulary.load_tokenizer(runs / "target")
        letters = frozenset(vocabulary.id_of(words, letter) for letter in LETTERS)
        return CodedSpeech(runs / "coded", letters, vocabulary.code_offset(words))

    def sample_batch(self, rng: np.random.Generator, tokens: int) -> SpeechBatch:
        """Sample utterances of similar length, `tokens` in all with padding; all utterances are equally likely."""
        place = int(rng.integers(len(self.train)))
        length = next(size for size in LENGTHS if size >= self.lengths[self.train[place]])
        first, end = np.searchsorted(self.lengths[self.train], [previous_length(length), length], side="right")
        return self.collate(self.train[rng.integers(first, end, tokens // length)], length)

    def validation(self, tokens: int) -> list[SpeechBatch]:
        """Return batches of the held-out utterances."""
        order = self.held_out[np.argsort(self.lengths[self.held_out])]
        parts = np.array_split(order, min(len(order), 1 + int(self.lengths[order].sum()) // tokens))
        return [self.collate(part, int(self.lengths[part].max())) for part in parts]

    def examples(self, rng: np.random.Generator, tokens: int) -> Iterator[Examples]:
        """Yield endless batches for training drafters."""
        while True:
            batch = self.sample_batch(rng, tokens)
            yield Examples(batch.ids, F.pad(batch.judged, (0, 1)))

    def collate(self, chosen: np.ndarray, length: int) -> SpeechBatch:
        ids = np.zeros((len(chosen), length), np.int64)
        judged = np.zeros((len(chosen), length - 1), bool)
        part, spoken = (np.full((len(chosen), length), NO_SYMBOL) for _ in range(2))
        for row, index in enumerate(chosen):
            at, first = self.symbols_from[index], self.first_code[index]
            symbols, times = (x[at : at + self.symbol_counts[index]] for x in (self.symbols, self.times))
            codes = self.codes[first : first + self.code_counts[index]]
            prompt, end = len(symbols) + 2, len(symbols) + 2 + len(codes)
            ids[row, :prompt] = [self.voices[index], *symbols, vocabulary.START]
            ids[row, prompt:end], ids[row, end] = codes.astype(np.int64) + self.codes_from, vocabulary.END
            judged[row, prompt - 1 : end] = True
            letter = np.isin(symbols, self.letters)
            names = np.cumsum(~(letter & np.roll(letter, 1) & (np.arange(len(symbols)) > 0)))
            part[row, 1 : prompt - 1] = names
            middles = (np.arange(len(codes)) + 0.5) * SAMPLES_PER_CODE / SAMPLE_RATE
            current_symbol = np.searchsorted(times[:, 1], middles, side="right")
            is_spoken = (current_symbol < len(symbols)) & (middles >= times[0, 0])
            current_name = names[current_symbol.clip(max=len(symbols) - 1)]
            spoken[row, prompt - 1 : end - 1] = np.where(is_spoken, current_name, NO_SYMBOL)
        return SpeechBatch(*(torch.from_numpy(x) for x in (ids, judged, part, spoken)))


def previous_length(length: int) -> int:
    """Return the next shorter padded length, 0 for the first."""
    place = LENGTHS.index(length)
    return LENGTHS[place - 1] if place else 0
