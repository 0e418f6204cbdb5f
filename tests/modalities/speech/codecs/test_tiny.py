"""Built-in codec with random weights: quantisation grid, chunked decoding, speed and receptive field."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.apps.lab.training.checkpoint import save
from polydraft.core.errors import WeightsError
from polydraft.modalities.speech.codecs import vocoder
from polydraft.modalities.speech.codecs.tiny import (
    SAMPLES_PER_CODE,
    CodecConfig,
    CodecStream,
    DecoderStream,
    SpeechCodec,
)
from polydraft.modalities.speech.codecs.vocoder import VocoderFrames


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> SpeechCodec:
    torch.manual_seed(0)
    codec = SpeechCodec(CodecConfig(width=32, ahead=(1, 1, 0)))
    for weight in codec.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.15)
    folder = tmp_path_factory.mktemp("codec")
    save(codec, folder)
    return SpeechCodec.from_folder(folder)


def error_db(error: torch.Tensor, signal: torch.Tensor) -> float:
    return 20 * math.log10(float(error.std() / signal.std()) + 1e-15)


def test_codec_codes_index_their_grid_points(codec: SpeechCodec):
    codes = torch.arange(codec.config.codebook_size)
    steps = (codec.codebook * codec.grid_radius).round() + codec.grid_radius
    assert (steps.long() * codec.strides).sum(-1).equal(codes)
    assert codec.codebook.min() == -1 and codec.codebook.max() == 1 and len(codec.codebook.unique(dim=0)) == len(codes)
    assert codec.quantise(codec.codebook).allclose(codec.codebook)


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), speed=st.sampled_from((1.0, 0.25, 0.7, 1.9, 4.0)),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_codec_stream_chunks_equal_whole_decoding(codec: SpeechCodec, lengths: list[int], speed: float, seed: int):
    codes = torch.randint(codec.config.codebook_size, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    whole, stream = codec.decode(codes, 0, speed), CodecStream(codec, 0, speed)
    chunks = [stream.push(part) for part in codes.split(lengths)]
    chunks.append(stream.finish())
    joined = torch.cat(chunks)
    assert joined.shape == whole.shape and abs(len(whole) - len(codes) * SAMPLES_PER_CODE / speed) < vocoder.HOP
    assert len(joined) == 0 or error_db(joined - whole, whole) < -100


def test_decoder_stream_outputs_equal_whole_decoder(codec: SpeechCodec):
    codes = torch.randint(codec.config.codebook_size, (70,), generator=torch.Generator().manual_seed(3))
    parts, stream = codes.split([codec.look_ahead + 1, 1, 30, 2, 36 - codec.look_ahead]), DecoderStream(codec, 1)
    pieces = [stream.push(part, last=False) for part in parts]
    assert [piece.shape[1] for piece in pieces] == [1, 1, 30, 2, 36 - codec.look_ahead]
    pieces.append(stream.push(codes[:0], last=True))
    whole = codec.decoder_output(codec.codebook[codes[None]], torch.tensor([1]))
    assert torch.cat(pieces, 1).allclose(whole, rtol=0, atol=1e-9) and whole.dtype == torch.float64


def test_codec_stream_emits_audio_after_look_ahead(codec: SpeechCodec):
    stream = CodecStream(codec, 0)
    first = stream.push(torch.zeros(stream.look_ahead + 10, dtype=torch.long))
    assert len(first) == 10 * SAMPLES_PER_CODE


def test_codec_stream_without_look_ahead_is_detected(codec: SpeechCodec, monkeypatch: pytest.MonkeyPatch):
    """Plant a bug: the last code of every chunk is decoded without the codes after it."""
    codes = torch.randint(codec.config.codebook_size, (60,), generator=torch.Generator().manual_seed(1))
    whole = codec.decode(codes, 0)
    monkeypatch.setattr(CodecStream, "look_ahead", 0)
    stream = CodecStream(codec, 0)
    joined = torch.cat([*(stream.push(part) for part in codes.split(20)), stream.finish()])
    assert error_db(joined - whole, whole) > -60


def test_encoder_code_depends_on_nearby_audio_only(codec: SpeechCodec):
    audio = torch.randn(1, 40 * SAMPLES_PER_CODE, generator=torch.Generator().manual_seed(2)) * 0.1
    changed = audio.clone()
    changed[:, 20 * SAMPLES_PER_CODE : 21 * SAMPLES_PER_CODE] *= -3
    is_changed = (codec.encode_points(audio) - codec.encode_points(changed)).abs().amax((0, 2)) > 1e-5
    assert is_changed[20] and not is_changed[:16].any() and not is_changed[25:].any()


def test_vocoder_steady_voice_has_pitch_and_power():
    count = 400
    frames = VocoderFrames(
        torch.full((1, count), 125.0), torch.full((1, count, 64), -6.0), torch.full((1, count, 5), 0.02)
    )
    audio, _ = vocoder.render(frames, 0, torch.zeros(1))
    spectrum = torch.fft.rfft(audio[0, 1600:17600] * torch.hann_window(16000)).abs()
    assert int(spectrum[60:190].argmax()) + 60 == 125  # bins are 1 Hz
    assert 0.8 < float(audio.square().mean() / math.exp(-6)) < 1.25


def test_codec_mismatched_weights_are_refused(codec: SpeechCodec, tmp_path: Path):
    save(codec, tmp_path)
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace('"width": 32', '"width": 48'))
    with pytest.raises(WeightsError, match="controls.weight, which has the shape"):
        SpeechCodec.from_folder(tmp_path)
