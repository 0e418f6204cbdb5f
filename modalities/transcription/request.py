"""State of a transcription: windows of a recording that become prompts one after the other, and the text so far.

Whisper's own algorithm (Radford et al. 2022, arXiv 2212.04356, section 3.8): a window of 30 seconds is decoded with
timestamps, the next one begins where the last whole sentence ended, and a window whose text repeats itself or is
unlikely is decoded again at a higher temperature. It runs along a `Track`. A recording has one, or one a piece where it
has been cut at pauses (`pauses.py`), and tracks are decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from polydraft.core.decode import Method, Request, StepResult
from polydraft.core.stopping import StopPoint
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.request import GenerationRequest, GenerationStream
from polydraft.modalities.transcription.committed_text import OpenSegment, WindowText
from polydraft.modalities.transcription.result import Segment, Transcription
from polydraft.modalities.transcription.segments import (
    FRAME_SECONDS,
    QualityThresholds,
    average_log_prob,
    is_silent,
    needs_fallback,
)
from polydraft.modalities.transcription.words import WindowSegment

if TYPE_CHECKING:
    from polydraft.modalities.transcription.base import SoundBuffer, TranscriptionPipeline

MAX_ATTEMPTS = 16  # temperatures of a window; noise is keyed by window and attempt
UNRELIABLE_TEMPERATURE = 0.5  # from which on a text is no context for the next window


@dataclass(frozen=True)
class TranscriptionOptions:
    """Hold the options of a transcription."""

    language: str | None  # code; None for a model of one language
    task: str
    timestamps: bool  # whether windows are decoded with timestamps
    temperatures: tuple[float, ...]  # of the attempts at a window
    thresholds: QualityThresholds
    seed: int
    initial_ids: tuple[int, ...] = ()  # of a text before the recording
    follows_text: bool = False  # whether the text of earlier windows is context
    language_probability: float | None = None  # if the language was detected
    hypothesis: tuple[int, ...] = ()  # ids of a guess of the whole text
    context: str | None = None  # text before the recording, for models whose prompt is written by a processor
    word_timestamps: bool = False  # whether words have times


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
    prompt: int = 0  # index of the request's prompt for this attempt
    no_speech_prob: float | None = None  # probability that nothing is spoken, once the first attempt has been prefilled


@dataclass(frozen=True)
class WindowTranscript:
    """Content of the tokens of a window."""

    segments: list[WindowSegment]
    num_frames: int  # after which the next window begins
    is_cut: bool = False  # whether text is lost, since there was no room for more tokens


@dataclass
class Track:
    """A part of the recording, decoded window after window."""

    first_frame: int  # of what is not decoded yet
    end_frame: int
    segments: list[Segment] = field(default_factory=list)
    window: Window | None = None  # None before it is opened, and at the end
    context: list[int] = field(default_factory=list)  # ids of the text so far that the next window may follow

    @property
    def num_left(self) -> int:
        """Return the number of frames that are not decoded yet."""
        return max(self.end_frame - self.first_frame, 0)


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
    open_segments: Sequence[OpenSegment] = ()  # of windows that are being decoded: `partial` with times and passes


@dataclass(frozen=True)
class TranscriptionStep:
    """One target pass of a transcription."""

    progress: TranscriptionProgress
    step: StepResult = field(repr=False)  # of the decoding loop

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
        self.pipe: TranscriptionPipeline[Any] = pipe
        self.features: SoundBuffer = features
        self.options: TranscriptionOptions = options
        self.tracks: list[Track] = list(tracks)
        self.duration: float = features.duration
        self.owners: list[Track] = []  # of every prompt
        self.texts: list[WindowText] = []  # of every prompt
        self.cut_windows: list[Window] = []  # whose text is incomplete
        self.open_tracks: list[Track] = []  # at most as many as windows may be live, since each has features in memory
        self.num_opened: int = 0  # tracks
        self.polled_tracks: int
        self.polled_segments: int
        self.polled_tracks = self.polled_segments = 0  # tracks that have been polled, and segments of the one after
        self.fill_tracks(first_input)

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
        return not self.open_tracks and self.num_opened == len(self.tracks)

    @property
    def segments(self) -> list[Segment]:
        """Return the finished segments, in the order of the recording."""
        return [segment for track in self.tracks for segment in track.segments]

    def fill_tracks(self, first_input: WindowInput | None = None) -> None:
        """Open the next tracks while there is room, the first one with its encoder input; close features at the end."""
        while self.num_opened < len(self.tracks) and len(self.open_tracks) < self.max_live:
            track = self.tracks[self.num_opened]
            self.num_opened += 1
            self.open_tracks.append(track)
            self.open_window(track, first_input)
            first_input = None
        if self.has_ended:
            self.features.close()

    def open_window(self, track: Track, encoder_input: WindowInput | None = None) -> None:
        """Let a track go on with its next window, or end."""
        num_frames = self.pipe.window_length(self.features, track.first_frame, track.end_frame)
        if num_frames <= 0:
            track.window = None
            self.open_tracks.remove(track)
            self.fill_tracks()
            return
        given = encoder_input or self.pipe.encoder_input(self.features, track.first_frame, num_frames)
        track.window = Window(track.first_frame, num_frames, given, self.prompt_ids(track, given))
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
        window.prompt = len(self.prompts)
        self.rows.append(Request(len(self.prompts), self.empty_stats()))
        self.prompts.append(prompt)
        self.owners.append(track)
        self.texts.append(self.pipe.open_text())

    def on_tokens(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, StopPoint]:
        for index in committed:
            text = self.texts[index]
            text.push(self.rows[index].ids[text.num_tokens :], self.passes)
        for index in sorted(ended):
            if self.rows[index].error is None:
                self.end_attempt(self.owners[index], self.rows[index], self.texts[index])
        return {}

    def end_attempt(self, track: Track, row: Request, committed: WindowText) -> None:
        """Judge the text of a window: try again at a higher temperature, or keep it and go on."""
        window, options = track.window, self.options
        assert window is not None
        temperature = options.temperatures[window.attempt]
        ratio = self.pipe.compression_ratio(row.ids)
        log_prob = average_log_prob(row.log_probs)
        if window.no_speech_prob is None:
            window.no_speech_prob = self.pipe.no_speech_probability(window.encoder_input, window.prompt_ids)
        no_speech = window.no_speech_prob
        is_last = window.attempt + 1 == len(options.temperatures)
        if needs_fallback(ratio, log_prob, no_speech, options.thresholds) and not is_last:
            window.attempt += 1
            self.add_attempt(track, window)
            return
        if is_silent(log_prob, no_speech, options.thresholds):
            read = WindowTranscript([], window.num_frames)
        else:
            read = self.pipe.read_window(window, row, options, self.features)
        window.encoder_input.release()
        position = 0  # of the segment's first token
        last = min((window.first_frame + window.num_frames) * FRAME_SECONDS, self.duration)
        for (start, end, ids), words in read.segments:
            track.segments.append(
                Segment(
                    min(start, last), min(end, last), self.pipe.decode_text(ids), tuple(ids), temperature, log_prob,
                    ratio, no_speech, words, seek=window.first_frame,
                    runs=committed.runs(position, position + len(ids)),
                )
            )  # fmt: skip
            position += len(ids)
            track.context += self.pipe.context_ids(ids)
        if read.is_cut:
            self.cut_windows.append(window)
        if read.segments and temperature >= UNRELIABLE_TEMPERATURE:
            track.context = []
        # a window that found no end of a sentence before its first frame would be decoded again and again
        track.first_frame += read.num_frames if read.num_frames > 0 else window.num_frames
        self.open_window(track)

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
        new = self.poll_segments()
        live = [track.window.prompt for track in self.open_tracks if track.window is not None]
        partial = " ".join(text for index in live if (text := self.texts[index].text.strip()))
        open_segments = [segment for index in live for segment in self.open_segments(index)]
        num_sound = self.features.num_sound_frames  # a short recording is padded
        num_left = sum(max(min(track.end_frame, num_sound) - track.first_frame, 0) for track in self.tracks)
        seconds = max(self.duration - num_left * FRAME_SECONDS, 0.0)
        return [
            TranscriptionProgress(
                new, partial, seconds, self.duration, self.passes, self.num_generated, self.decode_seconds,
                open_segments,
            )
        ]  # fmt: skip

    def open_segments(self, index: int) -> list[OpenSegment]:
        """Return the segments of a prompt that is being decoded."""
        window = self.owners[index].window
        return [] if window is None else self.texts[index].open_segments(window.first_frame * FRAME_SECONDS)

    def poll_segments(self) -> list[Segment]:
        """Return the segments since the last call, in the order of the recording; those after a gap have to wait."""
        new: list[Segment] = []
        while self.polled_tracks < len(self.tracks):
            track = self.tracks[self.polled_tracks]
            new += track.segments[self.polled_segments :]
            self.polled_segments = len(track.segments)
            if track.num_left:
                break
            self.polled_tracks, self.polled_segments = self.polled_tracks + 1, 0
        return new

    def result(self) -> Transcription:
        """Return the text, its segments and statistics of what has been decoded so far."""
        options, segments = self.options, self.segments
        return Transcription(
            text=self.pipe.join_text(segments).strip(), segments=segments,
            language=self.pipe.language_of(options, segments), duration=self.duration, task=options.task,
            stats=self.total_stats(), model=self.pipe.card.name, method=self.method.name, seed=options.seed,
            language_probability=options.language_probability, notes=self.notes(),
            finish_reason="eos" if self.has_ended else "cancelled",
        )  # fmt: skip


class TranscriptionStream(GenerationStream[TranscriptionRequest], Iterator[TranscriptionStep]):
    """Iterator over the steps of a transcription, with the result so far."""

    def __init__(self, request: TranscriptionRequest) -> None:
        super().__init__(request)
        self.iterator: Iterator[StepResult] = self.steps()

    def __next__(self) -> TranscriptionStep:
        step = next(self.iterator)
        (progress,) = self.request.poll_events()
        return TranscriptionStep(progress, step)

    def result(self) -> Transcription:
        """Return the text, its segments and statistics of what has been decoded so far."""
        return self.request.result()
