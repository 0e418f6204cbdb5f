"""Analysed speech on disk, and pieces of it for training the codec.

    speech = AnalysedSpeech(Path("runs/tiny-speech/analysed"))
    piece = speech.pieces(rows, first, codes=64)

Shards are memory-mapped: a step reads only its pieces, so speech may be many times the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.lab.recipes.speech.sound.analysis import HIGHEST, LOWEST, dequantise_bytes
from polydraft.core.errors import DataUnavailable
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.speech.codecs.tiny import FRAMES_PER_CODE, SAMPLES_PER_CODE
from polydraft.modalities.speech.codecs.vocoder import VocoderFrames

PARTS = ("pitch", "envelope", "noise", "voiced", "phones")  # of a shard, a row per frame
MARGIN = 4  # codes at both ends of a piece that are context only: their neighbours are missing


class SpeechPiece(NamedTuple):
    """Pieces of T codes of utterances, with the targets of their frames."""

    sound: Tensor  # [B, 320 T]
    frames: VocoderFrames  # [B, 4 T], pitch as its log over the middle
    voiced: Tensor  # [B, 4 T]
    phones: Tensor  # [B, 4 T]
    judged: Tensor  # [B, 4 T], 1 for frames that count
    voice: Tensor  # [B]


class AnalysedSpeech:
    """Memory-mapped shards of analysed speech; `counts` [N] are the codes of every utterance."""

    def __init__(self, folder: Path) -> None:
        self.shards: list[dict[str, Tensor]] = [read_tensors(path) for path in sorted(folder.glob("*.safetensors"))]
        if not self.shards:
            raise DataUnavailable(f"{folder} holds no analysed speech; render and analyse some first.")
        each = [shard["counts"].numpy() for shard in self.shards]
        self.counts: NDArray[Any] = np.concatenate(each)
        # first codes, in their shards
        self.starts: NDArray[Any] = np.concatenate([np.cumsum(counts) - counts for counts in each])
        self.shard: NDArray[np.int64] = np.repeat(np.arange(len(each)), [len(counts) for counts in each])
        self.voices: Tensor = torch.cat([shard["voices"] for shard in self.shards])

    def sample_pieces(
        self, rng: np.random.Generator, among: np.ndarray, rows: int, codes: int, edges: float
    ) -> SpeechPiece:
        """Sample `rows` pieces of utterances `among`; a share `edges` is at their start, and as many at their end."""
        chosen = rng.choice(among, rows)
        last = self.counts[chosen] - codes
        kind = rng.random(rows)
        first = np.where(kind < edges, 0, np.where(kind > 1 - edges, last, rng.integers(0, last + 1)))
        return self.pieces(chosen, first, codes)

    def pieces(self, rows: Sequence[int] | np.ndarray, first: np.ndarray, codes: int) -> SpeechPiece:
        """Return pieces of `codes` codes of utterances `rows` from code `first`.

        Edges of a piece that are edges of its utterance count: a trained codec has the same context there.
        """
        cuts = []
        for row, begin in zip(rows, first, strict=True):
            shard, at = self.shards[self.shard[row]], int(self.starts[row] + begin)
            frames = slice(at * FRAMES_PER_CODE, (at + codes) * FRAMES_PER_CODE)
            sound = shard["sound"][at * SAMPLES_PER_CODE : (at + codes) * SAMPLES_PER_CODE]
            cuts.append([sound, *(shard[name][frames] for name in PARTS)])
        sound, pitch, envelope, noise, voiced, phones = (torch.stack(side) for side in zip(*cuts, strict=True))
        judged = torch.ones(phones.shape)
        judged[:, : MARGIN * FRAMES_PER_CODE] = torch.from_numpy(np.asarray(first) == 0).float()[:, None]
        judged[:, -MARGIN * FRAMES_PER_CODE :] = torch.from_numpy(first + codes == self.counts[rows]).float()[:, None]
        true = VocoderFrames(
            pitch.float(), dequantise_bytes(envelope, LOWEST, HIGHEST), dequantise_bytes(noise, 0.0, 1.0)
        )
        who = self.voices[torch.as_tensor(rows)]
        return SpeechPiece(sound.float() / 32768, true, voiced.float(), phones.long(), judged, who)
