"""The project's own speech models: phones, named voices and codes in one vocabulary, and a codec of their own."""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.codes import coded
from polydraft.modalities.loading import read_weights
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SAMPLES, CodecStream, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import SAMPLE_RATE
from polydraft.modalities.speech.family import COMMA, Parts, Script, SoundStream, SpeechFamily, Voice
from polydraft.modalities.speech.levels import LOUDNESS, Levelled, gain
from polydraft.modalities.speech.text.lexicon import symbols
from polydraft.modalities.speech.text.reading import read

LONGEST_PROMPT = 136  # symbols and specials
USUAL = 3.7  # codes a symbol
CODES_A_SYMBOL, CODES_MORE, MOST_CODES = 5, 44, 600  # most codes a sentence may take


class TinySpeech(SpeechFamily):
    """A folder made by `polydraft train tiny-speech`."""

    sample_rate = SAMPLE_RATE
    rate = SAMPLE_RATE / SAMPLES
    eos = frozenset({vocabulary.END})
    context = LONGEST_PROMPT + MOST_CODES

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        card = parts.card
        self.speakers: list[str] = card.manifest["voices"]  # as the codec counts them
        default = card.manifest.get("voice", self.speakers[0])
        self.voices = [default, *(voice for voice in self.speakers if voice != default)]
        self.loudness: dict[str, float] = card.manifest.get("loudness", {})  # LUFS of what the codec says, by voice
        self.commas: dict[str, float] = card.manifest.get("commas", {})  # seconds that voices pause at one
        self.words = read_weights("vocabulary", card.path, lambda: vocabulary.load(card.target))
        for voice in self.speakers:  # one that the tokenizer lacks is refused now, and not when it is to speak
            token = vocabulary.voice_token(voice)
            read_weights("vocabulary", card.path, partial(vocabulary.id_of, self.words, token))
        self.code_offset = read_weights("vocabulary", card.path, lambda: vocabulary.code_offset(self.words))
        self.codec = read_weights("codec", card.codec, lambda: SpeechCodec.from_folder(card.codec))
        wanted = self.code_offset + self.codec.config.codebook_size
        if wanted != parts.vocab:
            raise WeightsError(
                f"the symbols and codes in {card.path} are {wanted} ids and its target knows {parts.vocab}; "
                "its parts are of several models, install it again."
            )

    @cached_property
    def mask(self) -> Tensor:
        """Codes and the end, everywhere."""
        ids = torch.arange(self.parts.vocab, device=self.parts.device)
        return ((ids >= self.code_offset) | (ids == vocabulary.END))[None]

    @cached_property
    def vectors(self) -> Tensor:
        return coded(self.parts.vocab, self.code_offset, self.codec.codebook).to(self.parts.device)

    def read(self, text: str) -> Script:
        reading = read(text)
        return Script([" ".join(words) for words in reading.sentences], reading.ignored, reading.marks)

    def prompt(self, sentence: str, voice: Voice) -> list[int]:
        return vocabulary.prompt_ids(self.words, voice.name, symbols(sentence.split()))

    def most(self, sentence: str) -> int:
        return min(len(symbols(sentence.split())) * CODES_A_SYMBOL + CODES_MORE, MOST_CODES)

    def usual(self, sentence: str) -> int:
        return round(USUAL * (len(symbols(sentence.split())) + 2))

    def comma(self, voice: Voice) -> float:
        return self.commas.get(voice.name, COMMA)

    def codes(self, ids: Tensor) -> Tensor:
        return ids[ids >= self.code_offset] - self.code_offset

    def stream(self, voice: Voice, speed: float) -> SoundStream:
        said = CodecStream(self.codec, self.speakers.index(voice.name), speed)
        return Levelled(said, gain(self.loudness.get(voice.name, LOUDNESS)), self.sample_rate)
