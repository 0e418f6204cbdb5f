"""Orpheus (canopylabs/orpheus-3b-0.1-ft, Apache-2.0): named voices, seven codes a frame, SNAC at 24 kHz.

A prompt is `<start of human> <bos> voice: text <end of text> <end of human> <start of speaker> <start of speech>`.
Its card names eight voices; fine-tuned models have others. The name is text of the prompt, so any name is accepted.
Every slot of a frame has its own token ids; the slots are SNAC's levels 0, 1, 2, 2, 1, 2, 2, and speech may
end only where a frame would begin. Layout after orpheus_tts_pypi's engine_class.py and decoder.py.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.codebook import expand_codebook
from polydraft.modalities.speech.codecs.chunks import ChunkStream, DecodeWindow
from polydraft.modalities.speech.codecs.snac import Snac
from polydraft.modalities.speech.codecs.stretch import StretchedStream
from polydraft.modalities.speech.families.tokens import TokenFamily
from polydraft.modalities.speech.family import CHUNK, FIRST_CHUNK, LONGEST_SENTENCE, AudioStream, FamilyInputs, Voice
from polydraft.modalities.speech.text.splitting import LONGEST_PART

LEVELS = (0, 1, 2, 2, 1, 2, 2)  # SNAC level of every slot


class Orpheus(TokenFamily):
    """Family of folders in the form of canopylabs/orpheus."""

    code_token: ClassVar[str] = "<custom_token_{}>"
    code_zero: ClassVar[int] = 10
    end_tokens: ClassVar[tuple[str]] = ("<custom_token_2>",)
    frame: int = len(LEVELS)
    has_open_voices = True

    def __init__(self, inputs: FamilyInputs) -> None:
        super().__init__(inputs)
        self.voices: list[str] = inputs.card.manifest["voices"]
        self.codec: Snac = Snac(inputs.card.codec, inputs.device)
        model = self.codec.model
        if self.codec.strides != [4, 2, 1]:
            raise WeightsError(f"the codec of {inputs.card.name} has other levels; take the SNAC of 24 kHz.")
        self.sample_rate: int = int(model.sampling_rate)
        self.samples_per_code: float = self.codec.samples_per_latent * self.codec.latents_per_frame / self.frame
        self.rate: float = self.sample_rate / self.samples_per_code
        self.codes_per_slot: int = int(model.codebook_size)
        self.num_codes: int = self.frame * int(model.codebook_size)
        self.locate_codes()
        self.context: int = LONGEST_PART + 16 + self.codes_in_seconds(LONGEST_SENTENCE)

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the allowed ids `[7, V]`: codes of the slot, and the end token at the start of a frame."""
        allowed = torch.zeros(self.frame, self.inputs.vocab, dtype=torch.bool, device=self.inputs.device)
        for slot in range(self.frame):
            begin = self.first_code_id + slot * self.codes_per_slot
            allowed[slot, begin : begin + self.codes_per_slot] = True
        allowed[0, list(self.eos)] = True
        return allowed

    @cached_property
    def codebook(self) -> Tensor:
        """Return the codebook embeddings; every slot has its own axes, so codes of two slots are never similar."""
        books = [self.codec.model.quantizer.quantizers[level].codebook.weight.detach() for level in LEVELS]
        vectors = torch.block_diag(*(torch.nn.functional.normalize(book.float()) for book in books))
        return expand_codebook(self.inputs.vocab, self.first_code_id, vectors)

    def encode_prompt(self, sentence: str, voice: Voice) -> list[int]:
        before, after = "<custom_token_3>", "<|eot_id|><custom_token_4><custom_token_5><custom_token_1>"
        return [
            *self.encode(before), self.token_id("<|begin_of_text|>"), *self.encode_text(f"{voice.name}: {sentence}"),
            *self.encode(after),
        ]  # fmt: skip

    def open_audio_stream(self, voice: Voice, speed: float) -> AudioStream:
        frames = self.codec.window
        num_context = frames.before * self.frame
        window = DecodeWindow(self.samples_per_code, num_context, num_context, frame=self.frame)
        stream = ChunkStream(window, self.decode, self.codes_in_seconds(FIRST_CHUNK), self.codes_in_seconds(CHUNK))
        return stream if speed == 1 else StretchedStream(stream, self.sample_rate, self.samples_per_code, speed)

    def decode(self, codes: Tensor, first: int) -> Tensor:
        """Return the audio of complete frames from code `first` on."""
        slots = codes.view(-1, self.frame) - self.codes_per_slot * torch.arange(self.frame)
        levels = [
            slots[:, [slot for slot, level_codes in enumerate(LEVELS) if level_codes == level]].flatten()
            for level in range(3)
        ]
        return self.codec.decode(levels, first // self.frame)
