"""`POST /v1/audio/speech` and `GET /v1/audio/voices`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import Ignored, Metrics, ResponseModel, SamplingFields, Text, TokenUsage

LONGEST_INPUT = 4096
Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
OPENAI_VOICES = (  # names that OpenAI's clients send, whatever is served
    "alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip


class SpeechRequest(SamplingFields):
    """Text to synthesise. wav and pcm are streamed, with `stream_format` "sse" as events."""

    input: Annotated[str, Field(min_length=1, max_length=LONGEST_INPUT)]
    model: Text | None = None
    voice: Annotated[
        Text | None,
        Field(
            description="As in `/v1/audio/voices`, or an alias there; the model's first if left out. Models that read "
            "the name as part of their prompt take others too."
        ),
    ] = None
    response_format: Annotated[
        Format, Field(description="pcm is bare 16-bit little-endian mono samples at 24 kHz, whatever the model's rate.")
    ] = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    repetition_penalty: Annotated[float | None, Field(ge=0.1, le=10, description="1 is off.")] = None
    instructions: Annotated[str | None, Field(max_length=LONGEST_INPUT), Ignored()] = None


class AudioDelta(ResponseModel):
    """Next bytes of the audio, in Base64."""

    type: Literal["speech.audio.delta"] = "speech.audio.delta"
    audio: str


class AudioDone(ResponseModel):
    """End of streamed audio; `ignored_words` are unpronounceable parts of the text, as written."""

    type: Literal["speech.audio.done"] = "speech.audio.done"
    usage: TokenUsage
    seed: int
    sample_rate: int
    finish_reason: str
    ignored_words: list[str]
    metrics: Metrics
    notes: list[str] = Field([], description="What to know about the speech, such as a voice that is not listed.")


class VoiceInfo(ResponseModel):
    """A voice; `aliases` are names of OpenAI's voices that stand for it."""

    id: str
    name: str
    model: str
    aliases: list[str]


class Voices(ResponseModel):
    object: Literal["list"] = "list"
    voices: list[VoiceInfo]
