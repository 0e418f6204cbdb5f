"""Small speech codec: 16 kHz audio to one stream of 50 codes per second and back.

Every code is 20 ms. The encoder's receptive field is little longer, so equal audio has nearly equal codes wherever
they occur, which makes codes predictable; its output is rounded to a small grid, whose points are the codes (finite
scalar quantisation, Mentzer et al. 2023, arXiv 2309.15505). The decoder is conditioned on the voice, looks back at
earlier codes and a little ahead, and predicts the parameters of a source-filter vocoder.

    codec = SpeechCodec.from_folder(folder)
    codes = codec.encode(audio)                  # [B, S] → [B, S // 320]
    audio = codec.decode(codes[0], voice=0)
    stream = CodecStream(codec, voice=0); audio = stream.push(codes[0, :20]); …; stream.finish()  # equal audio
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.audio_utils import mel_filter_bank

from polydraft.core.folders.networks import read_network
from polydraft.modalities.speech.codecs import vocoder
from polydraft.modalities.speech.codecs.vocoder import BANDS, NOISE_BANDS, SAMPLE_RATE, VocoderFrames

SAMPLES_PER_CODE = 320
FRAMES_PER_CODE = SAMPLES_PER_CODE // vocoder.HOP
MEL_WINDOW, MEL_FFT, MEL_BINS = 320, 512, 64  # timbre input of the encoder, for every frame
TONE_WINDOW, TONE_BINS = 1024, 96  # pitch input of the encoder, for every code
KERNEL = 7  # receptive field of a decoder block, in codes
REFERENCE_PITCH = 120.0  # Hz; the decoder predicts the log of the pitch relative to this


@dataclass(frozen=True)
class CodecConfig:
    """Configuration of a codec; its fields are those of config.json.

    At the same number of codes, many axes of few points keep more of a spectrum than few axes of many points.
    """

    levels: tuple[int, ...] = (3, 3, 3, 3, 3, 3)  # grid points along each axis; odd numbers
    voices: int = 4
    width: int = 192
    encoder_blocks: int = 2
    view: int = 1  # codes of context of each encoder block on either side
    ahead: tuple[int, ...] = (1, 1, 1, 1, 1, 1)  # codes that each decoder block looks ahead
    model_type: str = "polydraft-speech-codec"

    @property
    def codebook_size(self) -> int:
        return math.prod(self.levels)


class Block(nn.Module):
    """Block of a depthwise convolution over time and a pointwise MLP (Liu et al. 2022, ConvNeXt, section 2.3)."""

    def __init__(self, width: int, before: int, after: int) -> None:
        super().__init__()
        self.padding: tuple[int, int] = (before, after)
        self.depthwise: nn.Conv1d = nn.Conv1d(width, width, before + 1 + after, groups=width)
        self.norm: nn.LayerNorm = nn.LayerNorm(width)
        self.wide: nn.Linear = nn.Linear(width, 3 * width)
        self.narrow: nn.Linear = nn.Linear(3 * width, width)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output `[B, T, D]` with zero padding."""
        return self.forward_valid(F.pad(x, (0, 0, *self.padding)))

    def forward_valid(self, padded: Tensor) -> Tensor:
        """Map `[B, before + T + after, D]` to `[B, T, D]`: outputs of positions with all their neighbours."""
        before, after = self.padding
        count = padded.shape[1] - before - after
        x, taps = padded[:, before : before + count], self.depthwise.weight[:, 0]
        # torch's convolution with this many groups is slower to train, and ten times slower in fp64.
        mixed = cast(Tensor, self.depthwise.bias).expand_as(x)
        for tap in range(taps.shape[1]):
            mixed = torch.addcmul(mixed, padded[:, tap : tap + count], taps[:, tap])
        return x + self.narrow(F.gelu(self.wide(self.norm(mixed))))


