"""Base class of pipelines that transcribe: what all kinds of models share, and what a request asks of its kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from polydraft.core.checks.arguments import to_callback, to_optional
from polydraft.core.decode import Request
from polydraft.core.errors import PromptError, UnsupportedModel
from polydraft.modalities.generation_config import LENGTH_FIELDS
from polydraft.modalities.pipeline import Pipeline
from polydraft.modalities.transcription.committed_text import WindowText
from polydraft.modalities.transcription.request import (
    OnStep,
    TranscriptionOptions,
    TranscriptionRequest,
    TranscriptionStream,
    Window,
    WindowInput,
    WindowTranscript,
)
from polydraft.modalities.transcription.result import Segment, Transcription
from polydraft.modalities.transcription.segments import QualityThresholds
from polydraft.modalities.transcription.sound import SoundSource, open_sound

if TYPE_CHECKING:
    from polydraft.modalities.transcription.live import Caption


class SoundBuffer(Protocol):
    """Sound of a recording, in whatever form a kind of model reads it; whoever asked for it closes it."""

    num_samples: int  # so far

    @property
    def sample_rate(self) -> int:
        """Return the rate of the samples that are pushed, in Hz."""

    @property
    def duration(self) -> float:
        """Return the seconds of sound so far."""

    @property
    def num_frames(self) -> int:
        """Return the number of frames of 10 ms."""

    @property
    def num_sound_frames(self) -> int:
        """Return the number of frames that hold sound; others are padding."""

    def push(self, samples: NDArray[np.float32]) -> None:
        """Append mono sound, `[S]`."""

    def close(self) -> None:
        """Give memory and disk back."""


AnyBuffer = TypeVar("AnyBuffer", bound=SoundBuffer)


class TranscriptionRequestOptions(TypedDict, total=False):
    """Keyword arguments of a call of a pipeline that transcribes; `transcribe` documents them."""

    language: str | None
    task: str
    timestamps: bool | None
    initial_prompt: str | None
    condition_on_previous: bool
    hypothesis: str | None
    batch_size: int
    word_timestamps: bool
    speculative: bool
    method: str | None
    seed: int
    temperature: float | Sequence[float] | None
    thresholds: QualityThresholds | None


class TranscriptionPipeline(Pipeline, Generic[AnyBuffer]):
    """Model that writes down speech, with its weights and its tokenizer; its kind decides how it hears."""

    followed_fields = LENGTH_FIELDS
    target_model: Any

    def __call__(
        self, audio: SoundSource, *, on_step: OnStep | None = None, **options: Unpack[TranscriptionRequestOptions]
    ) -> Transcription:
        """Transcribe a recording, with the arguments of `transcribe` except model, drafter, device and dtype."""
        on_step = to_optional(to_callback, "on_step", on_step)
        stream = self.stream(audio, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(self, audio: SoundSource, **options: Unpack[TranscriptionRequestOptions]) -> TranscriptionStream:
        """Return an iterator over steps with the text so far, with the arguments of `transcribe`.

        It may be left at any time; its `result()` is what has been decoded so far.
        """
        return TranscriptionStream(self.run(audio, **options))

    def listen(self, chunks: Iterable[NDArray[np.float32]], **options: Any) -> Iterator[Caption]:
        """Yield captions of sound that grows, where the model can; see `WhisperPipeline.listen`.

        Raises:
            UnsupportedModel: The model writes no times, by which captions leave the window.
        """
        raise UnsupportedModel(f"{self.card.name} writes no times, which live captions need; use a Whisper.")

    def read_sound(self, audio: SoundSource) -> AnyBuffer:
        """Return the sound of a recording.

        Raises:
            PromptError: it is no sound, or holds none.
        """
        recording = self.open_buffer()
        try:
            with open_sound(audio, sample_rate=recording.sample_rate) as sound:
                for block in sound:
                    recording.push(block)
            if not recording.num_samples:
                raise PromptError("the recording is empty; give one with sound in it.")
        except BaseException:
            recording.close()
            raise
        return recording

    @abstractmethod
    def run(self, audio: SoundSource | AnyBuffer, **options: Any) -> TranscriptionRequest:
        """Return the request for a caller that schedules it, with the arguments of `transcribe`.

        The recording may be one of `open_buffer` that the caller has filled elsewhere; the request closes it.
        """

    @property
    @abstractmethod
    def languages(self) -> Sequence[str]:
        """Return the codes of the languages that may be named; empty where none can."""

    @abstractmethod
    def open_buffer(self) -> AnyBuffer:
        """Return an empty buffer, which takes the sound of a recording from its beginning."""

    @abstractmethod
    def window_length(self, recording: AnyBuffer, first_frame: int, end_frame: int) -> int:
        """Return the number of frames of the window that begins with a frame, of a track that ends before another."""

    @abstractmethod
    def encoder_input(self, recording: AnyBuffer, first_frame: int, num_frames: int) -> WindowInput:
        """Return the sound of a window, as the target is given it."""

    @abstractmethod
    def prompt_ids(self, options: TranscriptionOptions, before: Sequence[int], given: Any) -> tuple[int, ...]:
        """Return the ids of a window's prompt.

        Args:
            options (TranscriptionOptions): What the caller asks for.
            before (Sequence[int]): Ids of text that goes before the window.
            given (WindowInput): The window's sound.
        """

    @abstractmethod
    def max_new_tokens(self, prompt_ids: Sequence[int]) -> int:
        """Return the most tokens of a window's text."""

    @abstractmethod
    def compression_ratio(self, ids: Sequence[int]) -> float:
        """Return the measure of repetition in a window's tokens that thresholds are for."""

    @abstractmethod
    def no_speech_probability(self, given: Any, prompt_ids: Sequence[int]) -> float:
        """Return the probability of silence at the start of a transcript, 0 where the model does not tell it."""

    @abstractmethod
    def read_window(
        self, window: Window, row: Request, options: TranscriptionOptions, recording: Any
    ) -> WindowTranscript:
        """Return the segments of a window's text, and where the next window begins.

        Args:
            window (Window): It has been encoded.
            row (Request): Its tokens and their log probabilities.
            options (TranscriptionOptions): What the caller asks for.
            recording (SoundBuffer): The whole recording.
        """

    @abstractmethod
    def open_text(self) -> WindowText:
        """Return the empty text of a window, to which tokens are appended as they are committed."""

    @abstractmethod
    def context_ids(self, ids: list[int]) -> list[int]:
        """Return the ids of a segment that are context for the next window."""

    @abstractmethod
    def decode_text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, with the space before it."""

    @abstractmethod
    def join_text(self, segments: Sequence[Segment]) -> str:
        """Return the text of segments in order."""

    @abstractmethod
    def language_of(self, options: TranscriptionOptions, segments: Sequence[Segment]) -> str:
        """Return the code of a recording's language."""
