"""faster-whisper on the weights of a pipeline, as a contender: CTranslate2's greedy search, one recording at a time.

with converted(pipe) as folder:
    peer = FasterWhisper(folder, fastest_compute_type(folder, recording, options), options)
    run = peer.decode(recording)

It follows the published algorithm, without its own voice activity detection and without text of earlier windows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from polydraft.apps.measure.peers.whisper import SpeechOptions
from polydraft.apps.measure.transcription import LabelledRecording, Stopwatch, TranscriptionRun
from polydraft.modalities.transcription.features import PREPROCESSOR
from polydraft.modalities.transcription.pipeline import WhisperPipeline

PACKAGE, NAME = "faster_whisper", "faster-whisper"
COMPUTE_TYPES = ("int8", "int8_bfloat16", "bfloat16", "float16", "float32")  # that may be the fastest of a machine
TRIALS = 2  # after a first transcript that warms up
TOKENIZER = "tokenizer.json"


class FasterWhisper:
    """Model of a folder in CTranslate2's form, in faster-whisper, with as many threads as torch has.

    Args:
        folder (Path): The folder.
        compute_type (str): Type that CTranslate2 computes in; int8 quantises the weights.
        options (SpeechOptions): Conditions.
        device (str): "cpu" or "cuda".
    """

    def __init__(self, folder: Path, compute_type: str, options: SpeechOptions, device: str = "cpu") -> None:
        from faster_whisper import WhisperModel

        self.model: Any = WhisperModel(
            str(folder), device=device, compute_type=compute_type, cpu_threads=torch.get_num_threads(),
            local_files_only=True,
        )  # fmt: skip
        self.options: SpeechOptions = options
        self.name: str = f"{NAME} {compute_type}"
        self.encoder: Stopwatch = Stopwatch()
        self.encode: Callable[..., Any] = self.model.encode
        vars(self.model)["encode"] = self.timed_encode

    def timed_encode(self, features: Any) -> Any:
        """Run the encoder, timed."""
        with self.encoder.running():
            return self.encode(features)

    def decode(self, recording: LabelledRecording) -> TranscriptionRun:
        """Transcribe a recording."""
        import ctranslate2

        wall, features, self.encoder.seconds = Stopwatch(), Stopwatch(), 0.0
        is_long = len(recording.audio) > self.model.feature_extractor.n_samples
        ctranslate2.set_random_seed(0)
        with wall.running():
            with features.running():  # the language is given, so only features are computed before segments are read
                segments, _ = self.model.transcribe(
                    recording.audio, language=self.options.language, beam_size=1, best_of=1,
                    temperature=list(self.options.temperatures), condition_on_previous_text=False,
                    without_timestamps=not (self.options.timestamps or is_long),
                )  # fmt: skip
            found = list(segments)
        ids = torch.tensor([token for segment in found for token in segment.tokens], dtype=torch.long)
        text = "".join(segment.text for segment in found).strip()
        return TranscriptionRun(
            0.0, len(ids), [ids], texts=(text,), wall_seconds=wall.seconds, feature_seconds=features.seconds,
            encoder_seconds=self.encoder.seconds,
        )  # fmt: skip


@contextmanager
def converted(pipe: WhisperPipeline) -> Iterator[Path]:
    """Yield a temporary folder with a pipeline's weights in CTranslate2's form, in the type they are stored in."""
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        TransformersConverter(str(pipe.card.target), copy_files=[TOKENIZER, PREPROCESSOR]).convert(str(folder))
        yield folder


def fastest_compute_type(folder: Path, recording: LabelledRecording, options: SpeechOptions, device: str) -> str:
    """Return the type that faster-whisper transcribes a recording fastest in, of those that the machine has."""
    from ctranslate2 import get_supported_compute_types

    supported = get_supported_compute_types(device)
    seconds = {}
    for compute_type in (name for name in COMPUTE_TYPES if name in supported):
        peer = FasterWhisper(folder, compute_type, options, device)
        runs = [peer.decode(recording) for _ in range(1 + TRIALS)]
        seconds[compute_type] = min(run.wall_seconds for run in runs[1:])
    return min(seconds, key=lambda name: seconds[name])