class SpeechCodec(nn.Module):
    """Codec of audio `[B, S]` in -1..1 at 16 kHz and codes `[B, T]` int64 in 0..codebook_size - 1."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config: CodecConfig = config
        width = config.width
        axes = len(config.levels)
        self.encoder: nn.Sequential = nn.Sequential(
            nn.Linear(FRAMES_PER_CODE * MEL_BINS + TONE_BINS, width),
            *(Block(width, config.view, config.view) for _ in range(config.encoder_blocks)),
            nn.LayerNorm(width), nn.Linear(width, axes),
        )  # fmt: skip
        self.point: nn.Linear = nn.Linear(axes, width)
        self.voice: nn.Embedding = nn.Embedding(config.voices, width)
        self.decoder: nn.Sequential = nn.Sequential(
            *(Block(width, KERNEL - 1 - after, after) for after in config.ahead), nn.LayerNorm(width)
        )
        self.controls: nn.Linear = nn.Linear(width, FRAMES_PER_CODE * (1 + BANDS + len(NOISE_BANDS)))

    @staticmethod
    def from_folder(folder: Path) -> SpeechCodec:
        """Return the codec saved in `folder` (config.json, model.safetensors)."""

        def build(config: CodecConfig) -> SpeechCodec:  # JSON has lists for tuples
            return SpeechCodec(replace(config, levels=tuple(config.levels), ahead=tuple(config.ahead)))

        codec = read_network(CodecConfig, build, folder)
        # The decoder up to the pitch is fp64: a pulse's phase sums the pitch, so rounding would make chunks drift.
        codec.double().encoder.float()
        return codec.eval()

    @cached_property
    def grid_radius(self) -> Tensor:
        """Return the largest value on every axis of the grid."""
        return (torch.tensor(self.config.levels) - 1) / 2

    @cached_property
    def strides(self) -> Tensor:
        return torch.tensor([math.prod(self.config.levels[:axis]) for axis in range(len(self.config.levels))])

    @cached_property
    def codebook(self) -> Tensor:
        """Return the grid point of every code, `[V, axes]` in -1..1."""
        ids = torch.arange(self.config.codebook_size)[:, None]
        return (ids // self.strides % torch.tensor(self.config.levels) - self.grid_radius) / self.grid_radius

    @property
    def look_ahead(self) -> int:
        """Return the number of following codes that the frames of a code depend on."""
        return sum(self.config.ahead)

    def encode_points(self, audio: Tensor) -> Tensor:
        """Return the encoder's output `[B, T, axes]` in -1..1, before rounding."""
        return self.encoder(encoder_features(audio)).float().tanh()

    def quantise(self, points: Tensor) -> Tensor:
        """Round to the nearest grid point, with a straight-through gradient."""
        near = (points * self.grid_radius).round() / self.grid_radius
        return points + (near - points).detach()

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """Return the codes `[B, T]` of the complete 20 ms pieces of `audio`."""
        steps = (self.encode_points(audio) * self.grid_radius).round() + self.grid_radius
        return (steps.long() * self.strides).sum(-1)

    def decoder_output(self, points: Tensor, voice: Tensor) -> Tensor:
        """Return the decoder's hidden states `[B, T, width]` for points `[B, T, axes]` and voices `[B]`."""
        return self.decoder(self.decoder_input(points, voice))

    def decoder_input(self, points: Tensor, voice: Tensor) -> Tensor:
        """Return the decoder's input `[B, T, width]`."""
        return self.point(points.to(self.point.weight.dtype)) + self.voice(voice)[:, None]

    def vocoder_frames(self, hidden_states: Tensor) -> VocoderFrames:
        """Return the vocoder frames, four per code."""
        out = self.controls(hidden_states)
        pitch, envelope, noise = (
            out.unflatten(-1, (FRAMES_PER_CODE, -1)).flatten(1, 2).split([1, BANDS, len(NOISE_BANDS)], -1)
        )
        hertz = REFERENCE_PITCH * pitch[..., 0].clamp(-1.2, 1.6).exp()
        return VocoderFrames(hertz, (4 * envelope - 8).float(), noise.sigmoid().float())

    def decode(self, codes: Tensor, voice: int, speed: float = 1.0) -> Tensor:
        """Return the audio `[320 T / speed]` of codes `[T]`; the speed does not change the pitch."""
        stream = CodecStream(self, voice, speed)
        return torch.cat([stream.push(codes), stream.finish()])


