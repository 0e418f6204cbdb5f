"""Source-filter vocoder: pulses and noise through a filter that follows the spectral envelope, 200 frames a second.

It has no weights (after Morise et al. 2016, "WORLD", IEICE Trans. Inf. Syst. E99-D): voiced
excitation is a band-limited pulse train whose phase continues from chunk to chunk, unvoiced excitation is noise keyed
by its position in the stream, and both are filtered, frame by frame, with the minimum-phase response of the envelope.
So a stream rendered in chunks equals the stream rendered at once.

    audio, phase = render(frames, first=0, phase=torch.zeros(1))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.audio_utils import hertz_to_mel, mel_to_hertz

from polydraft.core.sampling.noise import uniform_from_keys

SAMPLE_RATE = 16_000
HOP = 80  # samples per frame
FFT = 1024  # window of a frame and the tail of its filter response
WINDOW = 320  # samples of a filtered window
BEFORE, AFTER = 16, 8  # frames whose response reaches the first sample, and frames that the last sample needs
BANDS = 64  # of the envelope, evenly spaced in mel
NOISE_BANDS = torch.tensor([500.0, 1500.0, 3000.0, 5000.0, 7000.0])  # Hz, centres of the bands
NOISE_SEED = 20


@dataclass(frozen=True)
class VocoderFrames:
    """Vocoder parameters of a voice, one frame every 5 ms."""

    pitch: Tensor  # [B, F] in Hz, continued through unvoiced sounds
    envelope: Tensor  # [B, F, BANDS] log power
    noise: Tensor  # [B, F, 5] share of the power that is noise, 0 to 1

    def interpolate(self, positions: Tensor) -> VocoderFrames:
        """Return frames interpolated linearly at `positions` `[F]` (in frames), clamped to the first and last."""
        positions = positions.clamp(0, self.pitch.shape[1] - 1)
        before = positions.floor().long()
        after, share = (before + 1).clamp(max=self.pitch.shape[1] - 1), positions - before

        def mix(x: Tensor) -> Tensor:
            weight = share.to(x).view(-1, *[1] * (x.ndim - 2))
            return x[:, before] * (1 - weight) + x[:, after] * weight

        return VocoderFrames(mix(self.pitch), mix(self.envelope), mix(self.noise))


def band_centres() -> Tensor:
    """Return the centre frequencies of the envelope's bands in Hz."""
    top = float(hertz_to_mel(SAMPLE_RATE / 2, "slaney"))
    return torch.from_numpy(mel_to_hertz(torch.linspace(0, top, BANDS).double().numpy(), "slaney")).float()


