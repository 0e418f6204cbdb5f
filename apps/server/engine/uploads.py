"""Uploaded sound files, which are decoded on threads of their own, so that neither event loop nor passes wait.

upload = UploadedSound(file, max_seconds=7200)
recording = upload.read(pipe.open_buffer, lambda: handle.cancelled)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from polydraft.apps.server.errors import Cancelled, TooLong, UnsupportedMedia
from polydraft.core.errors import PromptError

if TYPE_CHECKING:
    from polydraft.modalities.transcription.base import SoundBuffer

READERS = 2  # uploads that are read at a time; others wait on disk


@dataclass(frozen=True)
class UploadedSound:
    """Sound file of a request; whoever reads it closes it."""

    file: IO[bytes] = field(repr=False)
    max_seconds: float  # of sound; files that hold more are refused

    def content(self) -> bytes:
        """Return the whole file, for another process, and close it."""
        with self.file as file:
            file.seek(0)
            return file.read()

    def read(self, open_buffer: Callable[[], SoundBuffer], is_cancelled: Callable[[], bool]) -> SoundBuffer:
        """Return the sound as the model reads it and close the file; no more of it than a block is in memory.

        Args:
            open_buffer (Callable[[], SoundBuffer]): returns what the sound is put into.
            is_cancelled (Callable[[], bool]): asked between blocks; reading ends once it returns True.

        Raises:
            UnsupportedMedia: the file is no sound.
            TooLong: the sound lasts longer than `max_seconds`.
            PromptError: the file is empty, or broken further on.
            Cancelled: `is_cancelled` returned True.
        """
        recording = open_buffer()
        try:
            with self.file as file:
                file.seek(0)
                self.push_blocks(file, recording, is_cancelled)
        except BaseException:
            recording.close()
            raise
        return recording

    def push_blocks(self, file: IO[bytes], recording: SoundBuffer, is_cancelled: Callable[[], bool]) -> None:
        """Append all blocks of a sound file to `recording`, with the errors of `read`."""
        from polydraft.modalities.transcription.sound import open_sound

        if not file.read(1):
            raise PromptError("the file is empty; send one with sound in it.")
        file.seek(0)
        try:
            sound = open_sound(file, sample_rate=recording.sample_rate)
        except PromptError as error:
            raise UnsupportedMedia(str(error)) from error
        with sound:
            for block in sound:
                if is_cancelled():
                    raise Cancelled("the request was cancelled.")
                recording.push(block)
                if recording.duration > self.max_seconds:
                    raise TooLong(f"the sound lasts longer than {self.max_seconds:g} s, the most here; send less.")
        if not recording.num_samples:
            raise PromptError("the recording is empty; send one with sound in it.")
