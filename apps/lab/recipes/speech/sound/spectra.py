"""Spectral loss of rendered frames: distance of log-mel spectra in several resolutions, through the vocoder.

    spectral_distance(render_frames(frames, pitch), sound, judged)   # dB

The vocoder has no weights and is differentiable in envelope and noise share; its pulses follow the true pitch, so that
harmonics lie where the speaker's do. Several windows are used, since one that resolves harmonics misses onsets and vice
versa (Yamamoto et al. 2020, Parallel WaveGAN, arXiv 1910.11480, section 2.2; in mel bands, over which independent
noises of the same loudness are close).
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

from polydraft.modalities.speech.codecs import vocoder
from polydraft.modalities.speech.codecs.tiny import REFERENCE_PITCH
from polydraft.modalities.speech.codecs.vocoder import AFTER, BEFORE, HOP, SAMPLE_RATE, VocoderFrames

RESOLUTIONS = ((320, 24), (640, 40), (1280, 64))  # samples of a window, mel bands
FLOOR = 1e-8  # power of a band below which differences are inaudible
NEARLY = 1e-4
DECIBEL = 10 / math.log(10)


def render_frames(frames: VocoderFrames, log_pitch: Tensor) -> Tensor:
    """Render frames to audio [B, F HOP] at the pitch `REFERENCE_PITCH e^log_pitch` [B, F]."""
    places = torch.arange(-BEFORE, log_pitch.shape[1] + AFTER, dtype=torch.float64)
    noise = frames.noise.float().clamp(NEARLY, 1 - NEARLY)  # its root has no slope at 0
    positioned = VocoderFrames(REFERENCE_PITCH * log_pitch.exp(), frames.envelope.float(), noise).interpolate(places)
    return vocoder.render(positioned, 0, torch.zeros(len(log_pitch)))[0]


def spectral_distance(ours: Tensor, theirs: Tensor, judged: Tensor) -> Tensor:
    """Return the mean distance in dB of bands of audio [B, F HOP], over windows in frames that count, [B, F]."""
    samples = judged.repeat_interleave(HOP, 1)
    distances = []
    for window, bands in RESOLUTIONS:
        counted = samples.unfold(1, window, window // 4).amin(-1)[..., None]
        differences = (log_mel(ours, window, bands) - log_mel(theirs, window, bands)).abs()
        distances.append((differences * counted).sum() / (counted.sum().clamp(min=1) * bands))
    return torch.stack(distances).mean() * DECIBEL


def log_mel(sound: Tensor, window: int, bands: int) -> Tensor:
    """Return log-mel power [B, T, bands], with a hop of a quarter of the window."""
    shape = torch.hann_window(window)
    power = torch.fft.rfft(sound.unfold(1, window, window // 4) * shape).abs().square() / shape.square().sum()
    return (power @ mel_filters(window, bands) + FLOOR).log()


@cache
def mel_filters(window: int, bands: int) -> Tensor:
    weights = mel_filter_bank(window // 2 + 1, bands, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, mel_scale="slaney")
    return torch.from_numpy(weights).float()