def encoder_features(audio: Tensor) -> Tensor:
    """Return the encoder's inputs: a mel spectrum at every frame and a long one of low tones per code, `[B, T, …]`."""
    codes = audio.shape[1] // SAMPLES_PER_CODE
    mel = log_power(audio, MEL_WINDOW, vocoder.HOP, 0, codes * FRAMES_PER_CODE, MEL_FFT, mel_bank())
    tone = log_power(audio, TONE_WINDOW, SAMPLES_PER_CODE, SAMPLES_PER_CODE // 2, codes, TONE_WINDOW, low_bins())
    return torch.cat([mel.unflatten(1, (codes, FRAMES_PER_CODE)).flatten(2), tone], -1)


def log_power(audio: Tensor, window: int, hop: int, middle: int, count: int, fft: int, bank: Tensor) -> Tensor:
    """Return the scaled log power in frequency bands for windows of audio, `[B, count, bands]`.

    Args:
        audio (Tensor): [B, S]
        window (int): samples of a window.
        hop (int): samples between windows.
        middle (int): sample at the centre of the first window.
        count (int): number of windows.
        fft (int): length of the FFT.
        bank (Tensor): [fft / 2 + 1, bands] weights of the bands.
    """
    padded = F.pad(audio, (window // 2, window))[:, middle:]
    shape = torch.hann_window(window, device=audio.device)
    power = torch.fft.rfft(padded.unfold(1, window, hop)[:, :count] * shape, fft).abs().square()
    return ((power @ bank).clamp(min=1e-6).log() + 4) / 4


@cache
def mel_bank() -> Tensor:
    bank = mel_filter_bank(MEL_FFT // 2 + 1, MEL_BINS, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, mel_scale="slaney")
    return torch.from_numpy(bank).float()


@cache
def low_bins() -> Tensor:
    return torch.eye(TONE_WINDOW // 2 + 1)[:, 1 : TONE_BINS + 1]


class DecoderStream:
    """Streaming decoder of a growing sequence of codes; every block caches the positions that it looks back at."""

    def __init__(self, codec: SpeechCodec, voice: int) -> None:
        self.codec: SpeechCodec = codec
        self.voice: Tensor = torch.tensor([voice])
        self.norm: nn.Module
        *blocks, self.norm = codec.decoder
        self.blocks: list[Block] = cast(list[Block], blocks)
        weight = codec.point.weight
        self.histories: list[Tensor]
        self.histories = [weight.new_zeros(1, block.padding[0], codec.config.width) for block in self.blocks]

    def push(self, codes: Tensor, last: bool) -> Tensor:
        """Return the hidden states `[1, T', width]` that later codes no longer change, or all if `last`.

        The first `codes` `[T]` must be more than the decoder looks ahead.
        """
        x = self.codec.decoder_input(self.codec.codebook[codes[None]], self.voice)
        for index, block in enumerate(self.blocks):
            before, after = block.padding
            padded = torch.cat([self.histories[index], x], 1)
            if last:
                padded = F.pad(padded, (0, 0, 0, after))
            x, self.histories[index] = block.forward_valid(padded), padded[:, -before - after :]
        return cast(Tensor, self.norm(x))


class CodecStream:
    """Audio stream of a growing sequence of codes of one voice.

    Samples are returned as soon as later codes cannot change them. `speed` does not change the pitch.
    """

    def __init__(self, codec: SpeechCodec, voice: int, speed: float = 1.0) -> None:
        self.codec: SpeechCodec = codec
        self.decoder: DecoderStream = DecoderStream(codec, voice)
        self.speed: float = speed
        self.codes: Tensor = torch.empty(0, dtype=torch.long)
        self.num_decoded: int = 0  # codes that the decoder has processed
        self.hidden_states: Tensor = codec.point.weight.new_empty(1, 0, codec.config.width)
        self.num_frames: int = 0  # frames rendered so far
        self.phase: Tensor = torch.zeros(1)

    @property
    def look_ahead(self) -> int:
        """Return the number of codes that must be known after those that are decoded."""
        return self.codec.look_ahead + math.ceil(vocoder.AFTER * self.speed / FRAMES_PER_CODE) + 1

    def push(self, codes: Tensor) -> Tensor:
        """Return the samples `[S]` that `codes` `[T]` complete; may be empty."""
        self.codes = torch.cat([self.codes, codes])
        return self._render_until(math.floor((len(self.codes) - self.look_ahead) * FRAMES_PER_CODE / self.speed))

    def finish(self) -> Tensor:
        """Return the last samples."""
        return self._render_until(math.floor(len(self.codes) * FRAMES_PER_CODE / self.speed), last=True)

    @torch.inference_mode()
    def _render_until(self, end: int, last: bool = False) -> Tensor:
        """Return the samples of the frames up to `end`."""
        if end <= self.num_frames:
            return torch.empty(0)
        self.hidden_states = torch.cat([self.hidden_states, self.decoder.push(self.codes[self.num_decoded :], last)], 1)
        self.num_decoded = len(self.codes)
        positions = (
            torch.arange(self.num_frames - vocoder.BEFORE, end + vocoder.AFTER, dtype=torch.float64) * self.speed
        )
        begin = max(0, int(positions[0]) // FRAMES_PER_CODE)
        frames = self.codec.vocoder_frames(self.hidden_states[:, begin:]).interpolate(
            positions - begin * FRAMES_PER_CODE
        )
        audio, self.phase = vocoder.render(frames, self.num_frames, self.phase)
        self.num_frames = end
        return audio[0].float()
