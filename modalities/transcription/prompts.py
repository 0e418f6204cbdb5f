"""Prompts that ask models with spliced sound for a transcript, and what their answers say.

    prompts = PROMPTS["qwen3_asr"](processor, model, eos_token_ids)
    inputs = prompts.encode(samples, language="en")      # token ids and features, as the model's forward takes them
    prompts.parse(ids).text

A prompt is what the model's makers document: the processor's own transcription request where it has one, else its chat
template with the documented instruction.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Inputs = Mapping[str, Tensor]
NOT_FOR_THE_MODEL = ("attention_mask", "audio_embed_sizes", "num_audio_tokens")  # of one prompt, which has no padding


@dataclass(frozen=True)
class TranscriptText:
    """Content of a generated text."""

    text: str
    language: str | None = None  # code of the language that the model says it heard, if it says so


class TranscriptionPrompts(ABC):
    """Prompts of one family of models.

    Args:
        processor (Any): The transformers processor.
        model (Any): The model.
        eos_token_ids (Collection[int]): Ids that end an answer.
    """

    languages: Mapping[str, str] = {}  # English names by code; empty where a prompt names no language
    tasks: tuple[str, ...] = ("transcribe",)
    takes_context = False  # whether a prompt may hold a text that goes before the recording

    def __init__(self, processor: Any, model: Any, eos_token_ids: Collection[int]) -> None:
        self.processor: Any = processor
        self.model: Any = model
        self.eos_token_ids: Collection[int] = eos_token_ids
        self.tokenizer: Any = processor.tokenizer

    @abstractmethod
    def encode(
        self, samples: NDArray[np.float32], language: str | None = None, task: str = "transcribe",
        context: str | None = None,
    ) -> Inputs:  # fmt: skip
        """Return the arguments of the model's forward for a prompt, with its ids `[1, L]` as `input_ids`.

        Args:
            samples (NDArray): [S] sound at the processor's rate, no longer than its window.
            language (str | None): Code, one of `languages`; None leaves it to the model.
            task (str): One of `tasks`.
            context (str | None): Text before the recording, where `takes_context`.
        """

    def parse(self, ids: Sequence[int]) -> TranscriptText:
        """Return what generated ids say."""
        return TranscriptText(self.decode(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


class RequestPrompts(TranscriptionPrompts):
    """Prompts that the processor makes by itself, as for GLM-ASR."""

    def encode(
        self, samples: NDArray[np.float32], language: str | None = None, task: str = "transcribe",
        context: str | None = None,
    ) -> Inputs:  # fmt: skip
        given = {"language": language, "prompt": context}
        options = {name: value for name, value in given.items() if value is not None}
        return for_model(self.processor.apply_transcription_request(audio=samples, **options))


class Qwen3ASRPrompts(RequestPrompts):
    """Prompts of Qwen3-ASR, whose answers begin with the language unless the prompt names it."""

    takes_context = True

    @property
    def languages(self) -> Mapping[str, str]:  # type: ignore[override]
        from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

        return LANGUAGE_CODE_TO_NAME

    def parse(self, ids: Sequence[int]) -> TranscriptText:
        text = self.decode(ids)
        if re.fullmatch(r"\s*language(\s+\w*)?\s*", text):  # the text itself is still to come
            return TranscriptText("")
        found = self.processor.parse_output(text)
        codes = {name: code for code, name in self.languages.items()}
        return TranscriptText(found["transcription"], codes.get(found["language"]))


class AudioFlamingoPrompts(RequestPrompts):
    """Prompts of Audio Flamingo 3, whose answers may be whole sentences that quote the text."""

    FRAME = re.compile(r"\s*The (?:spoken content|transcription|content) of the (?:input )?audio is\b")

    def parse(self, ids: Sequence[int]) -> TranscriptText:
        text = self.decode(ids)
        if self.FRAME.match(text):
            (text,) = self.processor.decode([list(ids)], skip_special_tokens=True, strip_prefix=True)
        return TranscriptText(text)


class Qwen2AudioPrompts(TranscriptionPrompts):
    """Prompts of Qwen2-Audio, which begin with a language tag or leave it to the answer.

    The instructions are those of its published evaluation. A model that ends its turns is asked in a chat, and one that
    does not goes on behind the sound.
    """

    SOUND, END_OF_TURN = "<|audio_bos|><|AUDIO|><|audio_eos|>", "<|im_end|>"
    INSTRUCTIONS = {
        "transcribe": "Detect the language and recognize the speech:",
        "translate": "Detect the language and translate the speech into English:",
    }
    TAG = re.compile(r"\s*<\|([a-z]{2,3})\|>")

    languages: dict[str, str] = {
        "zh": "Chinese", "en": "English", "yue": "Cantonese", "fr": "French", "it": "Italian", "es": "Spanish",
        "de": "German", "ja": "Japanese",
    }  # fmt: skip
    tasks: tuple[str, str] = ("transcribe", "translate")

    def encode(
        self, samples: NDArray[np.float32], language: str | None = None, task: str = "transcribe",
        context: str | None = None,
    ) -> Inputs:  # fmt: skip
        instruction = self.INSTRUCTIONS[task] + ("" if language is None else f" <|{language}|>")
        text = self.SOUND + instruction
        if self.tokenizer.convert_tokens_to_ids(self.END_OF_TURN) in self.eos_token_ids:
            content = [{"type": "audio", "audio": samples}, {"type": "text", "text": instruction}]
            text = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        rate = self.processor.feature_extractor.sampling_rate
        return for_model(self.processor(text=[text], audio=[samples], sampling_rate=rate, return_tensors="pt"))

    def parse(self, ids: Sequence[int]) -> TranscriptText:
        if tag := self.TAG.match(self.tokenizer.decode(list(ids), skip_special_tokens=False)):
            return TranscriptText(self.TAG.sub("", self.decode(ids), count=1), tag[1])
        return TranscriptText(self.decode(ids))


class GraniteSpeechPrompts(TranscriptionPrompts):
    """Prompts of Granite Speech: the instruction follows the sound in a turn of the user."""

    INSTRUCTIONS = {
        "transcribe": "can you transcribe the speech into a written format?",
        "translate": "translate the speech to English.",
    }
    # as published, for templates that would otherwise write the day of the request
    SYSTEM = (
        "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
        "You are Granite, developed by IBM. You are a helpful AI assistant"
    )

    tasks: tuple[str, str] = ("transcribe", "translate")

    def encode(
        self, samples: NDArray[np.float32], language: str | None = None, task: str = "transcribe",
        context: str | None = None,
    ) -> Inputs:  # fmt: skip
        template = str(self.processor.chat_template or self.tokenizer.chat_template)
        messages = [{"role": "user", "content": self.processor.audio_token + self.INSTRUCTIONS[task]}]
        if "strftime_now" in template:
            messages.insert(0, {"role": "system", "content": self.SYSTEM})
        text = self.tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        sound = torch.from_numpy(np.array(samples))[None]
        return for_model(self.processor(text=[text], audio=sound, return_tensors="pt"))


class VoxtralPrompts(TranscriptionPrompts):
    """Prompts of Voxtral, as mistral_common's `encode_transcription` makes them.

    They are made here, since the processor makes them through that package and rounds the sound to 16 bits on the way.
    """

    BEGIN, END = ("<s>", "[INST]", "[BEGIN_AUDIO]"), "[/INST]"

    @property
    def languages(self) -> Mapping[str, str]:  # type: ignore[override]
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        return {code: name.title() for code, name in LANGUAGES.items() if len(code) == 2}

    def encode(
        self, samples: NDArray[np.float32], language: str | None = None, task: str = "transcribe",
        context: str | None = None,
    ) -> Inputs:  # fmt: skip
        extractor, sound = self.processor.feature_extractor, self.model.config.audio_config
        features = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features
        # the projector reads as many positions of the encoder at once as its intermediate size holds
        num_placeholders = sound.max_source_positions * sound.hidden_size // sound.intermediate_size
        named = [] if language is None else self.tokenizer.encode(f"lang:{language}", add_special_tokens=False)
        ids = [
            *map(self.tokenizer.convert_tokens_to_ids, self.BEGIN),
            *[self.model.config.audio_token_id] * num_placeholders,
            self.tokenizer.convert_tokens_to_ids(self.END),
            *named,
            self.tokenizer.convert_tokens_to_ids("[TRANSCRIBE]"),
        ]
        return {"input_ids": torch.tensor([ids]), "input_features": features}


PROMPTS: dict[str, type[TranscriptionPrompts]] = {  # by `model_type`
    "voxtral": VoxtralPrompts, "qwen2_audio": Qwen2AudioPrompts, "qwen3_asr": Qwen3ASRPrompts, "glmasr": RequestPrompts,
    "granite_speech": GraniteSpeechPrompts, "granite_speech_plus": GraniteSpeechPrompts,
    "audioflamingo3": AudioFlamingoPrompts,
}  # fmt: skip


def for_model(outputs: Mapping[str, Any]) -> Inputs:
    """Return the outputs of a processor that a model's forward takes."""
    return {name: value for name, value in outputs.items() if name not in NOT_FOR_THE_MODEL}
