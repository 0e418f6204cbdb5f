"""State of a transcription: windows of a recording that become prompts one after the other, and the text so far.

Whisper's own algorithm (Radford et al. 2022, arXiv 2212.04356, section 3.8): a window of 30 seconds is decoded with
timestamps, the next one begins where the last whole sentence ended, and a window whose text repeats itself or is
unlikely is decoded again at a higher temperature. It runs along a `Track`; a recording has one, or one a piece where it
has been cut at silences, and tracks are decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from polydraft.core.decode import Method, Request, StepResult
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import StopPoint
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.request import GenerationRequest, GenerationStream
from polydraft.modalities.transcription.result import Segment, Transcription
from polydraft.modalities.transcription.segments import (
    FRAME_SECONDS,
    QualityThresholds,
    average_log_prob,
    is_silent,
    needs_fallback,
)

if TYPE_CHECKING:
    from polydraft.modalities.transcription.base import SoundBuffer, TranscriptionPipeline

MAX_ATTEMPTS = 16  # temperatures of a window; noise is keyed by window and attempt
UNRELIABLE_TEMPERATURE = 0.5  # from which on a text is no context for the next window


@dataclass(frozen=True)
class TranscriptionOptions:
    """Hold the options of a transcription."""

    language: str | None  # code; None for a model of one language
    task: str
    timestamps: bool
    temperatures: tuple[float, ...]  # of the attempts at a window
    thresholds: QualityThresholds
    seed: int
    initial_ids: tuple[int, ...] = ()  # of a text before the recording
    follows_text: bool = False  # whether the text of earlier windows is context
    language_probability: float | None = None  # if the language was detected
    hypothesis: tuple[int, ...] = ()  # ids of a guess of the whole text
    context: str | None = None  # text before the recording, for models whose prompt is written by a processor


class WindowInput(Protocol):
    """Sound of a window, as the target is given it."""

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """Return the arguments of the model's forward for a prompt."""

    def release(self) -> None:
        """Give memory back; no prompt that is still to be prefilled may have it."""


@dataclass
class Window:
    """A window that is being decoded."""

    first_frame: int
    num_frames: int  # that belong to the track
    encoder_input: WindowInput
    prompt_ids: tuple[int, ...]
    attempt: int = 0  # index of its temperature


@dataclass
class Track:
    """A part of the recording, decoded window after window."""

    first_frame: int
    end_frame: int
    segments: list[Segment] = field(default_factory=list)
    window: Window | None = None
    context: list[int] = field(default_factory=list)  # ids of the text so far that the next window may follow

    @property
    def num_done(self) -> int:
        """Return the number of frames before the present window, all of them where there is none."""
        return (self.end_frame if self.window is None else self.window.first_frame) - self.first_frame


@dataclass(frozen=True)
class TranscriptionProgress:
    """Progress of a transcription since it was last polled."""

    segments: list[Segment]  # finished since then
    partial: str  # text of windows that are being decoded
    seconds_done: float  # of the recording
    seconds_total: float
    passes: int  # target passes so far
    tokens_done: int
    seconds: float  # spent decoding so far


@dataclass(frozen=True)
class TranscriptionStep:
    """One target pass of a transcription."""

    progress: TranscriptionProgress
    step: StepResult

    @property
    def segments(self) -> list[Segment]:
        """Return the segments that the pass finished."""
        return self.progress.segments

    @property
    def partial(self) -> str:
        """Return the text of windows that are being decoded."""
        return self.progress.partial


OnStep = Callable[[TranscriptionStep], None]