def interpolation_matrix(centres: Tensor) -> Tensor:
    """Return the weights `[P, FFT/2 + 1]` that interpolate linearly from points at `centres` Hz to all frequencies."""
    frequencies = torch.linspace(0, SAMPLE_RATE / 2, FFT // 2 + 1).clamp(centres[0].item(), centres[-1].item())
    right = torch.searchsorted(centres, frequencies).clamp(1, len(centres) - 1)
    share = (frequencies - centres[right - 1]) / (centres[right] - centres[right - 1])
    weights = torch.zeros(len(frequencies), len(centres)).scatter_(1, right[:, None], share[:, None])
    return weights.scatter_(1, right[:, None] - 1, 1 - share[:, None]).T.contiguous()


@cache
@torch.inference_mode(False)
def interpolation_matrices() -> tuple[Tensor, Tensor]:
    """Return the interpolation matrices of envelope and noise share; made outside inference mode, for training."""
    return interpolation_matrix(band_centres()), interpolation_matrix(NOISE_BANDS)


def render(frames: VocoderFrames, first: int, phase: Tensor) -> tuple[Tensor, Tensor]:
    """Render all frames but the first BEFORE and the last AFTER, which are context.

    Args:
        frames (VocoderFrames): [B, F, …]
        first (int): index in the stream of the first rendered frame.
        phase (Tensor): [B] radians at the start of the first frame.

    Returns:
        tuple[Tensor, Tensor]: audio `[B, (F - BEFORE - AFTER) HOP]`, and the phase `[B]` for the next chunk, whose
        first frame is BEFORE frames ahead of this chunk's end.
    """
    num_rendered = frames.pitch.shape[1] - BEFORE - AFTER
    pulses, phases = pulse_train(frames.pitch, phase)
    pulses = pulses.to(frames.envelope.dtype)
    start = (first - BEFORE) * HOP
    noise = white_noise(start, pulses.shape[1], pulses.device).to(pulses.dtype).expand_as(pulses)
    envelope_matrix, noise_matrix = (matrix.to(frames.envelope) for matrix in interpolation_matrices())
    filters = minimum_phase((frames.envelope / 2 @ envelope_matrix)[:, 2:-4])
    share = (frames.noise @ noise_matrix)[:, 2:-4].clamp(0, 1)
    # The window of frame f begins WINDOW / 2 before its own sample.
    cut = pulses[:, 2 * HOP - WINDOW // 2 :], noise[:, 2 * HOP - WINDOW // 2 :]
    window = torch.hann_window(WINDOW, device=pulses.device, dtype=pulses.dtype)
    voiced, unvoiced = (torch.fft.rfft(x.unfold(1, WINDOW, HOP)[:, : filters.shape[1]] * window, FFT) for x in cut)
    filtered = torch.fft.irfft((voiced * (1 - share).sqrt() + unvoiced * share.sqrt()) * filters, FFT)
    length = (filtered.shape[1] - 1) * HOP + FFT
    audio = F.fold(filtered.transpose(1, 2), (1, length), (1, FFT), stride=(1, HOP))[:, 0, 0] / 2  # windows sum to 2
    skip = (BEFORE - 2) * HOP + WINDOW // 2
    return audio[:, skip : skip + num_rendered * HOP], phases[:, num_rendered * HOP]


def pulse_train(pitch: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    """Return harmonics of equal strength up to 8 kHz at unit power, and their phase, both `[B, (F - 1) HOP]`."""
    steps = torch.arange(HOP, device=pitch.device) / HOP
    hertz = (pitch[:, :-1, None] * (1 - steps) + pitch[:, 1:, None] * steps).flatten(1).double()
    phases = phase[:, None].double() + F.pad(hertz.cumsum(1)[:, :-1], (1, 0)) * (2 * math.pi / SAMPLE_RATE)
    phases = phases.remainder(2 * math.pi)
    count = SAMPLE_RATE / 2 / hertz - 0.5
    whole = count.floor()
    # The sum of cos(k x) over k = 1 … n in closed form; the highest harmonic is faded as the pitch changes.
    half = (phases / 2).sin()
    closed = torch.where(half.abs() > 1e-6, ((whole + 0.5) * phases).sin() / (2 * half) - 0.5, whole)
    pulses = closed + (count - whole) * ((whole + 1) * phases).cos()
    return pulses * 2 * (hertz / SAMPLE_RATE).sqrt(), phases


def white_noise(start: int, length: int, device: torch.device) -> Tensor:
    """Return Gaussian noise `[length]` from sample `start` on, a function of the position (Box and Muller 1958)."""
    positions, seed = torch.arange(start, start + length, device=device), torch.tensor(NOISE_SEED, device=device)
    radius, angle = uniform_from_keys(seed, 2 * positions), uniform_from_keys(seed, 2 * positions + 1)
    return (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


def minimum_phase(log_magnitude: Tensor) -> Tensor:
    """Return the minimum-phase spectra `[..., FFT/2 + 1]` of a log magnitude (by the folded cepstrum)."""
    cepstrum = torch.fft.irfft(log_magnitude, FFT)
    fold = torch.zeros(FFT, device=cepstrum.device, dtype=cepstrum.dtype)
    fold[0] = fold[FFT // 2] = 1
    fold[1 : FFT // 2] = 2
    folded = torch.fft.rfft(cepstrum * fold, FFT)
    return torch.polar(folded.real.exp(), folded.imag)  # complex exp is five times slower
