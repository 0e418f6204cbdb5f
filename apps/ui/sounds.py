"""Speech under way, as a WAV that plays while it grows: what the page's player fetches.

A sound is kept in memory under a key nobody can guess, for an hour and within the bounds of its session; a player that
comes late hears it from the start, and once it is whole parts of it can be asked for, which is how a player seeks.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import AsyncIterator, Callable

import numpy as np
import soundfile
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from numpy.typing import NDArray

from polydraft.apps.ui.kept import Bounds, KeptBySession
from polydraft.modalities.speech.result import to_pcm16, wav_header

# the longest text that is spoken at once is about 10 MB at 16 kHz
BOUNDS = Bounds(count=64, size=64 * 2**20, total_count=1024, total_size=256 * 2**20, age=3600)
LONGEST_WAIT = 30.0  # seconds without news, after which a player is let go


class Sound:
    """Samples so far, and whether more will come."""

    def __init__(self, rate: int, on_growth: Callable[[int], None] = lambda size: None) -> None:
        self.rate: int = rate
        self.parts: list[bytes] = list[bytes]()
        self.closed: bool = False
        self.on_growth = on_growth  # called with the bytes that were added
        self.news: asyncio.Event = asyncio.Event()  # another one after every change

    @property
    def seconds(self) -> float:
        return sum(map(len, self.parts)) / (2 * self.rate)

    def add(self, audio: NDArray[np.float32]) -> None:
        if len(audio):
            self.parts.append(to_pcm16(audio))
            self.on_growth(len(self.parts[-1]))
            self.tell()

    def close(self) -> None:
        self.closed = True
        self.tell()

    def tell(self) -> None:
        """Wake every player that waits."""
        self.news.set()
        self.news = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield a WAV of unknown length while its audio is synthesised."""
        yield wav_header(self.rate)
        sent = 0
        while True:
            if len(self.parts) == sent and not self.closed:
                await asyncio.wait_for(self.news.wait(), LONGEST_WAIT)
            new, sent, closed = self.parts[sent:], len(self.parts), self.closed
            for part in new:
                yield part
            if closed:
                return

    def to_wav(self) -> bytes:
        """Return a complete WAV with its length and metadata."""
        file = io.BytesIO()
        with soundfile.SoundFile(file, "w", self.rate, 1, "PCM_16", format="WAV") as wav:
            wav.software, wav.comment = "polydraft", "AI-generated speech"
            wav.write(np.frombuffer(b"".join(self.parts), "<i2"))
        return file.getvalue()


class Sounds:
    """Sounds by key, a few for each session."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.kept: KeptBySession[Sound] = KeptBySession(bounds)

    def begin(self, rate: int, session: str = "") -> tuple[str, Sound]:
        """Return the key of a new sound of `session`, and the sound."""
        key = secrets.token_urlsafe(12)
        sound = Sound(rate, lambda size: self.kept.grow(key, size))
        self.kept.put(key, session, sound)
        asyncio.get_running_loop().call_later(self.kept.bounds.age + 1, self.kept.drop_old)
        return key, sound

    def router(self) -> APIRouter:
        """Return the router of `GET /sound/{key}.wav`."""
        router = APIRouter(include_in_schema=False)

        @router.get("/sound/{key}.wav")
        async def sound(key: str, request: Request) -> Response:
            found = self.kept.get(key)
            if found is None:
                return Response("This sound is no longer kept; make it again.", 404, media_type="text/plain")
            if not found.closed:
                return StreamingResponse(found.stream(), media_type="audio/wav", headers={"Cache-Control": "no-store"})
            return part(found.to_wav(), request.headers.get("range"))

        return router


def part(content: bytes, wanted: str | None) -> Response:
    """Return all of `content`, or the bytes that a Range header requests."""
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "no-store"}
    first, last = span(wanted, len(content))
    if wanted is None or first is None:
        return Response(content, media_type="audio/wav", headers=headers)
    if first >= len(content):
        return Response(status_code=416, headers=headers | {"Content-Range": f"bytes */{len(content)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return Response(content[first : last + 1], 206, headers, "audio/wav")


def span(wanted: str | None, size: int) -> tuple[int | None, int]:
    """First and last byte of a header such as "bytes=0-" or "bytes=-500"; (None, 0) of one that says something else."""
    unit, _, text = (wanted or "").partition("=")
    first, dash, last = text.strip().partition("-")
    if unit != "bytes" or not dash or not (first + last).isdigit():
        return None, 0
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1
