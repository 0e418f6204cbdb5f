"""Family of the embedded speech models: phones, named voices and codes in one vocabulary, and their codec."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.codebook import expand_codebook
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SAMPLES_PER_CODE, CodecStream, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import SAMPLE_RATE
from polydraft.modalities.speech.family import COMMA_PAUSE, AudioStream, FamilyInputs, Script, SpeechFamily, Voice
from polydraft.modalities.speech.loudness import LOUDNESS, LoudnessNormalisedStream, loudness_gain
from polydraft.modalities.speech.text.lexicon import sentence_symbols
from polydraft.modalities.speech.text.reading import normalise_text
from polydraft.modalities.weights import read_weights

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONGEST_PROMPT = 136  # symbols and specials
USUAL = 3.7  # codes per symbol
CODES_A_SYMBOL, CODES_MORE, MOST_CODES = 5, 44, 600  # limits of the codes of a sentence


class TinySpeech(SpeechFamily):
    """Family of folders made by `polydraft train tiny-speech`."""

    sample_rate = SAMPLE_RATE
    rate: float = SAMPLE_RATE / SAMPLES_PER_CODE
    eos: frozenset[int] = frozenset({vocabulary.END})
    context = LONGEST_PROMPT + MOST_CODES

    def __init__(self, inputs: FamilyInputs) -> None:
        super().__init__(inputs)
        card = inputs.card
        self.speakers: list[str] = card.manifest["voices"]  # in the order of the codec's voice ids
        default = card.manifest.get("voice", self.speakers[0])
        self.voices: list[str] = [default, *(voice for voice in self.speakers if voice != default)]
        self.loudness: dict[str, float] = card.manifest.get("loudness", {})  # LUFS of decoded audio, by voice
        self.comma_pauses: dict[str, float] = card.manifest.get("commas", {})  # seconds, by voice
        self.tokenizer: Tokenizer
        self.tokenizer = read_weights("vocabulary", card.path, lambda: vocabulary.load_tokenizer(card.target))
        for voice in self.speakers:  # voices that the tokenizer lacks are refused at load
            token = vocabulary.voice_token(voice)
            read_weights("vocabulary", card.path, partial(vocabulary.id_of, self.tokenizer, token))
        self.code_offset: int = read_weights("vocabulary", card.path, lambda: vocabulary.code_offset(self.tokenizer))
        self.codec: SpeechCodec = read_weights("codec", card.codec, lambda: SpeechCodec.from_folder(card.codec))
        num_ids = self.code_offset + self.codec.config.codebook_size
        if num_ids != inputs.vocab:
            raise WeightsError(
                f"the symbols and codes in {card.path} are {num_ids} ids and its target knows {inputs.vocab}; "
                "its parts are of several models, install it again."
            )

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the allowed ids `[1, V]`: codes and the end token."""
        ids = torch.arange(self.inputs.vocab, device=self.inputs.device)
        return ((ids >= self.code_offset) | (ids == vocabulary.END))[None]

    @cached_property
    def codebook(self) -> Tensor:
        return expand_codebook(self.inputs.vocab, self.code_offset, self.codec.codebook).to(self.inputs.device)

    def split_text(self, text: str) -> Script:
        reading = normalise_text(text)
        return Script([" ".join(words) for words in reading.sentences], reading.ignored, reading.marks)

    def encode_prompt(self, sentence: str, voice: Voice) -> list[int]:
        return vocabulary.prompt_ids(self.tokenizer, voice.name, sentence_symbols(sentence.split()))

    def max_codes(self, sentence: str) -> int:
        return min(len(sentence_symbols(sentence.split())) * CODES_A_SYMBOL + CODES_MORE, MOST_CODES)

    def expected_codes(self, sentence: str) -> int:
        return round(USUAL * (len(sentence_symbols(sentence.split())) + 2))

    def comma_pause(self, voice: Voice) -> float:
        return self.comma_pauses.get(voice.name, COMMA_PAUSE)

    def extract_codes(self, ids: Tensor) -> Tensor:
        return ids[ids >= self.code_offset] - self.code_offset

    def open_audio_stream(self, voice: Voice, speed: float) -> AudioStream:
        stream = CodecStream(self.codec, self.speakers.index(voice.name), speed)
        return LoudnessNormalisedStream(
            stream, loudness_gain(self.loudness.get(voice.name, LOUDNESS)), self.sample_rate
        )
