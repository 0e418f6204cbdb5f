"""What NeuTTS and Llasa have in common: the voice is a reference whose codes the model goes on from."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydraft.core.arguments import shown
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.codes import coded
from polydraft.modalities.speech.codecs.chunks import ChunkStream
from polydraft.modalities.speech.codecs.fsq import FsqCodec
from polydraft.modalities.speech.codecs.stretch import Stretched
from polydraft.modalities.speech.families.tokens import TokenFamily
from polydraft.modalities.speech.family import CHUNK, FIRST_CHUNK, Parts, SoundStream, Voice
from polydraft.modalities.speech.reference import Recording, listen
from polydraft.modalities.speech.text.splitting import read_as_written


class CloningFamily(TokenFamily):
    """A prompt ends in the reference's codes, and what follows is said in the same voice."""

    clones = True
    context = 2048  # what both were trained with

    def __init__(self, parts: Parts, codec: Any) -> None:
        super().__init__(parts)
        self.codec = FsqCodec(parts.card.codec, codec, parts.device)
        self.sample_rate, self.size = self.codec.sample_rate, len(self.codec.book)
        self.rate = self.sample_rate / self.codec.samples
        self.number()
        self.heard: tuple[bytes, Tensor] = (b"", torch.empty(0, dtype=torch.long))  # the last reference and its codes

    @cached_property
    def vectors(self) -> Tensor:
        return coded(self.parts.vocab, self.first, self.codec.book)

    def voice(self, name: str | None, reference: Recording | None, text: str | None) -> Voice:
        model = self.parts.card.name
        if name is not None:
            raise InvalidArgument(
                f"{model} has no voice {shown(name)}, it clones one; give reference and reference_text."
            )
        if reference is None:
            raise InvalidArgument(f"{model} speaks in the voice of a recording; give reference and reference_text.")
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument("reference_text is missing; give the words that are said in the reference.")
        sound = listen(reference, self.codec.heard)
        key = sound.tobytes()
        if key != self.heard[0]:
            self.heard = key, self.codec.encode(sound)
        return Voice("reference", " ".join(read_as_written(text).sentences), self.heard[1])

    def spoken(self, voice: Voice) -> list[int]:
        """Ids of the reference's codes."""
        return (voice.codes + self.first).tolist()

    def stream(self, voice: Voice, speed: float) -> SoundStream:
        sound = ChunkStream(
            self.codec.window, self.codec.decode, self.span(FIRST_CHUNK), self.span(CHUNK), lead=voice.codes
        )
        return sound if speed == 1 else Stretched(sound, self.sample_rate, self.codec.samples, speed)
