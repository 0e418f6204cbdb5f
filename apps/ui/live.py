"""Captions of a microphone while it is recorded.

`POST /live` opens captions, `POST /live/{key}` takes a piece of sound and answers with the words so far, and
`POST /live/{key}/end` with the last ones. A piece is transcribed between two passes of other requests; a page that has
waited for an answer sends all that came meanwhile, so that it never falls behind.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.engine.group import to_client_error
from polydraft.apps.server.errors import Draining, TooBusy
from polydraft.apps.ui.kept import Bounds, KeptBySession, session_of
from polydraft.core.errors import PolydraftError, UnsupportedModel
from polydraft.modalities.speech.resampling import Resampler
from polydraft.modalities.transcription.live import Caption, LiveTranscript
from polydraft.modalities.transcription.pipeline import WhisperPipeline
from polydraft.modalities.transcription.sound import SAMPLE_RATE, mix_to_mono

MOST_AT_ONCE = 4  # microphones; a transcript takes about a fifth of the second that it is of
LONGEST_PIECE = 2**21  # bytes; more than 20 seconds at 48 kHz
DETECTION_SECONDS = 2.0  # of sound, before which a language is not detected
BOUNDS = Bounds(count=1, size=2**40, total_count=MOST_AT_ONCE, total_size=2**40, age=30)


class MicrophoneOptions(BaseModel):
    """Settings of captions as a page sends them."""

    model: str | None = None
    language: str | None = None
    task: str = "transcribe"
    method: str | None = None
    rate: int = Field(SAMPLE_RATE, ge=8000, le=192_000)  # of the sound, in Hz


class Microphone:
    """Sound of one microphone and its captions; its methods run on the compute thread.

    Args:
        pipe (WhisperPipeline): the model.
        options (MicrophoneOptions): settings.
    """

    def __init__(self, pipe: WhisperPipeline, options: MicrophoneOptions) -> None:
        self.pipe: WhisperPipeline = pipe
        self.options: MicrophoneOptions = options
        self.resampler: Resampler = Resampler(options.rate, SAMPLE_RATE)
        self.waiting: list[NDArray[np.float32]] = []  # sound before the language is known
        self.transcript: LiveTranscript | None = None
        self.lock: asyncio.Lock = asyncio.Lock()  # of its pieces, which come in order

    def hear(self, pcm: bytes) -> Caption | None:
        """Return the caption after a piece of 16-bit sound; None while the language is still open."""
        samples = np.frombuffer(pcm[: len(pcm) // 2 * 2], "<i2")
        return self.append(self.resampler.push(mix_to_mono(samples[None])), is_last=False)

    def append(self, samples: NDArray[np.float32], is_last: bool) -> Caption | None:
        """Return the caption after sound at 16 kHz."""
        if self.transcript is not None:
            return self.transcript.append(samples) if len(samples) else None
        self.waiting.append(samples)
        sound = np.concatenate(self.waiting)
        language = self.options.language
        if language is None and self.pipe.control_tokens.languages:
            if len(sound) < DETECTION_SECONDS * SAMPLE_RATE and not is_last:
                return None
            language = self.detect(sound)
        self.transcript = self.pipe.live_transcript(
            language=language, task=self.options.task, method=self.options.method
        )
        self.waiting = []
        return self.transcript.append(sound) if len(sound) else None

    def detect(self, sound: NDArray[np.float32]) -> str:
        """Return the language of sound."""
        with self.pipe.log_mel.stream() as features:
            features.push(sound)
            window = self.pipe.encoder_input(features, 0, min(self.pipe.window_frames, features.num_frames))
            language, _ = self.pipe.detect_language(window)
            window.release()
        return language

    def finish(self) -> list[Caption]:
        """Return the last captions, whose text is all final."""
        last = self.append(self.resampler.finish(), is_last=True)
        assert self.transcript is not None
        return [*([last] if last is not None else []), *self.transcript.finish()]

    def close(self) -> None:
        """Give memory back."""
        if self.transcript is not None:
            self.transcript.close()


class LiveCaptions:
    """Microphones under way by key, one of each session."""

    def __init__(self, engine: ServerEngine, bounds: Bounds = BOUNDS) -> None:
        self.engine = engine
        self.kept: KeptBySession[Microphone] = KeptBySession(bounds, on_drop=lambda microphone: microphone.close())

    def begin(self, options: MicrophoneOptions, session: str) -> str:
        """Return the key of new captions of `session`, whose earlier ones end.

        Raises:
            Draining: the engine accepts nothing new.
            TooBusy: too many others are recording.
            UnknownModel: no such model is served.
            UnsupportedModel: the model writes no times.
        """
        if self.engine.draining:
            raise Draining("the server is about to stop; ask another one, or later.")
        pipe = self.engine.model(options.model, "transcription").pipe
        if not isinstance(pipe, WhisperPipeline):
            raise UnsupportedModel(f"{pipe.card.name} writes no times, which live captions need; use a Whisper.")
        self.kept.drop_old()
        others = [entry for entry in self.kept.entries.values() if entry.session != session]
        if len(others) >= self.kept.bounds.total_count:
            raise TooBusy("too many microphones have captions at the moment; the text comes when you stop.")
        key = secrets.token_urlsafe(12)
        self.kept.put(key, session, Microphone(pipe, options))
        asyncio.get_running_loop().call_later(self.kept.bounds.age + 1, self.kept.drop_old)
        return key

    def router(self) -> APIRouter:
        """Return the router of `/live`."""
        router = APIRouter(prefix="/live", include_in_schema=False)

        @router.post("")
        async def begin(options: MicrophoneOptions, request: Request) -> Response:
            try:
                return JSONResponse({"key": self.begin(options, session_of(request))})
            except PolydraftError as error:
                return PlainTextResponse(str(error), 503)

        @router.post("/{key}")
        async def hear(key: str, request: Request) -> Response:
            content = await request.body()
            if len(content) > LONGEST_PIECE:
                return PlainTextResponse("This piece of sound is too long; send shorter ones.", 413)
            return await self.answer(key, lambda microphone: [microphone.hear(content)])

        @router.post("/{key}/end")
        async def end(key: str) -> Response:
            answer = await self.answer(key, lambda microphone: microphone.finish())
            self.drop(key)
            return answer

        return router

    def drop(self, key: str) -> None:
        """Forget a microphone, unless its age has done so."""
        if key in self.kept.entries:
            self.kept.drop(key)

    async def answer(self, key: str, hear: Any) -> Response:
        """Return the captions that `hear` makes of a microphone on the compute thread."""
        microphone = self.kept.get(key)
        if microphone is None:
            return PlainTextResponse("These captions have ended; the text comes when you stop.", 404)
        self.kept.grow(key, 0)
        try:
            async with microphone.lock:
                captions = await self.engine.compute(hear, microphone)
        except Exception as error:  # noqa: BLE001 - the page gets it
            self.drop(key)
            return PlainTextResponse(str(to_client_error(error)), 400)
        return JSONResponse(merged([caption for caption in captions if caption is not None]))


def merged(captions: list[Caption]) -> dict[str, Any]:
    """Return captions that follow each other as one: what has become final, what may change, and statistics."""
    return {
        "final": "".join(caption.final for caption in captions),
        "tentative": captions[-1].tentative if captions else "",
        "passes": sum(caption.stats.target_passes for caption in captions),
        "tokens": sum(caption.stats.tokens for caption in captions),
    }
