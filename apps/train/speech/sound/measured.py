"""Analysed speech on disk, and pieces of it: what the codec learns from.

    speech = Measured(Path("runs/tiny-speech/analysed"))
    piece = speech.pieces(rows, first, codes=64)

Shards are mapped, not read: a step touches what it learns from, so speech may be many times the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.train.speech.sound.analysis import HIGHEST, LOWEST, from_bytes
from polydraft.core.errors import DataUnavailable
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.speech.codecs.tiny import FRAMES, SAMPLES
from polydraft.modalities.speech.codecs.vocoder import Frames

PARTS = ("pitch", "envelope", "noise", "voiced", "phones")  # of a shard, a row a frame
MARGIN = 4  # codes at both ends of a piece that are heard but not judged: their neighbours are missing


class Piece(NamedTuple):
    """sound: `[B, 320 T]`; frames: `4 T` of them, their pitch as its log over the middle; voiced, phones, judged:
    `[B, 4 T]`; voice: `[B]`."""

    sound: Tensor
    frames: Frames
    voiced: Tensor
    phones: Tensor
    judged: Tensor
    voice: Tensor


class Measured:
    """counts: `[N]` codes of every utterance."""

    def __init__(self, folder: Path) -> None:
        self.shards = [read_tensors(path) for path in sorted(folder.glob("*.safetensors"))]
        if not self.shards:
            raise DataUnavailable(f"{folder} holds no analysed speech; render and analyse some first.")
        each = [shard["counts"].numpy() for shard in self.shards]
        self.counts = np.concatenate(each)
        self.starts = np.concatenate([np.cumsum(counts) - counts for counts in each])  # first codes, in their shards
        self.shard = np.repeat(np.arange(len(each)), [len(counts) for counts in each])
        self.voices = torch.cat([shard["voices"] for shard in self.shards])

    def draw(self, rng: np.random.Generator, among: np.ndarray, rows: int, codes: int, edges: float) -> Piece:
        """`rows` pieces of utterances `among`; a share `edges` begins where they begin, and as many end there."""
        chosen = rng.choice(among, rows)
        last = self.counts[chosen] - codes
        kind = rng.random(rows)
        first = np.where(kind < edges, 0, np.where(kind > 1 - edges, last, rng.integers(0, last + 1)))
        return self.pieces(chosen, first, codes)

    def pieces(self, rows: Sequence[int] | np.ndarray, first: np.ndarray, codes: int) -> Piece:
        """From code `first` of utterances `rows`. Where a piece begins or ends as its utterance does, that edge is
        judged: the codec hears and sees there, once trained, what it hears and sees here."""
        cuts = []
        for row, begin in zip(rows, first, strict=True):
            shard, at = self.shards[self.shard[row]], int(self.starts[row] + begin)
            frames = slice(at * FRAMES, (at + codes) * FRAMES)
            sound = shard["sound"][at * SAMPLES : (at + codes) * SAMPLES]
            cuts.append([sound, *(shard[name][frames] for name in PARTS)])
        sound, pitch, envelope, noise, voiced, phones = (torch.stack(side) for side in zip(*cuts, strict=True))
        judged = torch.ones(phones.shape)
        judged[:, : MARGIN * FRAMES] = torch.from_numpy(np.asarray(first) == 0).float()[:, None]
        judged[:, -MARGIN * FRAMES :] = torch.from_numpy(first + codes == self.counts[rows]).float()[:, None]
        true = Frames(pitch.float(), from_bytes(envelope, LOWEST, HIGHEST), from_bytes(noise, 0.0, 1.0))
        who = self.voices[torch.as_tensor(rows)]
        return Piece(sound.float() / 32768, true, voiced.float(), phones.long(), judged, who)
