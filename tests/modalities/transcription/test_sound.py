"""Sound of every container, rate and number of channels becomes mono blocks at 16 kHz; broken files raise."""

from __future__ import annotations

import io
import os
import sys
import threading
import tracemalloc
import wave
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from polydraft.core.errors import InvalidArgument, MissingPackage, PolydraftError, PromptError, SystemRefusal
from polydraft.modalities.transcription import sound as sound_module
from polydraft.modalities.transcription.sound import (
    SAMPLE_RATE,
    SoundReader,
    mix_to_mono,
    open_sound,
)

av = pytest.importorskip("av", reason="the decoder is in the extra listen")
soundfile = pytest.importorskip("soundfile")

CODECS: dict[str, tuple[str, str, str, int]] = {  # container, codec, sample format, rate
    "wav": ("wav", "pcm_s16le", "s16", 16_000),
    "wav 44.1": ("wav", "pcm_s16le", "s16", 44_100),
    "wav 8 kHz": ("wav", "pcm_s16le", "s16", 8_000),
    "wav u8": ("wav", "pcm_u8", "u8", 16_000),
    "wav 24": ("wav", "pcm_s24le", "s32", 48_000),
    "wav 32": ("wav", "pcm_s32le", "s32", 16_000),
    "wav float": ("wav", "pcm_f32le", "flt", 22_050),
    "wav double": ("wav", "pcm_f64le", "dbl", 16_000),
    "wav mulaw": ("wav", "pcm_mulaw", "s16", 8_000),
    "aiff": ("aiff", "pcm_s16be", "s16", 16_000),
    "flac": ("flac", "flac", "s16", 16_000),
    "flac 24": ("flac", "flac", "s32", 96_000),
    "opus": ("ogg", "libopus", "flt", 48_000),
    "mp3": ("mp3", "libmp3lame", "fltp", 44_100),
    "m4a": ("ipod", "aac", "fltp", 44_100),
    "aac": ("adts", "aac", "fltp", 32_000),
    "webm": ("webm", "libopus", "flt", 48_000),
    "mkv": ("matroska", "flac", "s16", 16_000),
}
LOSSLESS = [name for name in CODECS if name.startswith(("wav", "aiff", "flac", "mkv"))]
SECONDS = 3.0


def make_sound(rate: int = SAMPLE_RATE, seconds: float = SECONDS) -> NDArray[np.float32]:
    """Return a tone that becomes louder, with two pitches that all encoders keep."""
    times = np.arange(int(rate * seconds)) / rate
    tone = np.sin(2 * np.pi * 440 * times) + 0.5 * np.sin(2 * np.pi * 1250 * times)
    return (0.4 * tone * (0.2 + 0.8 * times / seconds)).astype(np.float32)


def encode(
    samples: NDArray[np.float32], container: str, codec: str, sample_format: str, rate: int, *, pictures: bool = False,
    silent: bool = False, options: dict[str, str] | None = None, path: Path | None = None, layout: str = "",
) -> bytes:  # fmt: skip
    """Return samples `[S]` or `[channels, S]` as a file; `silent`: of pictures alone; `path`: written there first."""
    file = io.BytesIO()
    channels = np.atleast_2d(samples)
    layout = layout or {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    with av.open(str(path) if path else file, "w", format=container, options=options or {}) as output:
        video = output.add_stream("mpeg4" if container != "webm" else "libvpx", rate=5) if pictures else None
        stream = None if silent else output.add_stream(codec, rate=rate, layout=layout, format=sample_format)
        if video is not None:
            video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
            for index in range(10):
                frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), index * 20, np.uint8), format="rgb24")
                frame.pts, frame.time_base = index, Fraction(1, 5)
                output.mux(video.encode(frame))
            output.mux(video.encode(None))
        if stream is not None:
            resampler = av.AudioResampler(format=sample_format, layout=layout, rate=rate)
            for start in range(0, channels.shape[1], 1000):
                piece = np.ascontiguousarray(channels[:, start : start + 1000].T).reshape(1, -1)
                frame = av.AudioFrame.from_ndarray(piece, format="flt", layout=layout)
                frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
                for converted in resampler.resample(frame):
                    output.mux(stream.encode(converted))
            for converted in resampler.resample(None):
                output.mux(stream.encode(converted))
            output.mux(stream.encode(None))
    return path.read_bytes() if path else file.getvalue()


