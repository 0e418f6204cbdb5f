"""Sounds to listen to: a few sentences that the loaded voices speak, synthesised when first needed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.modalities.speech.result import SpeechResult


class ExampleSpeech(NamedTuple):
    """Text and the voice that speaks it, where the model has this voice."""

    voice: str
    text: str


SPOKEN_TEXTS = {
    "A weather report": ExampleSpeech(
        "slt", "The weather will be fine tomorrow. In the evening there may be some rain in the north. The wind comes "
        "from the west.",
    ),
    "An announcement": ExampleSpeech(
        "rms", "Good morning. The train to the city leaves at a quarter past nine. Please do not forget your ticket.",
    ),
    "A voice message": ExampleSpeech(
        "awb", "Please leave a message after the tone. We will call you back before noon."
    ),
}  # fmt: skip


@dataclass
class SpokenExamples:
    """Files of the example texts, which all sessions share."""

    engine: ServerEngine
    folder: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the synthesis, so that each is made once

    async def file(self, name: str) -> Path:
        """Return the sound file of an example, or raise the error of its synthesis."""
        file = self.folder / f"{name.lower().replace(' ', '-')}.wav"
        async with self.lock:
            if not file.is_file():
                result = await self.synthesise(SPOKEN_TEXTS[name])
                self.folder.mkdir(exist_ok=True)
                await asyncio.to_thread(result.save, file)
        return file

    async def synthesise(self, example: ExampleSpeech) -> SpeechResult:
        """Return the speech of a text."""
        voices = self.engine.model(None, "speech").voices
        voice = {"voice": example.voice} if example.voice in voices else {}
        arguments = {"text": example.text} | voice
        async with self.engine.submit(None, "speech", arguments, wants_progress=False) as handle:
            result: SpeechResult = await handle.result()
        return result