class TranscriptionRequest(GenerationRequest[TranscriptionProgress, Transcription]):
    """Transcription of one recording.

    Args:
        pipe (TranscriptionPipeline): the pipeline.
        method (Method): the decoding method.
        features (SoundBuffer): the whole recording; is closed at the end.
        options (TranscriptionOptions): what the caller asks for.
        tracks (Sequence[Track]): parts that are decoded independently, in order.
        max_live (int): windows that are decoded together.
        first_input (WindowInput | None): the first window's, if it has been encoded to detect the language.
    """

    def __init__(
        self, pipe: TranscriptionPipeline[Any], method: Method, features: SoundBuffer, options: TranscriptionOptions,
        tracks: Sequence[Track], max_live: int = 1, first_input: WindowInput | None = None,
    ) -> None:  # fmt: skip
        super().__init__(method, [], max_live)
        self.pipe, self.features, self.options, self.tracks = pipe, features, options, list(tracks)
        self.duration = features.duration
        self.owners: list[Track] = []  # of every prompt
        self.num_polled = 0  # segments that have been polled
        self.cut_windows: list[Window] = []  # whose text is incomplete
        for track in self.tracks:
            self.open_window(track, track.first_frame, first_input if track is self.tracks[0] else None)

    @property
    def has_failed(self) -> bool:
        """Return whether a window has failed: a text with a gap is no result."""
        return bool(self.errors)

    @property
    def is_finished(self) -> bool:
        return super().is_finished or self.has_failed

    @property
    def has_ended(self) -> bool:
        """Return whether all windows have been decoded."""
        return all(track.window is None for track in self.tracks)

    @property
    def segments(self) -> list[Segment]:
        """Return the finished segments, in the order of the recording."""
        return [segment for track in self.tracks for segment in track.segments]

    def open_window(self, track: Track, first_frame: int, encoder_input: WindowInput | None = None) -> None:
        """Let a track go on with the window that begins with a frame, unless the track ends before."""
        num_frames = self.pipe.window_length(self.features, first_frame, track.end_frame)
        if num_frames <= 0:
            track.window = None
            return
        given = encoder_input or self.pipe.encoder_input(self.features, first_frame, num_frames)
        track.window = Window(first_frame, num_frames, given, self.prompt_ids(track, given))
        self.add_attempt(track, track.window)

    def prompt_ids(self, track: Track, given: WindowInput) -> tuple[int, ...]:
        """Return the prompt of a track's next window."""
        options = self.options
        before = [*options.initial_ids, *track.context] if options.follows_text or not track.segments else []
        return self.pipe.prompt_ids(options, before, given)

    def add_attempt(self, track: Track, window: Window) -> None:
        """Add a prompt for a window at its present temperature."""
        temperature = self.options.temperatures[window.attempt]
        prompt = PromptInputs(
            (window.prompt_ids,), self.pipe.max_new_tokens(window.prompt_ids), self.options.seed,
            window.first_frame * MAX_ATTEMPTS + window.attempt, window.encoder_input.model_kwargs,
            replace(self.pipe.sampling_params(temperature=temperature), log_probs=True), self.options.hypothesis,
        )  # fmt: skip
        self.rows.append(Request(len(self.prompts), DecodeStats(self.method.name, self.method.effective_guarantee)))
        self.prompts.append(prompt)
        self.owners.append(track)

    def on_tokens(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, StopPoint]:
        for index in sorted(ended):
            if self.rows[index].error is None:
                self.end_attempt(self.owners[index], self.rows[index])
        if self.has_ended:
            self.features.close()
        return {}

    def end_attempt(self, track: Track, row: Request) -> None:
        """Judge the text of a window: try again at a higher temperature, or keep it and go on."""
        window, options = track.window, self.options
        assert window is not None
        temperature = options.temperatures[window.attempt]
        ratio = self.pipe.compression_ratio(row.ids)
        log_prob = average_log_prob(row.log_probs)
        no_speech = self.pipe.no_speech_probability(window.encoder_input, window.prompt_ids)
        is_last = window.attempt + 1 == len(options.temperatures)
        if needs_fallback(ratio, log_prob, no_speech, options.thresholds) and not is_last:
            window.attempt += 1
            self.add_attempt(track, window)
            return
        window.encoder_input.release()
        if is_silent(log_prob, no_speech, options.thresholds):
            self.open_window(track, window.first_frame + window.num_frames)
            return
        read = self.pipe.read_window(window, row.ids)
        for start, end, ids in read.segments:
            text, end = self.pipe.decode_text(ids), min(end, self.duration)
            track.segments.append(
                Segment(
                    min(start, end), end, text, tuple(ids), temperature, log_prob, ratio, no_speech,
                    seek=window.first_frame,
                )
            )  # fmt: skip
            track.context += self.pipe.context_ids(ids)
        if read.is_cut:
            self.cut_windows.append(window)
        if temperature >= UNRELIABLE_TEMPERATURE:
            track.context = []
        # a window that found no end of a sentence before its first frame would be decoded again and again
        num_frames = read.num_frames if read.num_frames > 0 else window.num_frames
        self.open_window(track, window.first_frame + num_frames)

    def notes(self) -> tuple[str, ...]:
        """Return notes on how far the text can be relied on."""
        if not self.cut_windows:
            return ()
        count, where = len(self.cut_windows), f"from second {self.cut_windows[0].first_frame * FRAME_SECONDS:.0f}"
        which = where if count == 1 else f"of {count} windows, the first {where},"
        return (f"the text {which} was cut at the limit of new tokens",)

    def close(self) -> None:
        self.features.close()

    def poll_events(self) -> list[TranscriptionProgress]:
        segments = self.segments
        new, self.num_polled = segments[self.num_polled :], len(segments)
        live = [index for index, row in enumerate(self.rows) if row.finish == "cancelled" and row.ids]
        partial = " ".join(self.pipe.decode_text(self.rows[index].ids).strip() for index in live)
        seconds = min(sum(track.num_done for track in self.tracks) * FRAME_SECONDS, self.duration)
        return [
            TranscriptionProgress(
                new, partial, seconds, self.duration, self.passes, self.num_generated, self.decode_seconds
            )
        ]

    def result(self) -> Transcription:
        """Return the text, its segments and statistics of what has been decoded so far."""
        options, segments = self.options, self.segments
        return Transcription(
            text=self.pipe.join_text(segments).strip(), segments=segments,
            language=self.pipe.language_of(options, segments), duration=self.duration, task=options.task,
            stats=DecodeStats.sum_rows(self.stats()), model=self.pipe.card.name, method=self.method.name,
            seed=options.seed, language_probability=options.language_probability, notes=self.notes(),
            finish_reason="eos" if self.has_ended else "cancelled",
        )  # fmt: skip


class TranscriptionStream(GenerationStream[TranscriptionRequest], Iterator[TranscriptionStep]):
    """Iterator over the steps of a transcription, with the result so far."""

    def __init__(self, request: TranscriptionRequest) -> None:
        super().__init__(request)
        self.iterator = self.steps()

    def __next__(self) -> TranscriptionStep:
        step = next(self.iterator)
        (progress,) = self.request.poll_events()
        return TranscriptionStep(progress, step)

    def result(self) -> Transcription:
        """Return the text, its segments and statistics of what has been decoded so far."""
        return self.request.result()
