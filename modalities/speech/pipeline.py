"""Text to speech with an autoregressive model: what users call.

    from polydraft import generate_speech, load
    generate_speech("We will meet again tomorrow.").save("out.wav")
    pipe = load("tiny-speech", method="vadusa")
    for chunk in pipe.stream("We will meet again tomorrow."): play(chunk.audio)

The same seed says the same thing the same way with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydraft.core.checks.arguments import to_callback, to_float, to_integer, to_optional, to_string
from polydraft.core.errors import PromptError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import cached_pipeline
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.pipeline import Pipeline, check_sampling_params, expand_seeds, synchronized
from polydraft.modalities.speech.families import build_family
from polydraft.modalities.speech.family import FamilyInputs, Voice
from polydraft.modalities.speech.reference import Recording
from polydraft.modalities.speech.request import (
    OnStep,
    SpeechChunk,
    SpeechGenerationRequest,
    SpeechRequestInfo,
    SpeechStream,
)
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.speech.text.markup import check_text

SLOWEST, FASTEST = 0.25, 4.0
MAX_CONCURRENT_SENTENCES = 8  # sentences decoded together when nobody waits for the first


def generate_speech(
    text: str, *, voice: str | None = None, reference: Recording | None = None, reference_text: str | None = None,
    speculative: bool = True, model: str | Path = "tiny-speech", codec: str | Path | None = None,
    method: str | None = None,
    seed: int = 0, speed: float = 1.0, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, repetition_penalty: float | None = None,
    device: str | torch.device = "auto", dtype: str | torch.dtype = "auto", on_step: OnStep | None = None,
) -> SpeechResult:  # fmt: skip
    """Say `text`.

    voice: one of the model's (`polydraft models tiny-speech`); models that read the name as text take any. reference:
    for models that imitate a voice instead, a recording of at most 30 s, a file or (samples, rate), and reference_text
    what is said in it. speculative: True uses the model's best identical method, False plain decoding; the speech is
    the same. speed: from 0.25 to 4, at the same pitch. model, codec: as for `load`. None means the model's own default;
    temperature 0 is greedy. Raises a PolydraftError that says what to change.
    """
    check_speech_request(
        text, speed, seed, temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty
    )
    return cached_pipeline("speech", model, method, device, dtype, codec)(
        text, voice=voice, reference=reference, reference_text=reference_text, speculative=speculative, method=method,
        seed=seed, speed=speed, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, on_step=on_step,
    )  # fmt: skip


def check_speech_request(text: str, speed: float, seed: int, **sampling: Any) -> int:
    """Return the seed; raise where no model could say what is asked for, which needs no weights to tell.

    Raises:
        PromptError: for what is no plain text.
        InvalidArgument: for a speed, seed or sampling parameter that is not possible.
    """
    check_text(text)
    to_float("speed", speed, SLOWEST, FASTEST)
    check_sampling_params(**sampling)
    return expand_seeds(seed, 1, "text")[0]


class SpeechPipeline(Pipeline):
    """A text-to-speech model with its weights, ready to speak with any of its methods."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.family = build_family(FamilyInputs(card, device, self.target_model.config.vocab_size))
        self.context_len = min(self.context_len, self.family.context)
        self.eos_token_ids = self.family.eos
        self.row_length = (
            self.family.frame if self.family.frame > 1 else 0
        )  # a frame is to its codes what a row is to tokens

    @property
    def sample_rate(self) -> int:
        return self.family.sample_rate

    @property
    def voices(self) -> list[str]:
        return self.family.voices

    @property
    def token_mask(self) -> Tensor:
        return self.family.token_mask

    @property
    def exact_only_mask(self) -> Tensor:  # type: ignore[override]
        return self.family.exact_only_mask

    @property
    def codebook(self) -> Tensor:
        return self.family.codebook

    def sample_prompts(self) -> list[PromptInputs]:
        return [self.prompt("yes .", Voice(next(iter(self.voices), "")), 0, 0)]

    def prompt(
        self, sentence: str, voice: Voice, seed: int, place: int, sampling: SamplingParams | None = None
    ) -> PromptInputs:
        """A sentence of a script, said by `voice`; place: which one it is; sampling: the model's own unless given."""
        sampling = self.sampling_params() if sampling is None else sampling
        ids, most = self.family.encode_prompt(sentence, voice), self.family.max_codes(sentence)
        room = (self.context_len - len(ids)) // self.family.frame * self.family.frame
        if room < min(most, self.family.expected_codes(sentence)):
            raise PromptError(
                f"a sentence and its reference take {len(ids)} of the {self.context_len} positions of "
                f"{self.card.name}, which leaves too few for the speech; give a shorter reference."
            )
        sampling = replace(sampling, min_tokens=max(sampling.min_tokens, self.family.min_codes(sentence)))
        return PromptInputs((tuple(ids),), min(most, room), seed, place, sampling_params=sampling)

    def __call__(self, text: str, *, on_step: OnStep | None = None, **options: Any) -> SpeechResult:
        """Synthesise `text`; arguments are those of `generate_speech` without model, codec, device and dtype."""
        on_step = to_optional(to_callback, "on_step", on_step)
        stream = self.stream(text, together=MAX_CONCURRENT_SENTENCES, on_step=on_step, **options)
        for _ in stream:
            pass
        return stream.result()

    def stream(
        self, text: str, *, voice: str | None = None, reference: Recording | None = None,
        reference_text: str | None = None, speculative: bool = True, method: str | None = None, seed: int = 0,
        speed: float = 1.0, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float | None = None, together: int = 1, on_step: OnStep | None = None,
    ) -> SpeechStream:  # fmt: skip
        """An iterator of sound; leave it at any time, `result()` is what was said so far.

        together: sentences decoded at a time; 1 is soonest heard.
        """
        return SpeechStream(
            self.run(
                text, voice=voice, reference=reference, reference_text=reference_text, speculative=speculative,
                method=method, seed=seed, speed=speed, temperature=temperature, top_k=top_k, top_p=top_p,
                repetition_penalty=repetition_penalty, together=together,
            ),
            on_step,
        )  # fmt: skip

    @synchronized
    def run(
        self, text: str, *, voice: str | None = None, reference: Recording | None = None,
        reference_text: str | None = None, speculative: bool = True, method: str | None = None, seed: int = 0,
        speed: float = 1.0, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float | None = None, together: int = MAX_CONCURRENT_SENTENCES,
    ) -> SpeechGenerationRequest:  # fmt: skip
        """Return the request of `stream`, for callers that schedule it themselves."""
        choice = self.select_method(speculative, method)
        row_seed, speed = check_speech_request(text, speed, seed), to_float("speed", speed, SLOWEST, FASTEST)
        together = to_integer("together", together, 1)
        sampling = self.sampling_params(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty
        )
        script = self.family.split_text(text)
        speaker = self.family.select_voice(to_optional(to_string, "voice", voice), reference, reference_text)
        prompts = [
            self.prompt(sentence, speaker, row_seed, place, sampling) for place, sentence in enumerate(script.sentences)
        ]
        return SpeechGenerationRequest(
            self, self.method(choice), prompts, SpeechRequestInfo(text, script, speaker, row_seed), speed, together
        )


__all__ = [
    "SpeechChunk",
    "SpeechGenerationRequest",
    "SpeechPipeline",
    "SpeechResult",
    "SpeechStream",
    "generate_speech",
]
