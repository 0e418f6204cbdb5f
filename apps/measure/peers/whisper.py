"""transformers' `generate` on recordings, as a contender, with the weights and the algorithm of a pipeline.

peer = WhisperGenerate(pipe, untouched(pipe), SpeechOptions("en", timestamps=True, temperatures=(0.0,)))
run = peer.decode(recording)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from transformers import PreTrainedModel, WhisperFeatureExtractor

from polydraft.apps.measure.timing import settle
from polydraft.apps.measure.transcription import LabelledRecording, Stopwatch, TranscriptionRun, timed_forward
from polydraft.modalities.transcription.pipeline import THRESHOLDS, WhisperPipeline
from polydraft.modalities.transcription.sound import SAMPLE_RATE


@dataclass(frozen=True)
class SpeechOptions:
    """Conditions under which all contenders transcribe."""

    language: str  # code
    timestamps: bool  # of recordings that fit into one window; longer ones always have them
    temperatures: tuple[float, ...]  # of the attempts at a window; 0 is greedy


class WhisperGenerate:
    """transformers' Whisper, recording by recording.

    Args:
        pipe (WhisperPipeline): Whose weights it has.
        model (PreTrainedModel): The weights, loaded by transformers alone.
        options (SpeechOptions): Conditions.
    """

    def __init__(self, pipe: WhisperPipeline, model: PreTrainedModel, options: SpeechOptions) -> None:
        self.pipe: WhisperPipeline = pipe
        self.model: Any = cast(Any, model)
        self.options: SpeechOptions = options
        self.window_samples: int = pipe.log_mel.chunk_samples

    @cached_property
    def extractor(self) -> WhisperFeatureExtractor:
        """Return transformers' feature extractor."""
        return WhisperFeatureExtractor.from_pretrained(self.pipe.card.target)

    @cached_property
    def language(self) -> dict[str, Any]:
        """Return the arguments that name language and task, which a model of one language does not have."""
        is_multilingual = bool(self.pipe.control_tokens.languages)
        return {"language": self.options.language, "task": "transcribe"} if is_multilingual else {}

    @torch.inference_mode()
    def decode(self, recording: LabelledRecording) -> TranscriptionRun:
        """Transcribe a recording."""
        wall, features, is_long = Stopwatch(), Stopwatch(), len(recording.audio) > self.window_samples
        lengths: dict[str, Any] = {"truncation": False, "padding": "longest"} if is_long else {}
        temperatures = self.options.temperatures
        torch.manual_seed(0)
        with wall.running(), timed_forward(self.model.get_encoder()) as encoder:
            with features.running():
                extracted = self.extractor(
                    recording.audio, sampling_rate=SAMPLE_RATE, return_tensors="pt", **lengths
                ).input_features.to(self.model.device, self.model.dtype)
            ids = self.model.generate(
                extracted, return_timestamps=self.options.timestamps or is_long,
                temperature=temperatures if len(temperatures) > 1 else temperatures[0],
                compression_ratio_threshold=THRESHOLDS.compression_ratio, logprob_threshold=THRESHOLDS.log_prob,
                no_speech_threshold=THRESHOLDS.no_speech, **self.language,
            )[0]  # fmt: skip
            settle()
        ids = ids[ids != self.pipe.control_tokens.end].cpu()
        text = self.pipe.decode_text(ids.tolist()).strip()
        return TranscriptionRun(
            0.0, len(ids), [ids], texts=(text,), wall_seconds=wall.seconds, feature_seconds=features.seconds,
            encoder_seconds=encoder.seconds,
        )  # fmt: skip