def encode_as(name: str, seconds: float = SECONDS) -> bytes:
    container, codec, sample_format, rate = CODECS[name]
    return encode(make_sound(rate, seconds), container, codec, sample_format, rate)


def wav_bytes(samples: NDArray[np.int16], rate: int = SAMPLE_RATE) -> bytes:
    """Return 16-bit samples `[S]` or `[S, channels]` as a wav file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        output.setsampwidth(2)
        output.setframerate(rate)
        output.writeframes(samples.tobytes())
    return file.getvalue()


def random_pcm(*shape: int) -> NDArray[np.int16]:
    return np.random.default_rng(0).integers(-32768, 32768, shape, np.int16)


def read_all(source: Any, **options: Any) -> NDArray[np.float32]:
    with open_sound(source, **options) as sound:
        return np.concatenate(list(sound))


def assert_similar(actual: NDArray[np.float32], seconds: float = SECONDS, tolerance: float = 0.03) -> None:
    """Compare with the tone at 16 kHz, at the best of shifts by up to 100 ms: encoders delay."""
    expected = make_sound(seconds=seconds)
    assert abs(len(actual) - len(expected)) < 0.15 * SAMPLE_RATE
    middle = slice(8000, len(expected) - 8000)
    errors = [
        np.abs(actual[middle.start + shift : middle.stop + shift] - expected[middle]).max()
        for shift in range(-1600, 1601)
    ]
    assert min(errors) < tolerance


class Pipe(io.RawIOBase):
    """Binary stream that cannot seek and returns few bytes at a time."""

    def __init__(self, content: bytes, size: int = 777) -> None:
        self.content, self.size, self.num_read = content, size, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self.content[self.num_read : self.num_read + min(self.size, size if size >= 0 else self.size)]
        self.num_read += len(piece)
        return piece


@pytest.mark.parametrize("name", CODECS)
def test_formats_give_the_same_sound(name: str) -> None:
    content = encode_as(name)
    sound = read_all(content)
    assert sound.dtype == np.float32 and sound.ndim == 1
    assert_similar(sound, tolerance=0.03 if name in LOSSLESS else 0.1)


def test_vorbis_gives_the_same_sound() -> None:
    file = io.BytesIO()
    soundfile.write(file, make_sound(44_100), 44_100, format="OGG", subtype="VORBIS")
    assert_similar(read_all(file.getvalue()), tolerance=0.1)


def test_samples_of_unknown_kind_are_refused() -> None:
    content = encode(make_sound(), "wav", "pcm_s64le", "s64", SAMPLE_RATE)
    with pytest.raises(PromptError, match="has 1 channels of s64, which cannot be read"):
        list(open_sound(content))


@pytest.mark.parametrize("container", ["mp4", "webm", "matroska", "avi"])
def test_sound_track_of_videos_is_read(container: str) -> None:
    codec = {"mp4": "aac", "webm": "libopus", "matroska": "flac", "avi": "pcm_s16le"}[container]
    sample_format, rate = ("flt" if codec == "libopus" else "fltp" if codec == "aac" else "s16"), 48_000
    content = encode(make_sound(rate), container, codec, sample_format, rate, pictures=True)
    assert_similar(read_all(content), tolerance=0.1)


def test_pcm16_at_16_khz_is_exact(tmp_path: Path) -> None:
    pcm = random_pcm(200_001)
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(pcm))
    expected = pcm.astype(np.float32) / 32768
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), Pipe(path.read_bytes())):
        assert np.array_equal(read_all(source), expected)
    assert np.array_equal(read_all((pcm, SAMPLE_RATE)), expected)
    assert np.array_equal(read_all((expected, SAMPLE_RATE)), expected)
    assert np.array_equal(read_all((expected.astype(np.float64), SAMPLE_RATE)), expected)


@pytest.mark.parametrize("channels", [2, 3, 6])
def test_channels_are_averaged(channels: int) -> None:
    pcm = random_pcm(50_000, channels)
    expected = (pcm.astype(np.float64) / 32768).mean(1)
    assert np.abs(read_all(wav_bytes(pcm)) - expected).max() < 1e-6
    assert np.abs(read_all((pcm, SAMPLE_RATE)) - expected).max() < 1e-6


@pytest.mark.parametrize("channels", [1, 7, 8, 9, 12])
def test_planar_channels_of_any_number_are_averaged(channels: int) -> None:
    samples = np.random.default_rng(0).uniform(-0.9, 0.9, (channels, 40_000)).astype(np.float32)
    layout = {1: "mono", 7: "6.1", 8: "7.1"}.get(channels, f"{channels} channels")
    sound = read_all(encode(samples, "wv", "wavpack", "fltp", SAMPLE_RATE, layout=layout))
    assert np.abs(sound - samples.astype(np.float64).mean(0)).max() < 1e-6


def test_surround_in_aac_is_averaged() -> None:
    channels = np.stack([make_sound(48_000)] * 6)
    channels[3] = 0  # the low-frequency channel carries no such tones
    sound = read_all(encode(channels, "mp4", "aac", "fltp", 48_000))
    assert_similar(sound * 6 / 5, tolerance=0.1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64])
def test_arrays_of_any_dtype_are_scaled(dtype: type) -> None:
    info = None if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    low, middle = (-1.0, 0.0) if info is None else (info.min, (info.max + info.min + 1) // 2)
    sound = mix_to_mono(np.array([[low, middle]], dtype))
    assert sound.tolist() == [-1.0, 0.0]


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 192_000])
def test_arrays_of_any_rate_are_resampled(rate: int) -> None:
    assert_similar(read_all((make_sound(rate), rate), block_seconds=0.3))


def test_blocks_do_not_change_samples() -> None:
    content = encode_as("wav 44.1")
    whole = read_all(content, block_seconds=30)
    with open_sound(content, block_seconds=0.5) as sound:
        blocks = list(sound)
    assert np.array_equal(np.concatenate(blocks), whole)
    assert len(blocks) >= 5 and max(map(len, blocks)) <= SAMPLE_RATE


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "opus", "m4a", "webm"])
def test_pipes_give_the_same_as_files(name: str, tmp_path: Path) -> None:
    content = encode_as(name)
    expected, piped = read_all(content), read_all(Pipe(content))
    # of MP3 in pipes FFmpeg does not cut the encoder's padding at the end, less than a frame
    assert len(expected) <= len(piped) < len(expected) + (600 if name == "mp3" else 1)
    assert np.array_equal(piped[: len(expected) - 500], expected[:-500])
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(content,))
    writer.start()
    assert np.array_equal(read_all(fifo), piped)
    writer.join()


def test_blocks_of_pipe_come_before_end() -> None:
    pipe = Pipe(wav_bytes(random_pcm(60 * SAMPLE_RATE)), size=8192)
    with open_sound(pipe, block_seconds=1.0) as sound:
        assert len(next(sound)) >= SAMPLE_RATE
        assert pipe.num_read < len(pipe.content) / 4


def test_file_is_read_from_its_position() -> None:
    pcm = random_pcm(30_000)
    for name, content in (("wav", wav_bytes(pcm)), ("m4a", encode_as("m4a"))):
        file = io.BytesIO(b"a header of another kind" + content)
        file.seek(24)
        assert np.array_equal(read_all(file), read_all(content)), name
        assert not file.closed


def test_duration_is_that_of_header() -> None:
    for name in ("wav", "flac", "m4a", "opus", "mp3", "webm"):
        assert open_sound(encode_as(name)).duration == pytest.approx(SECONDS, abs=0.15), name
    assert open_sound((np.zeros(8_000), 16_000)).duration == 0.5
    live = encode(make_sound(48_000), "matroska", "libopus", "flt", 48_000, options={"live": "1"})
    assert open_sound(Pipe(live)).duration is None
    assert_similar(read_all(Pipe(live)), tolerance=0.1)


def test_memory_is_flat() -> None:
    peaks = []
    for seconds in (60, 600):
        content = wav_bytes(np.zeros(seconds * 48_000, np.int16), 48_000)
        samples = np.zeros((seconds * 48_000, 2), np.int16)
        for source in (io.BytesIO(content), (samples, 48_000)):
            tracemalloc.start()
            with open_sound(source) as sound:
                assert sum(map(len, sound)) == seconds * SAMPLE_RATE
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert max(peaks) < 24 << 20
    assert peaks[2] < 1.3 * peaks[0] and peaks[3] < 1.3 * peaks[1]


def test_files_are_closed_at_end(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(random_pcm(SAMPLE_RATE * 12)))
    before = open_descriptors()
    list(open_sound(path))
    assert open_descriptors() == before
    sound = open_sound(path)
    next(sound)
    assert open_descriptors() == before + 1
    sound.close()
    assert open_descriptors() == before and list(sound) == []
    with pytest.raises(PromptError):
        list(open_sound(path, max_seconds=6))
    with pytest.raises(PromptError):
        open_sound(path, max_bytes=10)
    (tmp_path / "b").write_bytes(b"no sound")
    with pytest.raises(PromptError):
        open_sound(tmp_path / "b")
    assert open_descriptors() == before


def open_descriptors() -> int:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("this system does not list open files")
    return sum(1 for link in folder.iterdir() if os.path.exists(link) and os.path.isfile(link))


def playlists(target: Path) -> dict[str, bytes]:
    """Return files of FFmpeg that refer to another."""
    return {
        "a.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n{target}\n#EXT-X-ENDLIST\n".encode(),
        "relative.ffconcat": b"ffconcat version 1.0\nfile 'secret.wav'\n",
        "relative.m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nsecret.wav\n#EXT-X-ENDLIST\n",
        "a.ffconcat": f"ffconcat version 1.0\nfile '{target}'\n".encode(),
        "a.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
        "a.mpd": b'<?xml version="1.0"?><MPD><Period><AdaptationSet><Representation><BaseURL>secret.wav</BaseURL>'
        b"</Representation></AdaptationSet></Period></MPD>",
    }


def test_playlists_open_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "secret.wav"
    target.write_bytes(wav_bytes(random_pcm(SAMPLE_RATE)))
    for name, content in playlists(target).items():
        path = tmp_path / name
        path.write_bytes(content)
        for source in (path, content, Pipe(content)):
            with pytest.raises(PromptError, match="is no sound of a known format"):
                open_sound(source)


def test_other_files_stay_closed_behind_the_format_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let concat scripts through, as any container would be that some FFmpeg lets refer to other files."""
    monkeypatch.chdir(tmp_path)
    Path("secret.wav").write_bytes(wav_bytes(random_pcm(SAMPLE_RATE)))
    script = b"ffconcat version 1.0\nfile 'secret.wav'\n"
    with av.open(io.BytesIO(script)) as container:  # what FFmpeg does if nothing is forbidden
        assert sum(frame.samples for frame in container.decode(audio=0)) == SAMPLE_RATE
    monkeypatch.setattr(sound_module, "CONTAINERS", (*sound_module.CONTAINERS, "concat"))
    with pytest.raises(PromptError):
        list(open_sound(script))


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9/a.wav", "https://example.org/a.mp3", "ftp://a/b.wav", "data:audio/wav;base64,UklGRg=="],
)
def test_addresses_are_refused(address: str) -> None:
    with pytest.raises(PromptError, match="is an address, and nothing is fetched"):
        open_sound(address)


