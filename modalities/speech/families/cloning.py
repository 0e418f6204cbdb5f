"""Shared parts of NeuTTS and Llasa: the voice is given by the codes of a reference, which the model continues."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydraft.core.checks.arguments import format_value
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.codebook import expand_codebook
from polydraft.modalities.speech.codecs.chunks import ChunkStream
from polydraft.modalities.speech.codecs.fsq import FsqCodec
from polydraft.modalities.speech.codecs.stretch import StretchedStream
from polydraft.modalities.speech.families.tokens import TokenFamily
from polydraft.modalities.speech.family import CHUNK, FIRST_CHUNK, AudioStream, FamilyInputs, Voice
from polydraft.modalities.speech.reference import Recording, load_reference
from polydraft.modalities.speech.text.splitting import read_as_written


class CloningFamily(TokenFamily):
    """Family whose prompts end in the codes of a reference, so that the continuation has its voice."""

    clones = True
    context = 2048  # positions that both models were trained with

    def __init__(self, inputs: FamilyInputs, codec: Any) -> None:
        super().__init__(inputs)
        self.codec: FsqCodec = FsqCodec(inputs.card.codec, codec, inputs.device)
        self.sample_rate: int = self.codec.sample_rate
        self.num_codes: int = len(self.codec.codebook)
        self.rate: float = self.sample_rate / self.codec.samples_per_code
        self.locate_codes()
        self.last_reference: tuple[bytes, Tensor] = (
            b"",
            torch.empty(0, dtype=torch.long),
        )  # samples and codes of the last reference

    @cached_property
    def codebook(self) -> Tensor:
        return expand_codebook(self.inputs.vocab, self.first_code_id, self.codec.codebook)

    def select_voice(self, name: str | None, reference: Recording | None, text: str | None) -> Voice:
        model = self.inputs.card.name
        if name is not None:
            raise InvalidArgument(
                f"{model} has no voice {format_value(name)}, it clones one; give reference and reference_text."
            )
        if reference is None:
            raise InvalidArgument(f"{model} speaks in the voice of a recording; give reference and reference_text.")
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument("reference_text is missing; give the transcript of the reference.")
        audio = load_reference(reference, self.codec.input_sample_rate)
        key = audio.tobytes()
        if key != self.last_reference[0]:
            self.last_reference = key, self.codec.encode(audio)
        return Voice("reference", " ".join(read_as_written(text).sentences), self.last_reference[1])

    def reference_ids(self, voice: Voice) -> list[int]:
        """Return the token ids of the reference's codes."""
        return (voice.codes + self.first_code_id).tolist()

    def open_audio_stream(self, voice: Voice, speed: float) -> AudioStream:
        stream = ChunkStream(
            self.codec.window,
            self.codec.decode,
            self.codes_in_seconds(FIRST_CHUNK),
            self.codes_in_seconds(CHUNK),
            lead=voice.codes,
        )
        return stream if speed == 1 else StretchedStream(stream, self.sample_rate, self.codec.samples_per_code, speed)
