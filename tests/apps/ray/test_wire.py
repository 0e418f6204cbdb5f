"""Serialisation between processes: values round-trip unchanged, as plain data of small size."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polydraft.apps.ray import wire
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.server.errors import ComputeFailed, ReplicaLost, TooBusy
from polydraft.core.errors import PromptError
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.request import ImageProgress
from polydraft.modalities.loading import load
from polydraft.modalities.speech.request import SpeechProgress
from polydraft.modalities.transcription.request import TranscriptionProgress
from polydraft.modalities.transcription.result import Segment, Transcription, Word
from polydraft.modalities.vlm.request import ChatProgress


def round_trip(value: Any) -> Any:
    """Return `value` after packing, pickling and unpacking."""
    return wire.unpack(pickle.loads(pickle.dumps(wire.pack(value))))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        is_equal = one.dtype == other.dtype and one.isnan().equal(other.isnan())
        return is_equal and one.nan_to_num().equal(other.nan_to_num())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Image.Image):
        return one.mode == other.mode and one.tobytes() == other.tobytes()
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if type(one).__name__ in wire.KINDS:
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    return bool(one == other)


def noise(size: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (size, size, 3), np.uint8))


def test_results_of_every_modality_round_trip() -> None:
    image = load("tiny-image")("a cat", n=2, seed=3)
    speech = load("tiny-speech")("Yes.", seed=3)
    answer = load("tiny-vlm")(image.image, "What is it?", seed=3, max_new_tokens=8)
    for result in (image, speech, answer):
        assert same(result, round_trip(result)) and not same(result, speech) or result is speech


def test_equality_helper_detects_differences() -> None:
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.long))
    assert not same(noise(4), Image.new("RGB", (4, 4))) and not same([1], [2]) and not same((1,), [1])


@pytest.mark.parametrize("value", [0, -1, 32767, -32768, 32768, -32769, 2**31 - 1, 2**31, -(2**40)])
def test_integer_tensors_use_smallest_sufficient_dtype(value: int) -> None:
    tensor = torch.tensor([[value, 0]])
    assert same(tensor, round_trip(tensor))
    bits = 16 if -(2**15) <= value < 2**15 else 32 if -(2**31) <= value < 2**31 else 64
    assert wire.pack(tensor)[2].dtype == f"int{bits}"


def test_progress_and_arguments_round_trip() -> None:
    sound = np.linspace(-1, 1, 7, dtype=np.float32)
    arguments = {
        "image": None, "seed": 2**53 - 1, "top_p": 0.5, "speculative": True,
        "messages": [{"role": "user", "content": [{"type": "image", "image": noise(9)}, {"type": "text", "text": "?"}]}]
    }  # fmt: skip
    stats = DecodeStats("ar", "identical", 3, 2, accepted_at=Counter({1: 2}))
    speech = SpeechProgress(sound, 24000, 0, 5, 5, 2, committed_at=torch.tensor([1, 1, 2]), expected=9, seconds=0.5)
    for value in (speech, ChatProgress(["a"], 1, 9, 1, 0.25), stats, (1, "a"), [], {}, None):
        assert same(value, round_trip(value))
    back = round_trip(arguments)
    picture = back["messages"][0]["content"][0].pop("image")
    assert same(arguments["messages"][0]["content"][0].pop("image"), picture) and back == arguments  # type: ignore


def test_uploaded_sound_and_transcripts_round_trip() -> None:
    """Send the file as it is, and close it; a transcript keeps the classes of its parts."""
    file = io.BytesIO(b"RIFF")
    file.read(2)
    back = round_trip({"audio": UploadedSound(file, 5.0), "language": None})
    assert file.closed and back["audio"].max_seconds == 5.0 and back["audio"].file.read() == b"RIFF"
    word = Word(0.0, 0.5, " a", 0.25)
    segment = Segment(0.0, 1.0, " a", (5, 6), 0.0, -0.5, 0.9, 0.1, (word,), 200)
    stats = DecodeStats("ar", "identical", 3, 2)
    for value in (
        TranscriptionProgress([segment], "b", 1.0, 2.0, 3, 4, 0.5),
        Transcription("a", [segment], "en", 2.0, stats, "tiny", "ar", 3, notes=("b",)),
    ):
        assert same(value, round_trip(value)) and isinstance(round_trip(value).segments[0], Segment)


@pytest.mark.parametrize(
    "nothing", [torch.full((2, 400), -1), torch.full((2, 400, 3), torch.nan)], ids=["ids", "latents"]
)
def test_image_progress_sends_only_new_tokens(nothing: torch.Tensor) -> None:
    sender, receiver = wire.Sender(), wire.Receiver()
    tokens, passes = nothing.clone(), torch.zeros(2, 400, dtype=torch.long)
    sizes, kept = [], []
    for step in range(1, 5):
        tokens[0, step * 10 : step * 10 + 3], passes[0, step * 10 : step * 10 + 3] = step * 1000, step
        tokens[1, step], passes[1, step] = 0, step
        pictures = [noise(16)] if step == 3 else []
        progress = ImageProgress(4 * step, 800, step, tokens.clone(), passes.clone(), pictures, step / 8)
        packed = pickle.dumps(sender.pack(progress))
        sizes.append(len(packed))
        kept.append((progress, receiver.unpack(pickle.loads(packed))))
    assert all(same(progress, back) for progress, back in kept)  # Later progress does not change earlier progress.
    assert max(sizes[0], sizes[1], sizes[3]) < 900 < sizes[2]


def test_unsupported_types_are_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        wire.pack({"a": [object()]})


def test_errors_round_trip_and_unexpected_are_hidden() -> None:
    for error in (TooBusy("full; wait.", 7), PromptError("empty; write."), ReplicaLost("died; ask again.")):
        back = wire.error_of(*pickle.loads(pickle.dumps(wire.failure(error))))
        assert type(back) is type(error) and str(back) == str(error)
        assert getattr(back, "retry_after", None) == getattr(error, "retry_after", None)
    hidden = wire.error_of(*wire.failure(KeyError("secret")))
    assert type(hidden) is ComputeFailed and "secret" not in str(hidden)
    assert type(wire.error_of("Path", "no.", None)) is ComputeFailed
