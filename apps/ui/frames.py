"""Progress of a request at the rate that a page can show; the only way in which tabs use the engine.

    async for frame in frames(engine, "image", {"prompt": "a cat", "seed": 3}):
        ...                       # the last one has the result
Leaving the loop cancels the request, so that its row is free before the next pass.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.ui.views.counts import Counts
from polydraft.core.errors import PolydraftError
from polydraft.modalities.transcription.committed_text import OpenSegment
from polydraft.modalities.transcription.result import Segment

PACE = 0.06  # seconds between frames
READING_PACE = 0.4  # seconds between frames of a recording that is being read
PICTURES = 32  # unfinished ones of a drawing
TOKENS_PER_SECOND = 4.0  # of speech, before a model has transcribed any
SILENCE: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Frame:
    """State of a request as a page shows it.

    passes: target pass that committed each token, 0 for none. picture, audio, pieces: output so far of an image, speech
    or vision-language model, `audio` since the last frame. length: expected seconds of audio, or those of a recording.
    segments, open_segments: of its transcript, finished ones and those that may change. result: at the end.
    """

    counts: Counts
    passes: Sequence[int] = ()
    picture: Image.Image | None = None
    audio: NDArray[np.float32] = field(default_factory=lambda: SILENCE)
    length: float = 0.0
    pieces: Sequence[str] = ()
    segments: Sequence[Segment] = ()
    open_segments: Sequence[OpenSegment] = ()
    result: Any = None

    @property
    def all_segments(self) -> list[Segment | OpenSegment]:
        """Return the segments of a transcript, those that may change at its end."""
        return [*self.segments, *self.open_segments]


async def frames(
    engine: ServerEngine, modality: str, arguments: dict[str, Any], model: str | None = None
) -> AsyncIterator[Frame]:
    """Yield frames of one request, or raise its error; without `model` the first of the modality answers."""
    pipe = engine.model(model, modality).pipe
    method = arguments.get("method") or pipe.default_method.name
    seen = SEEN[modality](method, pipe, arguments.get("speed", 1.0))
    async with submit(engine, model, modality, seen.extra | arguments) as handle:
        fresh = asyncio.Event()

        async def watch() -> None:
            async for progress in handle:
                seen.take(progress)
                fresh.set()

        watching = asyncio.create_task(watch())
        watching.add_done_callback(lambda task: fresh.set())
        try:
            yield seen.frame()  # at once, so that a click is answered
            while not watching.done():
                with suppress(TimeoutError):
                    await asyncio.wait_for(fresh.wait(), seen.idle_pace)
                fresh.clear()
                if not watching.done():
                    yield seen.frame()
                    await asyncio.wait([watching], timeout=PACE)
            await watching
            yield seen.last(await handle.result())
        finally:
            watching.cancel()


def submit(engine: ServerEngine, model: str | None, modality: str, arguments: dict[str, Any]) -> RequestHandle:
    """Submit a request; where it is refused, close its recording, which nobody will read."""
    try:
        return engine.submit(model, modality, arguments)
    except PolydraftError:
        if isinstance(sound := arguments.get("audio"), UploadedSound):
            sound.close()
        raise


class Snapshot(ABC):
    """Accumulated progress of one request; `extra` are the arguments that make progress events come."""

    extra: dict[str, Any] = {}
    idle_pace: float | None = None  # seconds after which a frame follows without progress, since its caller has news

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        self.method: str = method
        self.pipe: Any = pipe
        self.speed: float = speed
        self.counts: Counts = Counts(method, "", 0, 0, 0, 0.0)

    @abstractmethod
    def take(self, progress: Any) -> None:
        """Add a progress event."""

    @abstractmethod
    def frame(self) -> Frame:
        """Return the current frame."""

    @abstractmethod
    def last(self, result: Any) -> Frame:
        """Return the last frame."""

    def final(self, result: Any) -> Counts:
        """Return the counts of the result."""
        stats = result.stats
        return Counts(
            result.method, stats.guarantee, stats.target_passes, stats.tokens, stats.tokens, stats.decode_seconds, True
        )


class SeenPicture(Snapshot):
    """Pictures with the passes they were drawn from, which may be a few behind the count."""

    extra: dict[str, Any] = {"partial_images": PICTURES}

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.picture: Image.Image | None = None
        self.passes: list[int] = []

    def take(self, progress: Any) -> None:
        self.counts: Counts = Counts(
            self.method, "", progress.passes, progress.tokens_done, progress.tokens_total, progress.seconds
        )
        if progress.images:
            self.picture, self.passes = progress.images[0], progress.committed_at[0].tolist()

    def frame(self) -> Frame:
        return Frame(self.counts, self.passes, self.picture)

    def last(self, result: Any) -> Frame:
        return Frame(self.final(result), result.passes[0].tolist(), result.image, result=result)


class SeenSpeech(Snapshot):
    """Sound, and the passes of its codes sentence by sentence."""

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.passes: dict[int, list[int]] = {}
        self.audio: list[NDArray[np.float32]] = []
        self.length: Any = 0.0
        self.heard: int = 0

    def take(self, progress: Any) -> None:
        self.counts: Counts = Counts(
            self.method,
            "",
            progress.passes,
            progress.tokens_done,
            max(progress.expected, progress.tokens_done),
            progress.seconds,
        )
        self.passes[progress.sentence] = progress.committed_at.tolist()
        self.audio.append(progress.audio)
        self.heard += len(progress.audio)
        self.length = max(progress.expected / self.pipe.family.rate / self.speed, self.heard / progress.sample_rate)

    def frame(self) -> Frame:
        audio, self.audio = self.audio, []
        passes = [number for sentence in sorted(self.passes) for number in self.passes[sentence]]
        return Frame(self.counts, passes, audio=np.concatenate([SILENCE, *audio]), length=self.length)

    def last(self, result: Any) -> Frame:
        rest = np.concatenate([SILENCE, *self.audio])
        return Frame(self.final(result), result.passes.tolist(), audio=rest, length=result.seconds, result=result)


class SeenAnswer(Snapshot):
    """Words, a piece a pass."""

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.pieces: list[str] = []

    def take(self, progress: Any) -> None:
        self.counts: Counts = Counts(
            self.method, "", progress.passes, progress.tokens_done, progress.tokens_total, progress.seconds
        )
        self.pieces += [""] * (progress.passes - len(self.pieces))
        self.pieces[-1] += progress.text

    def frame(self) -> Frame:
        return Frame(self.counts, pieces=tuple(self.pieces))

    def last(self, result: Any) -> Frame:
        return Frame(self.final(result), result.passes.tolist(), pieces=result.runs, result=result)


class SeenTranscript(Snapshot):
    """Segments of a recording, finished ones and those that may still change."""

    idle_pace: float = READING_PACE

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.segments: list[Segment] = []
        self.open_segments: Sequence[OpenSegment] = ()
        self.length: Any = 0.0
        self.tokens_per_second: Any = TOKENS_PER_SECOND

    def take(self, progress: Any) -> None:
        if progress.segments:
            self.segments += progress.segments
            self.tokens_per_second = progress.tokens_done / max(progress.seconds_done, 1.0)
        self.open_segments, self.length = progress.open_segments, progress.seconds_total
        total = max(progress.tokens_done, round(self.tokens_per_second * self.length))
        self.counts: Counts = Counts(self.method, "", progress.passes, progress.tokens_done, total, progress.seconds)

    def frame(self) -> Frame:
        return Frame(
            self.counts, length=self.length, segments=tuple(self.segments), open_segments=self.open_segments
        )

    def last(self, result: Any) -> Frame:
        return Frame(self.final(result), length=result.duration, segments=result.segments, result=result)


SEEN: dict[str, type[Snapshot]] = {
    "image": SeenPicture, "speech": SeenSpeech, "vlm": SeenAnswer, "transcription": SeenTranscript
}  # fmt: skip
