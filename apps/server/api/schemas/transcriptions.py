"""`POST /v1/audio/transcriptions` and `POST /v1/audio/translations`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import (
    DecodingFields,
    FormModel,
    Ignored,
    Metrics,
    Only,
    ResponseModel,
    Text,
    TokenUsage,
)

LONGEST_PROMPT, LONGEST_HYPOTHESIS = 10_000, 500_000  # characters
MAX_BATCH_SIZE = 16  # windows of a request that are decoded together, where there are as many rows
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
SUBTITLES = ("srt", "vtt")


class TranslationForm(FormModel, DecodingFields):
    """A sound file whose speech is written down in English."""

    file_description: ClassVar[str] = "A file such as .wav, .flac, .mp3, .ogg, .m4a, .mp4 or .webm."

    model: Text | None = None
    prompt: Annotated[
        str | None, Field(max_length=LONGEST_PROMPT, description="Text before the recording, such as names in it.")
    ] = None
    response_format: Format = "json"
    temperature: Annotated[
        float, Field(ge=0, le=1, description="0 is greedy, and higher where a text is not good enough.")
    ] = 0.0
    hypothesis: Annotated[
        str | None,
        Field(max_length=LONGEST_HYPOTHESIS, description="A guess of the text, which drafts copy from; same answer."),
    ] = None

    batch_size: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_BATCH_SIZE,
            description="Windows that are decoded together; above 1 the recording is cut at pauses.",
        ),
    ] = 1

    def arguments(self) -> dict[str, Any]:
        """Return the fields as arguments of a pipeline, with a seed."""
        return self.decoding() | {
            "temperature": self.temperature or None,
            "initial_prompt": self.prompt,
            "hypothesis": self.hypothesis,
            "batch_size": self.batch_size,
            "task": "translate",
        }


class TranscriptionForm(TranslationForm):
    """A sound file whose speech is written down; with `stream`, sentences come while later ones are decoded."""

    language: Annotated[Text | None, Field(description="Code or English name; detected when left out.")] = None
    timestamp_granularities: Annotated[
        list[Literal["segment", "word"]],
        Field(max_length=2, description="What has times in verbose_json; word is for verbose_json alone."),
    ] = ["segment"]
    stream: Annotated[bool, Field(description="Events in place of an answer; for json and text.")] = False
    include: Annotated[list[str], Field(max_length=0), Only("log probabilities are not returned; leave it out")] = []
    chunking_strategy: Annotated[
        Literal["auto"] | None, Only("windows follow the sentences here; use auto, or leave it out"), Ignored()
    ] = None

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {
            "task": "transcribe", "language": self.language, "word_timestamps": "word" in self.timestamp_granularities,
        }  # fmt: skip


class DurationUsage(ResponseModel):
    """Usage as OpenAI counts it for Whisper."""

    type: Literal["duration"] = "duration"
    seconds: Annotated[float, Field(ge=0)]


class StreamedUsage(TokenUsage):
    """Usage of a streamed answer: tokens of all windows, and of texts that were not good enough and decoded again."""

    type: Literal["tokens"] = "tokens"


class TranscriptionAnswer(ResponseModel):
    """Text of a recording, and statistics; `notes` are what to know about it."""

    text: str
    usage: DurationUsage
    model: str
    seed: int
    metrics: Metrics
    notes: list[str] = []


class SegmentInfo(ResponseModel):
    """Part of a recording, usually a sentence; `start` and `end` in seconds."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class WordInfo(ResponseModel):
    """Word of a recording; `start` and `end` in seconds."""

    word: str
    start: float
    end: float


class VerboseTranscription(TranscriptionAnswer):
    """Text with its segments, words or both; `language` is the code of the recording's, `duration` its seconds."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    segments: list[SegmentInfo] = []
    words: list[WordInfo] = []


class TextDelta(ResponseModel):
    """Next part of the text; all of them joined are the text."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TextDone(ResponseModel):
    """End of a streamed transcription, with the whole text."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: StreamedUsage
    language: str
    duration: float
    model: str
    seed: int
    metrics: Metrics
    notes: list[str] = []
