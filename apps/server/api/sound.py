"""Audio responses: complete files in every format and streamed WAV, marked as AI-generated."""

from __future__ import annotations

import io
import struct
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.speech.result import ENDIAN, FORMATS, to_pcm16, wav_header

MEDIA = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip
GROWING = ("wav", "pcm")  # formats that are sent while they are made
PCM_RATE = 24_000  # Hz of bare samples, whose rate clients cannot read: OpenAI's
INFO = {"title": b"INAM", "artist": b"IART", "comment": b"ICMT", "software": b"ISFT"}
DATA = 36  # where the data chunk of a plain header begins


def sent_rate(kind: str, model_rate: int) -> int:
    """Return the sample rate of the response: OpenAI's for bare samples, the model's for files."""
    return PCM_RATE if kind == "pcm" else model_rate


def media_type(kind: str, sample_rate: int) -> str:
    return f"audio/pcm;rate={sample_rate};channels=1" if kind == "pcm" else MEDIA[kind]


def opening(kind: str, sample_rate: int, notes: dict[str, str]) -> bytes:
    """Return the bytes before the first sample: for WAV a header of unknown length, with INFO."""
    if kind == "pcm":
        return b""
    header = wav_header(sample_rate)
    info = b"".join(
        chunk(INFO[name], text.encode() + b"\0") for name, text in clean_metadata(notes).items() if name in INFO
    )
    return header[:DATA] + chunk(b"LIST", b"INFO" + info) + header[DATA:]


def chunk(name: bytes, content: bytes) -> bytes:
    """Return a RIFF chunk, padded to whole words."""
    return struct.pack("<4sI", name, len(content)) + content + b"\0" * (len(content) % 2)


def file_of(audio: NDArray[np.float32], sample_rate: int, kind: str, notes: dict[str, str]) -> bytes:
    """Return a complete audio file."""
    if kind == "pcm":
        return to_pcm16(audio)
    if kind == "aac":
        return aac(audio, sample_rate)
    import soundfile

    form, subtype = FORMATS[f".{kind}"]
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", sample_rate, 1, subtype, ENDIAN.get(form), form) as sound:
        for name, text in clean_metadata(notes).items():
            setattr(sound, name, text)
        sound.write(audio)
    return file.getvalue()


def check_format(kind: str) -> None:
    """Raise InvalidArgument for a format that no installed encoder can write."""
    if kind == "aac" and find_spec("av") is None:
        raise InvalidArgument("response_format=aac needs the package av; install it, or use mp3, opus, flac or wav.")


def aac(audio: NDArray[np.float32], sample_rate: int) -> bytes:
    """Return AAC in ADTS frames, which hold no notes."""
    import av

    samples = audio if len(audio) else np.zeros(1, np.float32)  # the encoder takes no empty frame
    file = io.BytesIO()
    with av.open(file, "w", format="adts") as container:
        stream = container.add_stream("aac", rate=sample_rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = sample_rate, 0
        for part in (frame, None):  # None flushes the encoder
            container.mux(stream.encode(part))
    return file.getvalue()


def clean_metadata(notes: dict[str, str]) -> dict[str, str]:
    """Return metadata that files can hold: without control characters and empty values, which libsndfile refuses."""
    shown = {name: "".join(filter(str.isprintable, text)).strip() for name, text in notes.items()}
    return {name: text for name, text in shown.items() if text}