def test_protocols_of_ffmpeg_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(random_pcm(100)))
    for name in (f"concat:{path}|{path}", f"file:{path}", f"subfile,,start,0,end,0,,:{path}", f"cache:{path}",
                 "tcp://127.0.0.1:9", "pipe:0"):  # fmt: skip
        with pytest.raises(PromptError, match="is no file"):
            open_sound(name)


def test_file_named_like_a_protocol_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pcm = random_pcm(100)
    Path("concat:a.wav").write_bytes(wav_bytes(pcm))
    assert np.array_equal(read_all("concat:a.wav"), pcm.astype(np.float32) / 32768)


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


def zip_archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "no sound " * 1000)
    return file.getvalue()


NO_SOUND: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"What a text says is no sound.\n" * 200, "is no sound of a known format"),
    "zip": (zip_archive, "is no sound of a known format"),
    "noise": (lambda: np.random.default_rng(3).bytes(50_000), "is no sound of a known format"),
    "zeros": (lambda: bytes(50_000), "is no sound of a known format"),
    "picture": (picture, "is PNG, which has no sound"),
    "silent video": (lambda: encode(make_sound(), "mp4", "", "", 0, pictures=True, silent=True), "has no sound track"),
    "header alone": (lambda: wav_bytes(random_pcm(0)), "without sound"),
    "half a header": (lambda: wav_bytes(random_pcm(9))[:20], "is no sound of a known format"),
}


