"""Orpheus (canopylabs/orpheus-3b-0.1-ft, Apache-2.0): named voices, seven codes a frame, SNAC at 24 kHz.

A prompt is `<start of human> <bos> voice: text <end of text> <end of human> <start of speaker> <start of speech>`.
Its card names eight voices; finetunes have others, and the name is text of the prompt, so any is passed on.
Every slot of a frame is written with ids of its own; the slots are SNAC's levels 0, 1, 2, 2, 1, 2, 2, and speech may
end only where a frame would begin. Layout after orpheus_tts_pypi's engine_class.py and decoder.py.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.codes import coded
from polydraft.modalities.speech.codecs.chunks import ChunkStream, Window
from polydraft.modalities.speech.codecs.snac import Snac
from polydraft.modalities.speech.codecs.stretch import Stretched
from polydraft.modalities.speech.families.tokens import TokenFamily
from polydraft.modalities.speech.family import CHUNK, FIRST_CHUNK, LONGEST_SENTENCE, Parts, SoundStream, Voice
from polydraft.modalities.speech.text.splitting import LONGEST_PART

LEVELS = (0, 1, 2, 2, 1, 2, 2)  # of SNAC, a slot each


class Orpheus(TokenFamily):
    """A folder of canopylabs/orpheus form."""

    code, code_zero, ends = "<custom_token_{}>", 10, ("<custom_token_2>",)
    frame = len(LEVELS)
    has_open_voices = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.voices = parts.card.manifest["voices"]
        self.codec = Snac(parts.card.codec, parts.device)
        model = self.codec.model
        if self.codec.strides != [4, 2, 1]:
            raise WeightsError(f"the codec of {parts.card.name} has other levels; take the SNAC of 24 kHz.")
        self.sample_rate = int(model.sampling_rate)
        self.samples = self.codec.hop * self.codec.latents / self.frame  # a code
        self.rate = self.sample_rate / self.samples
        self.slot, self.size = int(model.codebook_size), self.frame * int(model.codebook_size)
        self.number()
        self.context = LONGEST_PART + 16 + self.span(LONGEST_SENTENCE)

    @cached_property
    def mask(self) -> Tensor:
        """`[7, V]`: every slot's own codes; the end, where a frame begins."""
        allowed = torch.zeros(self.frame, self.parts.vocab, dtype=torch.bool, device=self.parts.device)
        for slot in range(self.frame):
            begin = self.first + slot * self.slot
            allowed[slot, begin : begin + self.slot] = True
        allowed[0, list(self.eos)] = True
        return allowed

    @cached_property
    def vectors(self) -> Tensor:
        """Codes as their level looks them up, every slot along axes of its own: codes of two slots are never alike."""
        books = [self.codec.model.quantizer.quantizers[level].codebook.weight.detach() for level in LEVELS]
        vectors = torch.block_diag(*(torch.nn.functional.normalize(book.float()) for book in books))
        return coded(self.parts.vocab, self.first, vectors)

    def prompt(self, sentence: str, voice: Voice) -> list[int]:
        before, after = "<custom_token_3>", "<|eot_id|><custom_token_4><custom_token_5><custom_token_1>"
        return [
            *self.written(before), self.id("<|begin_of_text|>"), *self.text(f"{voice.name}: {sentence}"),
            *self.written(after),
        ]  # fmt: skip

    def stream(self, voice: Voice, speed: float) -> SoundStream:
        frames = self.codec.window
        around = frames.before * self.frame
        window = Window(self.samples, around, around, frame=self.frame)
        sound = ChunkStream(window, self.decode, self.span(FIRST_CHUNK), self.span(CHUNK))
        return sound if speed == 1 else Stretched(sound, self.sample_rate, self.samples, speed)

    def decode(self, codes: Tensor, first: int) -> Tensor:
        """Sound of whole frames from code `first` on."""
        slots = codes.view(-1, self.frame) - self.slot * torch.arange(self.frame)
        levels = [slots[:, [slot for slot, own in enumerate(LEVELS) if own == level]].flatten() for level in range(3)]
        return self.codec.decode(levels, first // self.frame)
