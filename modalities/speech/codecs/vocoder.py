"""From what a voice does, 200 times a second, to sound: pulses and noise through a filter that follows the throat.

A source-filter vocoder without weights (after Morise et al. 2016, "WORLD", IEICE Trans. Inf. Syst. E99-D): voiced
excitation is a band-limited pulse train whose phase runs on from chunk to chunk, unvoiced excitation is noise tied to
its place in the stream, and both are filtered, frame by frame, with the minimum phase that belongs to the envelope. So
a stream rendered in chunks is the stream rendered whole.

    sound, phase = render(frames, first=0, phase=torch.zeros(1))
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
HOP = 80  # samples a frame
FFT = 1024  # a frame with room for its ringing
WINDOW = 320  # samples a frame is filtered in
BEFORE, AFTER = 16, 8  # frames that sound into the first sample, and that the last sample needs
BANDS = 64  # of the envelope, evenly spaced in mel
NOISE_BANDS = torch.tensor([500.0, 1500.0, 3000.0, 5000.0, 7000.0])  # Hz, their middles
NOISE_SEED = 20


@dataclass(frozen=True)
class VocoderFrames:
    """Parameters of a voice, a frame every 5 ms.

    pitch: `[B, F]` Hz, through unvoiced sounds too. envelope: `[B, F, BANDS]` log power. noise: `[B, F, 5]`, the share
    of the power that is noise, 0 to 1.
    """

    pitch: Tensor
    envelope: Tensor
    noise: Tensor

    def interpolate(self, positions: Tensor) -> VocoderFrames:
        """Frames at `positions` `[F]` (in frames, linear in between; before the first and after the last, those)."""
        positions = positions.clamp(0, self.pitch.shape[1] - 1)
        before = positions.floor().long()
        after, share = (before + 1).clamp(max=self.pitch.shape[1] - 1), positions - before

        def mix(x: Tensor) -> Tensor:
            weight = share.to(x).view(-1, *[1] * (x.ndim - 2))
            return x[:, before] * (1 - weight) + x[:, after] * weight

        return VocoderFrames(mix(self.pitch), mix(self.envelope), mix(self.noise))


def band_centres() -> Tensor:
    """Hz of the envelope's bands."""
    top = float(hertz_to_mel(SAMPLE_RATE / 2, "slaney"))
    return torch.from_numpy(mel_to_hertz(torch.linspace(0, top, BANDS).double().numpy(), "slaney")).float()


def interpolation_matrix(middles: Tensor) -> Tensor:
    """`[P, FFT/2 + 1]`: what every point at `middles` Hz adds to every frequency, linear in between."""
    frequencies = torch.linspace(0, SAMPLE_RATE / 2, FFT // 2 + 1).clamp(middles[0].item(), middles[-1].item())
    right = torch.searchsorted(middles, frequencies).clamp(1, len(middles) - 1)
    share = (frequencies - middles[right - 1]) / (middles[right] - middles[right - 1])
    weights = torch.zeros(len(frequencies), len(middles)).scatter_(1, right[:, None], share[:, None])
    return weights.scatter_(1, right[:, None] - 1, 1 - share[:, None]).T.contiguous()


@cache
@torch.inference_mode(False)
def interpolation_matrices() -> tuple[Tensor, Tensor]:
    """Bands to frequencies, of envelope and noise share; training may read them whoever asked first."""
    return interpolation_matrix(band_centres()), interpolation_matrix(NOISE_BANDS)


def render(frames: VocoderFrames, first: int, phase: Tensor) -> tuple[Tensor, Tensor]:
    """Sound of all frames but the first BEFORE and the last AFTER, `[B, (F - BEFORE - AFTER) HOP]`.

    first: place in the stream of the first sounding frame. phase: `[B]` radians where the first frame begins; the same
    for the next chunk, whose first frame is BEFORE frames ahead of this one's end, comes back.
    """
    sounding = frames.pitch.shape[1] - BEFORE - AFTER
    pulses, phases = pulse_train(frames.pitch, phase)
    pulses = pulses.to(frames.envelope.dtype)
    start = (first - BEFORE) * HOP
    noise = white_noise(start, pulses.shape[1], pulses.device).to(pulses.dtype).expand_as(pulses)
    of_envelope, of_noise = (spread.to(frames.envelope) for spread in interpolation_matrices())
    filters = minimum_phase((frames.envelope / 2 @ of_envelope)[:, 2:-4])
    share = (frames.noise @ of_noise)[:, 2:-4].clamp(0, 1)
    # frame f is heard from WINDOW / 2 before its own sample on
    cut = pulses[:, 2 * HOP - WINDOW // 2 :], noise[:, 2 * HOP - WINDOW // 2 :]
    window = torch.hann_window(WINDOW, device=pulses.device, dtype=pulses.dtype)
    voiced, breath = (torch.fft.rfft(x.unfold(1, WINDOW, HOP)[:, : filters.shape[1]] * window, FFT) for x in cut)
    heard = torch.fft.irfft((voiced * (1 - share).sqrt() + breath * share.sqrt()) * filters, FFT)
    length = (heard.shape[1] - 1) * HOP + FFT
    sound = F.fold(heard.transpose(1, 2), (1, length), (1, FFT), stride=(1, HOP))[:, 0, 0] / 2  # windows sum to 2
    skip = (BEFORE - 2) * HOP + WINDOW // 2
    return sound[:, skip : skip + sounding * HOP], phases[:, sounding * HOP]


def pulse_train(pitch: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    """Harmonics of equal strength up to 8 kHz, unit power a sample, and their phase, `[B, (F - 1) HOP]` both."""
    steps = torch.arange(HOP, device=pitch.device) / HOP
    hertz = (pitch[:, :-1, None] * (1 - steps) + pitch[:, 1:, None] * steps).flatten(1).double()
    phases = phase[:, None].double() + F.pad(hertz.cumsum(1)[:, :-1], (1, 0)) * (2 * math.pi / SAMPLE_RATE)
    phases = phases.remainder(2 * math.pi)
    count = SAMPLE_RATE / 2 / hertz - 0.5
    whole = count.floor()
    # the sum of cos(k x), k = 1 … n, in closed form; the harmonic that comes or goes with the pitch fades
    half = (phases / 2).sin()
    closed = torch.where(half.abs() > 1e-6, ((whole + 0.5) * phases).sin() / (2 * half) - 0.5, whole)
    pulses = closed + (count - whole) * ((whole + 1) * phases).cos()
    return pulses * 2 * (hertz / SAMPLE_RATE).sqrt(), phases


def white_noise(start: int, length: int, device: torch.device) -> Tensor:
    """Gaussian noise of samples `start` on, `[length]`: a pure function of the place (Box and Muller 1958)."""
    positions, seed = torch.arange(start, start + length, device=device), torch.tensor(NOISE_SEED, device=device)
    radius, angle = uniform_from_keys(seed, 2 * positions), uniform_from_keys(seed, 2 * positions + 1)
    return (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


def minimum_phase(log_magnitude: Tensor) -> Tensor:
    """Complex spectra `[..., FFT/2 + 1]` of that log magnitude whose energy comes first (by the folded cepstrum)."""
    cepstrum = torch.fft.irfft(log_magnitude, FFT)
    fold = torch.zeros(FFT, device=cepstrum.device, dtype=cepstrum.dtype)
    fold[0] = fold[FFT // 2] = 1
    fold[1 : FFT // 2] = 2
    folded = torch.fft.rfft(cepstrum * fold, FFT)
    return torch.polar(folded.real.exp(), folded.imag)  # complex exp is five times slower