@pytest.mark.parametrize("name", NO_SOUND)
def test_files_without_sound_are_refused(name: str, tmp_path: Path) -> None:
    make, reason = NO_SOUND[name]
    path = tmp_path / "a.bin"
    path.write_bytes(make())
    for source, prefix in ((path, str(path)), (path.read_bytes(), "the sound"), (Pipe(path.read_bytes()), "the sound")):
        with pytest.raises(PromptError, match=reason) as caught:
            list(open_sound(source))
        assert str(caught.value).startswith(prefix) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing.wav", "is no file"), (".", "is a folder"), ("a\0b", "is no file"), ("x" * 5000, "too long")],
)
def test_paths_of_no_file_are_refused(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=reason):
        open_sound(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(random_pcm(100)))
    path.chmod(0)
    with pytest.raises(SystemRefusal, match="give this user permission"):
        open_sound(path)


@pytest.mark.parametrize("name", ["mp3", "m4a", "aac"])
def test_damage_in_the_middle_names_the_second(name: str) -> None:
    content = bytearray(encode_as(name, 20.0))
    start = len(content) // 2
    content[start : start + 4000] = bytes(4000)
    with pytest.raises(PromptError, match=r"is broken at second (9|10)\.\d; give a whole file"):
        list(open_sound(bytes(content)))


