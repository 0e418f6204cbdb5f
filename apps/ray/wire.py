"""Messages between processes: plain data, numpy arrays, images as PNG files, and uploaded sound as it was sent.

From the front to a replica goes one call: model, modality, arguments (images in them as PNG, a sound file as its
bytes), whether progress is wanted, and the deadline in seconds. Back come messages, each a tuple that begins with its
kind; due ones are sent as one list:

- ("accepted",) by a replica;
- ("began", method, prompt_tokens), known from the first prompt on;
- ("progress", packed), at most one per pass; of unfinished images only the new tokens, see `Sender`;
- ("stats", packed) of the computation, or ("stats", None);
- ("ended", packed result) or ("failed", name, sentence, retry_after), the last one.

`pack` and `unpack` accept only the types of requests; a tensor is an array in the smallest of the integer types that
hold it. PNG is lossless, so files written from an image are the same wherever it was generated.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.server import errors as server_errors
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.server.errors import ComputeFailed, TooBusy
from polydraft.core import errors as core_errors
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.recipe import ImageRecipe
from polydraft.modalities.image.request import ImageProgress
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.speech.request import SpeechProgress
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.transcription.committed_text import CommittedText, OpenSegment
from polydraft.modalities.transcription.request import TranscriptionProgress
from polydraft.modalities.transcription.result import Segment, Transcription, Word
from polydraft.modalities.vlm.request import ChatProgress
from polydraft.modalities.vlm.result import ChatResult

Message = tuple[Any, ...]
KINDS = {
    kind.__name__: kind
    for kind in (
        ImageProgress,
        ImageResult,
        SpeechProgress,
        SpeechResult,
        ChatProgress,
        ChatResult,
        DecodeStats,
        ImageRecipe,
        TranscriptionProgress,
        Transcription,
        Segment,
        Word,
        CommittedText,
        OpenSegment,
    )
}
PLAIN = (str, bytes, int, float, bool, type(None), np.ndarray)
DRAWN = ("tokens", "committed_at")  # fields of which only new tokens are sent
SMALLER = (np.int16, np.int32)  # than int64


def pack(value: Any) -> Any:
    """Return a value as data that any process can read; raises TypeError for other types."""
    if isinstance(value, Counter):
        return ("counter", dict(value))
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return ("tensor", str(value.dtype).removeprefix("torch."), small(value.numpy()))
    if isinstance(value, Image.Image):
        return ("picture", png(value))
    if isinstance(value, UploadedSound):
        return ("sound", value.max_seconds, value.content())
    if isinstance(value, list):
        return [pack(each) for each in value]
    if isinstance(value, tuple):
        return ("tuple", [pack(each) for each in value])
    if isinstance(value, dict):
        return ("dict", {name: pack(each) for name, each in value.items()})
    if is_dataclass(value) and not isinstance(value, type) and type(value).__name__ in KINDS:
        return (type(value).__name__, {each.name: pack(getattr(value, each.name)) for each in fields(value)})
    raise TypeError(f"{type(value).__name__} does not cross between processes")


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(each) for each in value]
    if not isinstance(value, tuple):
        return value
    kind, content = value[0], value[-1]
    if kind == "counter":
        return Counter(content)
    if kind == "tensor":
        return torch.from_numpy(content.astype(value[1]))
    if kind == "picture":
        picture = Image.open(io.BytesIO(content), formats=("PNG",))
        picture.load()
        return picture
    if kind == "sound":
        return UploadedSound(io.BytesIO(content), value[1])
    if kind == "tuple":
        return tuple(unpack(each) for each in content)
    if kind == "dict":
        return {name: unpack(each) for name, each in content.items()}
    return KINDS[kind](**{name: unpack(each) for name, each in content.items()})


def small(array: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest integer type that holds them."""
    if array.dtype == np.int64:
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        for kind in SMALLER:
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return array.astype(kind)
    return array.copy()


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


class Sender:
    """Packer of the progress events of one request; of unfinished images only new tokens are sent, with indices."""

    def __init__(self) -> None:
        self.known: Tensor | None = None

    def pack(self, progress: Any) -> Any:
        if not isinstance(progress, ImageProgress):
            return pack(progress)
        before = torch.zeros_like(progress.committed_at) if self.known is None else self.known
        places = (progress.committed_at != before).flatten().nonzero()[:, 0]
        self.known = progress.committed_at
        tokens, passes = (whole.flatten(0, 1)[places] for whole in (progress.tokens, progress.committed_at))
        others = {each.name: getattr(progress, each.name) for each in fields(progress) if each.name not in DRAWN}
        return ("drawing", pack([list(progress.tokens.shape), places, tokens, passes, others]))


class Receiver:
    """Unpacker of the events of a `Sender`."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None
        self.passes: Tensor | None = None

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, tuple) or packed[0] != "drawing":
            return unpack(packed)
        shape, places, tokens, passes, others = unpack(packed[1])
        if self.tokens is None or self.passes is None:
            nothing = torch.nan if tokens.is_floating_point() else -1
            self.tokens = torch.full(shape, nothing, dtype=tokens.dtype if nothing != -1 else torch.long)
            self.passes = torch.zeros(shape[:2], dtype=torch.long)
        self.tokens, self.passes = self.tokens.clone(), self.passes.clone()
        self.tokens.flatten(0, 1)[places], self.passes.view(-1)[places] = tokens, passes
        return ImageProgress(tokens=self.tokens, committed_at=self.passes, **others)


def failure(error: BaseException) -> Message:
    """Return an error as name, sentence and, for a full queue, seconds to wait; details of others stay here."""
    if not isinstance(error, PolydraftError):
        error = system_error(error, "the computation failed") or ComputeFailed(
            "the computation failed unexpectedly; try again, and look at the log if it stays so."
        )
    return (type(error).__name__, str(error), getattr(error, "retry_after", None))


def error_of(name: str, sentence: str, retry_after: int | None) -> PolydraftError:
    """Return the error of a message."""
    kind = getattr(server_errors, name, None) or getattr(core_errors, name, None)
    if kind is TooBusy:
        return TooBusy(sentence, retry_after or 1)
    if isinstance(kind, type) and issubclass(kind, PolydraftError):
        return kind(sentence)
    return ComputeFailed(sentence)
