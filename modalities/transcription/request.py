"""State of a transcription: windows of a recording that become prompts one after the other, and the text so far.

Whisper's own algorithm (Radford et al. 2022, arXiv 2212.04356, section 3.8): a window of 30 seconds is decoded with
timestamps, the next one begins where the last whole sentence ended, and a window whose text repeats itself or is
unlikely is decoded again at a higher temperature. It runs along a `Track`; a recording has one, or one a piece where it
has been cut at silences, and tracks are decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from polydraft.core.decode import Method, Request, StepResult
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import StopPoint
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderInput
from polydraft.modalities.request import GenerationRequest, GenerationStream
from polydraft.modalities.transcription.committed_text import OpenSegment, WindowText
from polydraft.modalities.transcription.features import LogMelStream
from polydraft.modalities.transcription.result import Segment, Transcription
from polydraft.modalities.transcription.segments import (
    FRAME_SECONDS,
    QualityThresholds,
    average_log_prob,
    compression_ratio,
    is_silent,
    needs_fallback,
    split_window,
)

if TYPE_CHECKING:
    from polydraft.modalities.transcription.pipeline import TranscriptionPipeline

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


@dataclass
class Window:
    """A window that is being decoded."""

    first_frame: int
    num_frames: int  # that belong to the track
    encoder_input: EncoderInput
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
    open_segments: Sequence[OpenSegment] = ()  # of windows that are being decoded: `partial` with times and passes


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
        features (LogMelStream): the whole recording; is closed at the end.
        options (TranscriptionOptions): what the caller asks for.
        tracks (Sequence[Track]): parts that are decoded independently, in order.
        max_live (int): windows that are decoded together.
        first_input (EncoderInput | None): the first window's, if it has been encoded to detect the language.
    """

    def __init__(
        self, pipe: TranscriptionPipeline, method: Method, features: LogMelStream, options: TranscriptionOptions,
        tracks: Sequence[Track], max_live: int = 1, first_input: EncoderInput | None = None,
    ) -> None:  # fmt: skip
        super().__init__(method, [], max_live)
        self.pipe, self.features, self.options, self.tracks = pipe, features, options, list(tracks)
        self.duration = features.duration
        self.owners: list[Track] = []  # of every prompt
        self.texts: list[WindowText] = []  # of every prompt
        self.num_polled = 0  # segments that have been polled
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

    def open_window(self, track: Track, first_frame: int, encoder_input: EncoderInput | None = None) -> None:
        """Let a track go on with the window that begins with a frame, unless the track ends before."""
        num_frames = min(self.pipe.window_frames, track.end_frame - first_frame)
        if num_frames <= 0:
            track.window = None
            return
        given = encoder_input or self.pipe.encoder_input(self.features, first_frame, num_frames)
        track.window = Window(first_frame, num_frames, given, self.prompt_ids(track))
        self.add_attempt(track, track.window)

    def prompt_ids(self, track: Track) -> tuple[int, ...]:
        """Return the prompt of a track's next window."""
        options, tokens = self.options, self.pipe.control_tokens
        before = [*options.initial_ids, *track.context] if options.follows_text or not track.segments else []
        return tokens.prompt(options.language, options.task, options.timestamps, before[-self.pipe.max_context_ids :])

    def add_attempt(self, track: Track, window: Window) -> None:
        """Add a prompt for a window at its present temperature."""
        temperature = self.options.temperatures[window.attempt]
        prompt = PromptInputs(
            (window.prompt_ids,), self.pipe.context_len - len(window.prompt_ids), self.options.seed,
            window.first_frame * MAX_ATTEMPTS + window.attempt, {ENCODER_INPUT: window.encoder_input},
            replace(self.pipe.sampling_params(temperature=temperature), log_probs=True), self.options.hypothesis,
        )  # fmt: skip
        self.rows.append(Request(len(self.prompts), DecodeStats(self.method.name, self.method.effective_guarantee)))
        self.prompts.append(prompt)
        self.owners.append(track)
        self.texts.append(WindowText(self.pipe.control_tokens, self.pipe.decode_text))

    def on_tokens(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, StopPoint]:
        for index in committed:
            text = self.texts[index]
            text.push(self.rows[index].ids[text.num_tokens :], self.passes)
        for index in sorted(ended):
            if self.rows[index].error is None:
                self.end_attempt(self.owners[index], self.rows[index], self.texts[index])
        if self.has_ended:
            self.features.close()
        return {}

    def end_attempt(self, track: Track, row: Request, committed: WindowText) -> None:
        """Judge the text of a window: try again at a higher temperature, or keep it and go on."""
        window, options = track.window, self.options
        assert window is not None
        temperature = options.temperatures[window.attempt]
        ratio = compression_ratio(row.ids, self.pipe.token_mask.shape[1])
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
        tokens = row.ids[:-1] if row.ids and row.ids[-1] == self.pipe.control_tokens.end else row.ids
        first_timestamp, offset = self.pipe.control_tokens.first_timestamp, window.first_frame * FRAME_SECONDS
        timed, num_frames = split_window(tokens, first_timestamp, window.num_frames, offset)
        position = 0  # of the segment's first token
        for start, end, ids in timed:
            text, end = self.pipe.decode_text(ids), min(end, self.duration)
            track.segments.append(
                Segment(
                    min(start, end), end, text, tuple(ids), temperature, log_prob, ratio, no_speech,
                    seek=window.first_frame, runs=committed.runs(position, position + len(ids)),
                )
            )  # fmt: skip
            position += len(ids)
            track.context += without_second_of_pair(ids, first_timestamp)
        if temperature >= UNRELIABLE_TEMPERATURE:
            track.context = []
        # a window that found no end of a sentence before its first frame would be decoded again and again
        self.open_window(track, window.first_frame + (num_frames if num_frames > 0 else window.num_frames))

    def close(self) -> None:
        self.features.close()

    def poll_events(self) -> list[TranscriptionProgress]:
        segments = self.segments
        new, self.num_polled = segments[self.num_polled :], len(segments)
        live = [index for index, row in enumerate(self.rows) if row.finish == "cancelled" and row.ids]
        partial = " ".join(self.texts[index].text.strip() for index in live)
        open_segments = [segment for index in live for segment in self.open_segments(index)]
        seconds = min(sum(track.num_done for track in self.tracks) * FRAME_SECONDS, self.duration)
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

    def result(self) -> Transcription:
        """Return the text, its segments and statistics of what has been decoded so far."""
        options, segments = self.options, self.segments
        ids = [token for segment in segments for token in segment.tokens]
        return Transcription(
            text=self.pipe.decode_text(ids).strip(), segments=segments, language=options.language or "en",
            duration=self.duration, task=options.task, stats=DecodeStats.sum_rows(self.stats()),
            model=self.pipe.card.name, method=self.method.name, seed=options.seed,
            language_probability=options.language_probability,
            finish_reason="eos" if self.has_ended else "cancelled",
        )  # fmt: skip


def without_second_of_pair(ids: list[int], first_timestamp: int) -> list[int]:
    """Return the ids of a segment, without the last if it ends with two timestamps, as context for the next window."""
    ends_in_pair = len(ids) > 2 and min(ids[-2:]) >= first_timestamp
    return ids[:-1] if ends_in_pair else ids


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