@pytest.mark.parametrize("name", ["flac", "aiff", "m4a", "webm"])
def test_cut_off_files_name_the_second(name: str, tmp_path: Path) -> None:
    container, codec, sample_format, rate = CODECS[name]
    options, path = ({"movflags": "faststart"}, tmp_path / "a.m4a") if name == "m4a" else (None, None)
    content = encode(make_sound(rate, 20.0), container, codec, sample_format, rate, options=options, path=path)
    with pytest.raises(PromptError, match=r"is cut off at second 1[0-3]\.\d of (19|20)\.\d"):
        list(open_sound(content[: len(content) * 6 // 10]))


@pytest.mark.parametrize("name", ["wav", "mp3", "opus"])
def test_cut_off_streams_end_early(name: str) -> None:
    content = encode_as(name, 10.0)
    assert 5 * SAMPLE_RATE < len(read_all(content[: len(content) * 6 // 10])) < 7 * SAMPLE_RATE


def test_wav_of_a_recorder_is_whole() -> None:
    """Read a header whose size was never filled in, as of recordings into a pipe."""
    pcm = random_pcm(100_000)
    for size in (b"\xff\xff\xff\xff", b"\0\0\0\0"):
        content = bytearray(wav_bytes(pcm))
        content[4:8] = content[40:44] = size
        for source in (bytes(content), Pipe(bytes(content))):
            assert np.array_equal(read_all(source), pcm.astype(np.float32) / 32768)


def test_trailing_tags_are_no_damage() -> None:
    content = encode_as("mp3")
    for tail in (b"TAG" + bytes(125), bytes(5000), b"APETAGEX" + bytes(range(200))):
        assert abs(len(read_all(content + tail)) - len(read_all(content))) < 2000


def test_latin_1_tags_are_no_damage() -> None:
    tag = b"TIT2\0\0\0\x07\0\0\x03caf\xe9\xff\xfe"
    content = b"ID3\x04\0\0\0\0\0" + bytes([len(tag)]) + tag + encode_as("mp3")
    assert_similar(read_all(content), tolerance=0.1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    samples = make_sound(seconds=12).astype(np.float64)
    samples[100_000] = value
    with pytest.raises(PromptError, match="no numbers after second 5.0"):
        list(open_sound((samples, SAMPLE_RATE)))
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="WAV", subtype="DOUBLE")
    with pytest.raises(PromptError, match="no numbers after second"):
        list(open_sound(file.getvalue()))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ((np.zeros((2, 3, 4)), 16_000), r"must be numbers, \[S\]"),
        ((np.zeros(10, complex), 16_000), "must be numbers"),
        ((np.zeros(10, bool), 16_000), "must be numbers"),
        ((np.array(["a"]), 16_000), "must be numbers"),
        ((np.zeros(0), 16_000), "has no samples"),
        ((np.zeros(10), 100), "is at 100 Hz"),
        ((np.zeros((2, 1000)), 16_000), "1,000 channels"),
        ((np.zeros(10), "fast"), "is no recording"),
        ((np.zeros(10), float("inf")), "is no recording"),
        ((np.zeros(10),), "is no recording"),
        (np.zeros(10), "a sound is a ndarray"),
        (None, "a sound is a NoneType"),
        (io.StringIO("text"), "str in place of bytes"),
    ],
)
def test_wrong_sources_are_refused(source: Any, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        open_sound(source)


def test_max_seconds_holds_for_all_sources() -> None:
    content = encode_as("flac", 12.0)
    for source in (content, Pipe(content), (make_sound(8_000, 12.0), 8_000)):
        with pytest.raises(PromptError, match="lasts longer than 11.5 s"):
            list(open_sound(source, max_seconds=11.5))
    assert len(read_all(content, max_seconds=12)) == 12 * SAMPLE_RATE


def test_max_bytes_holds_for_all_sources() -> None:
    content = wav_bytes(random_pcm(2_000_000))
    pipe = Pipe(content)
    for source in (content, io.BytesIO(content), pipe, Pipe(encode_as("m4a", 60.0))):
        with pytest.raises(PromptError, match="more than 100,000 bytes"):
            list(open_sound(source, max_bytes=100_000))
    assert pipe.num_read < 200_000
    assert len(read_all(content, max_bytes=len(content))) == 2_000_000


@pytest.mark.parametrize("limits", [{"max_seconds": 0}, {"max_bytes": 0}, {"block_seconds": 0}, {"block_seconds": 60}])
def test_impossible_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        open_sound((np.zeros(100), 16_000), **limits)  # type: ignore[arg-type]


class FailingFile(io.BytesIO):
    """File whose later reads raise."""

    def __init__(self, content: bytes, error: BaseException) -> None:
        super().__init__(content)
        self.error = error

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 500_000:
            raise self.error
        return super().read(size)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(5, "broken"), SystemRefusal), (KeyboardInterrupt(), KeyboardInterrupt), (KeyError("x"), PromptError)],
)
def test_errors_of_file_objects_arrive(error: BaseException, expected: type[BaseException]) -> None:
    content = wav_bytes(random_pcm(1_000_000))
    with pytest.raises(expected):
        list(open_sound(FailingFile(content, error)))
    assert len(read_all(content)) == 1_000_000  # nothing is left of the error


def test_closed_file_is_refused() -> None:
    file = io.BytesIO(wav_bytes(random_pcm(10)))
    file.close()
    with pytest.raises(PromptError, match="closed file"):
        open_sound(file)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackage, match=r"reading sound files needs the package av.*polydraft\[listen\]"):
        open_sound(wav_bytes(random_pcm(10)))
    assert isinstance(open_sound((np.zeros(10), 16_000)), SoundReader)


ENCODED = {name: encode_as(name) for name in ("wav", "flac", "mp3", "opus", "m4a", "webm", "aac", "aiff")}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(ENCODED)), st.data())
def test_damaged_files_raise_only_prompt_errors(name: str, data: st.DataObject) -> None:
    content = bytearray(ENCODED[name])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, 400) | st.integers(0, len(content)))
        content[start : start + 8] = data.draw(st.binary(max_size=16))
    try:
        with open_sound(bytes(content), max_seconds=60) as sound:
            for block in sound:
                assert block.dtype == np.float32 and np.isfinite(block).all()
    except PolydraftError as error:
        assert isinstance(error, PromptError)
