"""NeuCodec and X-Codec-2 as implemented in transformers: one stream of 65,536 finite-scalar codes, 50 a second.

    codec = FsqCodec(folder, NeuCodecModel, device)
    codes = codec.encode(load_reference("me.wav", codec.input_sample_rate))   # [T]
    audio = codec.decode(codes, 0)                                            # [T · samples] at codec.sample_rate

Their decoders are transformers with global attention, so chunks are decoded in windows, with the 50 codes of left
context, 5 of right context and crossfade of 1 code that NeuTTS streams with (neutts.py, `infer_stream`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.readers import read_model
from polydraft.modalities.speech.codecs.chunks import DecodeWindow
from polydraft.modalities.weight_paths import refuse_pickles
from polydraft.modalities.weights import check_loading_report, read_weights

BEFORE, AFTER, FADE = 50, 5, 1  # codes of left context, right context and crossfade
MELS, FRAME, HOP, FFT, STRIDE = 80, 400, 160, 512, 2  # input of the semantic encoder (w2v-BERT 2.0)
FLOOR = 1.192092955078125e-07  # smallest mel energy, the epsilon of float32


class FsqCodec:
    """NeuCodec or X-Codec-2 with its weights.

    Attributes:
        sample_rate (int): of decoded audio, in Hz.
        input_sample_rate (int): of audio to encode, in Hz.
        samples_per_code (int): decoded samples of a code.
        codebook (Tensor): [V, axes]
    """

    def __init__(self, folder: Path, model: Any, device: torch.device) -> None:
        self.device = device
        self.model: Any = read_weights("codec", folder, lambda: load_codec(model, folder)).to(device).eval()
        config = self.model.config
        self.sample_rate: int = int(getattr(config, "output_sampling_rate", 0) or config.sampling_rate)
        self.input_sample_rate: int = int(getattr(config, "input_sampling_rate", 0) or config.sampling_rate)
        self.samples_per_code: int = int(config.hop_length)
        self.encoder_hop: int = int(getattr(config, "encoder_hop_length", config.hop_length))  # input samples per code
        self.margin: int = (
            0 if config.model_type == "neucodec" else self.encoder_hop // 2
        )  # silence at the ends of the features
        self.codebook: Tensor = self.model.quantizer.quantizer.codebook.float()

    @property
    def window(self) -> DecodeWindow:
        return DecodeWindow(self.samples_per_code, BEFORE, AFTER, FADE)

    @torch.inference_mode()
    def encode(self, audio: NDArray[np.float32]) -> Tensor:
        """Return the codes `[T]` of audio `[S]` at `input_sample_rate` Hz."""
        padded = np.pad(audio, (0, self.encoder_hop - len(audio) % self.encoder_hop))
        features = torch.from_numpy(semantic_features(np.pad(padded, self.margin), self.input_sample_rate))
        encoded = self.model.encode(
            torch.from_numpy(padded)[None, None].to(self.device), input_features=features[None].to(self.device)
        )
        codes: Tensor = encoded.audio_codes
        return codes[0, 0].long().cpu()

    @torch.inference_mode()
    def decode(self, codes: Tensor, first: int) -> Tensor:
        """Return the audio `[T · samples_per_code]`; `first`, the index of the first code, has no effect."""
        audio: Tensor = self.model.decode(codes[None, None].to(self.device)).audio_values
        return audio[0, 0].float().cpu()


def load_codec(model: Any, folder: Path) -> Any:
    """Load the codec in `folder`; raises WeightsError for missing, extra or misshapen tensors."""
    stored, wanted = read_settings(folder / "config.json").get("model_type"), model.config_class.model_type
    if stored != wanted:
        raise ValueError(f"it is {stored!r}, not {wanted!r}")
    refuse_pickles(folder)
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    loaded, report = read_model("codec", model, folder, dtype=torch.float32, **options)
    check_loading_report(folder, report)
    return loaded


def semantic_features(audio: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """Return Kaldi's normalised log mel energies, two frames per row: `[T, 160]`."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    bank = mel_filter_bank(FFT // 2 + 1, MELS, 20, rate // 2, rate, mel_scale="kaldi", triangularize_in_mel_space=True)
    energies = spectrogram(
        audio * 2.0**15, window_function(FRAME, "povey", periodic=False), FRAME, HOP, FFT, power=2.0, center=False,
        preemphasis=0.97, mel_filters=bank, log_mel="log", mel_floor=FLOOR, remove_dc_offset=True,
    ).T  # fmt: skip
    normalised = (energies - energies.mean(0)) / np.sqrt(energies.var(0, ddof=1) + 1e-7)
    num_even = len(normalised) - len(normalised) % STRIDE
    return normalised[:num_even].reshape(-1, STRIDE * MELS).astype(np.float32)
