"""What a request has come to, as often as a page can show it: the one way in which the tabs use the engine.

    async for frame in frames(engine, "image", {"prompt": "a cat", "seed": 3}):
        ...                       # the last one has the result
Leaving the loop cancels the request, so that its row is free before the next pass.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polydraft.apps.server.engine.engine import Engine
from polydraft.apps.ui.views.counts import Counts

PACE = 0.06  # seconds between frames
PICTURES = 32  # unfinished ones of a drawing
SILENCE: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Frame:
    """passes: which target pass made each token, 0 for none. picture, audio, pieces: what an image, speech or answering
    model has made, `audio` since the last frame; length: seconds the speech will take, about. result: at the end.
    """

    counts: Counts
    passes: Sequence[int] = ()
    picture: Image.Image | None = None
    audio: NDArray[np.float32] = field(default_factory=lambda: SILENCE)
    length: float = 0.0
    pieces: Sequence[str] = ()
    result: Any = None


async def frames(engine: Engine, modality: str, arguments: dict[str, Any]) -> AsyncIterator[Frame]:
    """Frames of one request; raises what it fails with."""
    pipe = engine.model(None, modality).pipe
    method = arguments.get("method") or pipe.default_method.name
    seen = SEEN[modality](method, pipe, arguments.get("speed", 1.0))
    async with engine.submit(None, modality, seen.extra | arguments) as ticket:
        fresh = asyncio.Event()

        async def watch() -> None:
            async for news in ticket:
                seen.take(news)
                fresh.set()

        watching = asyncio.create_task(watch())
        watching.add_done_callback(lambda task: fresh.set())
        try:
            yield seen.frame()  # at once, so that a click is answered
            while not watching.done():
                await fresh.wait()
                fresh.clear()
                if not watching.done():
                    yield seen.frame()
                    await asyncio.wait([watching], timeout=PACE)
            await watching
            yield seen.last(await ticket.result())
        finally:
            watching.cancel()


class Seen(ABC):
    """What the news of one request add up to. extra: arguments that make the news come."""

    extra: dict[str, Any] = {}

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        self.method, self.pipe, self.speed = method, pipe, speed
        self.counts = Counts(method, "", 0, 0, 0, 0.0)

    @abstractmethod
    def take(self, news: Any) -> None:
        """The next news."""

    @abstractmethod
    def frame(self) -> Frame:
        """Where things stand."""

    @abstractmethod
    def last(self, result: Any) -> Frame:
        """The end."""

    def final(self, result: Any) -> Counts:
        """The numbers as the result has them."""
        stats = result.stats
        return Counts(
            result.method, stats.guarantee, stats.target_passes, stats.tokens, stats.tokens, stats.decode_seconds, True
        )


class SeenPicture(Seen):
    """Pictures with the passes they were drawn from, which may be a few behind the count."""

    extra = {"partial_images": PICTURES}

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.picture: Image.Image | None = None
        self.passes: list[int] = []

    def take(self, news: Any) -> None:
        self.counts = Counts(self.method, "", news.passes, news.tokens_done, news.tokens_total, news.seconds)
        if news.pictures:
            self.picture, self.passes = news.pictures[0], news.committed_at[0].tolist()

    def frame(self) -> Frame:
        return Frame(self.counts, self.passes, self.picture)

    def last(self, result: Any) -> Frame:
        return Frame(self.final(result), result.passes[0].tolist(), result.image, result=result)


class SeenSpeech(Seen):
    """Sound, and the passes of its codes sentence by sentence."""

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.passes: dict[int, list[int]] = {}
        self.audio: list[NDArray[np.float32]] = []
        self.length, self.heard = 0.0, 0

    def take(self, news: Any) -> None:
        self.counts = Counts(
            self.method, "", news.passes, news.tokens_done, max(news.expected, news.tokens_done), news.seconds
        )
        self.passes[news.sentence] = news.committed_at.tolist()
        self.audio.append(news.audio)
        self.heard += len(news.audio)
        self.length = max(news.expected / self.pipe.family.rate / self.speed, self.heard / news.sample_rate)

    def frame(self) -> Frame:
        audio, self.audio = self.audio, []
        passes = [number for sentence in sorted(self.passes) for number in self.passes[sentence]]
        return Frame(self.counts, passes, audio=np.concatenate([SILENCE, *audio]), length=self.length)

    def last(self, result: Any) -> Frame:
        rest = np.concatenate([SILENCE, *self.audio])
        return Frame(self.final(result), result.passes.tolist(), audio=rest, length=result.seconds, result=result)


class SeenAnswer(Seen):
    """Words, a piece a pass."""

    def __init__(self, method: str, pipe: Any, speed: float) -> None:
        super().__init__(method, pipe, speed)
        self.pieces: list[str] = []

    def take(self, news: Any) -> None:
        self.counts = Counts(self.method, "", news.passes, news.tokens_done, news.tokens_total, news.seconds)
        self.pieces += [""] * (news.passes - len(self.pieces))
        self.pieces[-1] += news.text

    def frame(self) -> Frame:
        return Frame(self.counts, pieces=tuple(self.pieces))

    def last(self, result: Any) -> Frame:
        return Frame(self.final(result), result.passes.tolist(), pieces=result.runs, result=result)


SEEN: dict[str, type[Seen]] = {"image": SeenPicture, "speech": SeenSpeech, "vlm": SeenAnswer}
